"""The result of the doctor: `Diagnosis` and its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from ampft.machine import versions
from ampft.precision.harm import ShortTrainingResult

SCHEMA = 1
# Micikevicius et al., "Mixed Precision Training" (2018): the share that their detector lost.
DEFAULT_TOLERATED = 0.05
DIAGNOSIS_NAME = "doctor.json"
PAGE_NAME = "doctor.html"


class Cause(StrEnum):
    """Why an operation failed; `causes.REMEDIES` has a remedy for each."""

    PRODUCT = "overflow of a product"
    SUM = "overflow of a sum"
    EXPONENTIAL = "overflow of an exponential"
    QUOTIENT = "overflow of a quotient"
    CONVERSION = "overflow of a conversion to 16 bits"
    LOG_OF_ZERO = "log of 0"
    LOG_OF_NEGATIVE = "log of a negative number"
    ZERO_BY_ZERO = "0/0"
    DIVISION_BY_ZERO = "x/0"
    ROOT_OF_NEGATIVE = "root of a negative number"
    ROOT_AT_ZERO = "gradient of a root at 0"
    INFINITIES = "inf - inf"
    INVALID = "invalid operation"
    UNDERFLOW_LOG = "underflow, then log of 0"
    UNDERFLOW_DIVISION = "underflow, then x/0"
    UNDERFLOW_ZERO_BY_ZERO = "underflow, then 0/0"
    UNDERFLOW_ROOT = "underflow, then gradient of a root at 0"
    MASK = "mask beyond binary16"
    EMPTY_SOFTMAX = "softmax over nothing"
    PARAMETER = "parameter not finite"
    INPUT = "input not finite"
    HALF_WEIGHTS = "weights in half precision"
    LARGE_SCALE = "loss scale too large"
    EVERY_SCALE = "gradient overflow at every scale"
    VANISHING = "gradients lost to underflow"
    ROUNDING = "gradient lost to rounding"
    PADDING = "NaN confined to padding"


@dataclass(frozen=True, kw_only=True)
class ValueRange:
    """The range of a tensor that a failed operation received.

    Attributes:
        name: Position among the operands, such as `operand 1`, with shape and dtype.
        smallest: Smallest absolute value.
        largest: Largest absolute value; None if it is not finite.
    """

    name: str
    smallest: float | None
    largest: float | None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An operation that makes the mode fail, or a defect that is harmless.

    Attributes:
        module: Path of the module in the model; empty for code outside of it, such as the loss.
        direction: `forward` or `backward`.
        operation: Name of the operator in `torch.ops.aten`, such as `addmm`.
        cause: One of `Cause`.
        largest: Largest absolute value of the result, computed in float64 from the same operands;
            None if it does not exist there either.
        example_ids: Examples that are affected, ascending.
        tokens: Token positions that are affected, as (example id, position); at most `MAX_TOKENS`.
        source: File and line of the model's source with its text; None if unknown.
        inputs: Ranges of the operands.
        reaches: `loss`, `gradient`, `padding`, or `activation` if a later operation hides them: how
            far the values that are not finite spread.
        in_float32: Whether the same operation fails in float32, for at least one batch; None if
            that was not tried.
        is_harmless: Whether training works nevertheless.
        remedy: What to do, in one sentence.
    """

    module: str
    direction: str
    operation: str
    cause: str
    largest: float | None = None
    example_ids: Sequence[int] = ()
    tokens: Sequence[tuple[int, int]] = ()
    source: str | None = None
    inputs: Sequence[ValueRange] = ()
    reaches: str = "loss"
    in_float32: bool | None = None
    is_harmless: bool = False
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class ModuleRange:
    """The values that a module computed in float32, in one direction.

    Shares are fractions of the nonzero entries, 0 to 1. With several processes, the values of all
    processes count.

    Attributes:
        module: Path of the module in the model; empty for the model itself. The gradients of
            parameters belong to the module that owns them.
        kind: Class of the module.
        direction: `forward` for outputs, `backward` for gradients of outputs and parameters, of
            the loss without a scale.
        largest: Largest absolute value; None if there is a value that is not finite.
        entries: Number of entries.
        zeros: Number of zeros.
        exponents: Number of entries by exponent e, for absolute values in [2^e, 2^(e+1)).
        examples_above: Number of examples with a value above 65504.
        headroom: Bits between the largest value and 65504; negative if it overflows.
        below_smallest: Share below 2^-24, the smallest positive number of binary16.
        subnormal: Share in [2^-24, 2^-14), where binary16 has fewer significant bits.
        bf16_step: Distance between neighbouring bfloat16 numbers at the largest value: what a
            softmax or a sum with it cannot resolve.
        fp8_lost: Share that becomes 0 in fp8 (E4M3 forward, E5M2 backward) if the tensor is scaled
            so that its largest value fits.
    """

    module: str
    kind: str
    direction: str
    largest: float | None
    entries: int
    zeros: int
    exponents: Mapping[str, int]
    examples_above: int = 0
    headroom: float | None = None
    below_smallest: float | None = None
    subnormal: float | None = None
    bf16_step: float | None = None
    fp8_lost: float | None = None


@dataclass(frozen=True, kw_only=True)
class LossScales:
    """The effect of the loss scale on the gradients, predicted from float32 gradients.

    Attributes:
        largest: Largest power of two at which no gradient exceeds 65504; None if there is none.
        smallest: Smallest power of two that loses at most `tolerated`; None if there is none.
        tolerated: Share of the gradient entries that may be lost.
        lost: Share of the entries that are not zero and become smaller than 2^-24, by scale.
        initial: Scale at which a training starts; None without a scaler.
        found: Largest scale, from `initial` down, at which the mode had a finite gradient in every
            batch; None without a scaler, or if there is none.
        lost_at_found: Share that is lost there, or at 1 without a scaler.
    """

    largest: float | None
    smallest: float | None
    tolerated: float
    lost: Mapping[str, float]
    initial: float | None
    found: float | None
    lost_at_found: float


@dataclass(frozen=True, kw_only=True)
class Cure:
    """A change under which the mode holds.

    Attributes:
        fp32_modules: Patterns of the modules to keep in float32; empty for another cure.
        verified: Whether the model ran and trained with it.
        cost: Time of a step relative to the mode without the cure; None if not measured.
        flag: Flags of the recipe that apply the cure.
        sentence: What it is and what was verified, for people.
    """

    fp32_modules: Sequence[str]
    verified: bool
    cost: float | None
    flag: str = ""
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class BatchMean:
    """A mean over batches, with the ends of its 95 % interval; None with a single batch."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class ModuleError:
    """How a module differs from float32, as ||x - x32|| / ||x32|| over all entries of a batch.

    Attributes:
        module: Path of the module.
        kind: Class of the module.
        call: Number of the call in a forward pass, from 1.
        is_leaf: Whether no modules are inside it.
        inputs: Error of its first input; None if it has none, or if it is zero in float32 only.
        outputs: Error of its first output.
        gradients: Error of the gradient of that output; None if it has none.
        role: What it does to the error: `born` if it at least doubles, `grows`, `forgiven` if it at
            least halves, or `carried`; empty if the inputs are not known.
    """

    module: str
    kind: str
    call: int
    is_leaf: bool
    inputs: BatchMean | None
    outputs: BatchMean
    gradients: BatchMean | None
    role: str = ""


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """The mode compared with float32, module by module.

    Attributes:
        mode: Precision.
        fp32_modules: Patterns of the modules in float32, if a cure was applied.
        batches: Number of batches.
        modules: Errors in the order of the forward pass; none of outputs that are not finite.
        gradient_cosine: Cosine of the angle between the whole gradients.
        gradient_error: Error of the whole gradient.
        loss_change: Loss in the mode minus loss in float32.
    """

    mode: str
    fp32_modules: Sequence[str]
    batches: int
    modules: Sequence[ModuleError]
    gradient_cosine: BatchMean
    gradient_error: BatchMean
    loss_change: BatchMean


@dataclass(frozen=True, kw_only=True)
class ExaminedSetup:
    """What was examined.

    Attributes:
        model: Name of the model.
        data: Name of the data, or of the saved step.
        mode: Precision.
        execution: `native` or `emulated`.
        device: Device type, such as `cpu`.
        batches: Number of batches.
        examples: Number of examples in them.
        processes: Number of processes.
        padding_free: Whether the model ran without padding.
    """

    model: str
    data: str
    mode: str
    execution: str
    device: str
    batches: int
    examples: int
    processes: int = 1
    padding_free: bool = False


@dataclass(frozen=True, kw_only=True)
class GradientFigures:
    """The gradients of all batches in the mode relative to float32, without dropout.

    Attributes:
        cosine: Cosine of the angle between them.
        size: Norm, relative to float32.
        error: Norm of the difference, relative to float32.
        lost_share: Share of the weights whose parameters have lost the direction of their gradient.
    """

    cosine: float
    size: float
    error: float
    lost_share: float


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Whether a precision holds on some batches, and if not, why.

    Attributes:
        setting: What was examined.
        holds: Whether loss and gradient are finite, and the gradient has direction and size of
            float32's (`ampft.precision.harm`).
        faults: Failures, the first one first, then the harmless ones.
        gradient: How the gradient changes; None if a batch is not finite.
        float32_trial: The first steps of the training in float32, if a cure was searched.
        cure: A change that helps; None if nothing failed or nothing was found.
        ranges: Values of every module in float32.
        loss_scales: Loss scales that the gradients allow.
        gradient_exponents: Number of gradient entries by exponent, as in `ModuleRange`.
        alignment: The mode, with any cure, compared with float32; None if it fails.
        bf16_lost_updates: Share of the weights that an update of the size of the learning rate, as
            AdamW makes it, does not change if they are stored in bfloat16, by learning rate.
        versions: Package versions.
        started: Start time, ISO 8601, UTC.
        schema: Version of this layout.
    """

    setting: ExaminedSetup
    holds: bool
    faults: Sequence[Fault]
    gradient: GradientFigures | None = None
    float32_trial: ShortTrainingResult | None = None
    cure: Cure | None = None
    ranges: Sequence[ModuleRange] = ()
    loss_scales: LossScales | None = None
    gradient_exponents: Mapping[str, int] = field(default_factory=dict)
    alignment: Alignment | None = None
    bf16_lost_updates: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=versions)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA
