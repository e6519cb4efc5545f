"""The result of the doctor: `Diagnosis` and its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from ampft.checks.harm import ShortTrainingResult
from ampft.machine import versions

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
    """The range of a tensor that a failed operation received."""

    name: str  # Position among the operands, such as `operand 1`, with shape and dtype.
    smallest: float | None  # Smallest absolute value.
    largest: float | None  # Largest absolute value; None if it is not finite.


@dataclass(frozen=True, kw_only=True)
class Fault:
    """An operation that makes the mode fail, or a defect that is harmless."""

    module: str  # Path of the module in the model; empty for code outside of it, such as the loss.
    direction: str  # `forward` or `backward`.
    operation: str  # Name of the operator in `torch.ops.aten`, such as `addmm`.
    cause: str  # One of `Cause`.
    # Largest absolute value of the result, computed in float64 from the same operands; None if it
    # does not exist there either.
    largest: float | None = None
    example_ids: Sequence[int] = ()  # Examples that are affected, ascending.
    # Token positions that are affected, as (example id, position); at most `MAX_TOKENS`.
    tokens: Sequence[tuple[int, int]] = ()
    source: str | None = None  # File and line of the model's source with its text; None if unknown.
    inputs: Sequence[ValueRange] = ()  # Ranges of the operands.
    # `loss`, `gradient`, `padding`, or `activation` if a later operation hides them: how far the
    # values that are not finite spread.
    reaches: str = "loss"
    # Whether the same operation fails in float32, for at least one batch; None if that was not
    # tried.
    in_float32: bool | None = None
    is_harmless: bool = False  # Whether training works nevertheless.
    remedy: str = ""  # What to do, in one sentence.


@dataclass(frozen=True, kw_only=True)
class ModuleRange:
    """The values that a module computed in float32, in one direction.

    Shares are fractions of the nonzero entries, 0 to 1. With several processes, the values of all
    processes count.
    """

    # Path of the module in the model; empty for the model itself. The gradients of parameters
    # belong to the module that owns them.
    module: str
    kind: str  # Class of the module.
    # `forward` for outputs, `backward` for gradients of outputs and parameters, of the loss without
    # a scale.
    direction: str
    largest: float | None  # Largest absolute value; None if there is a value that is not finite.
    entries: int  # Number of entries.
    zeros: int  # Number of zeros.
    # Number of entries by exponent e, for absolute values in [2^e, 2^(e+1)).
    exponents: Mapping[str, int]
    examples_above: int = 0  # Number of examples with a value above 65504.
    # Bits between the largest value and 65504; negative if it overflows.
    headroom: float | None = None
    # Share below 2^-24, the smallest positive number of binary16.
    below_smallest: float | None = None
    # Share in [2^-24, 2^-14), where binary16 has fewer significant bits.
    subnormal: float | None = None
    # Distance between neighbouring bfloat16 numbers at the largest value: what a softmax or a sum
    # with it cannot resolve.
    bf16_step: float | None = None
    # Share that becomes 0 in fp8 (E4M3 forward, E5M2 backward) if the tensor is scaled so that its
    # largest value fits.
    fp8_lost: float | None = None


@dataclass(frozen=True, kw_only=True)
class LossScales:
    """The effect of the loss scale on the gradients, predicted from float32 gradients."""

    # Largest power of two at which no gradient exceeds 65504; None if there is none.
    largest: float | None
    # Smallest power of two that loses at most `tolerated`; None if there is none.
    smallest: float | None
    tolerated: float  # Share of the gradient entries that may be lost.
    # Share of the entries that are not zero and become smaller than 2^-24, by scale.
    lost: Mapping[str, float]
    initial: float | None  # Scale at which a training starts; None without a scaler.
    # Largest scale, from `initial` down, at which the mode had a finite gradient in every batch;
    # None without a scaler, or if there is none.
    found: float | None
    lost_at_found: float  # Share that is lost there, or at 1 without a scaler.


@dataclass(frozen=True, kw_only=True)
class Cure:
    """A change under which the mode holds."""

    # Patterns of the modules to keep in float32; empty for another cure.
    fp32_modules: Sequence[str]
    verified: bool  # Whether the model ran and trained with it.
    # Time of a step relative to the mode without the cure; None if not measured.
    cost: float | None
    flag: str = ""  # Flags of the recipe that apply the cure.
    sentence: str = ""  # What it is and what was verified, for people.


@dataclass(frozen=True, kw_only=True)
class BatchMean:
    """A mean over batches, with the ends of its 95 % interval; None with a single batch."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class ModuleError:
    """How a module differs from float32, as ||x - x32|| / ||x32|| over all entries of a batch."""

    module: str  # Path of the module.
    kind: str  # Class of the module.
    call: int  # Number of the call in a forward pass, from 1.
    is_leaf: bool  # Whether no modules are inside it.
    # Error of its first input; None if it has none, or if it is zero in float32 only.
    inputs: BatchMean | None
    outputs: BatchMean  # Error of its first output.
    gradients: BatchMean | None  # Error of the gradient of that output; None if it has none.
    # What it does to the error: `born` if it at least doubles, `grows`, `forgiven` if it at least
    # halves, or `carried`; empty if the inputs are not known.
    role: str = ""


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """The mode compared with float32, module by module."""

    mode: str  # Precision.
    fp32_modules: Sequence[str]  # Patterns of the modules in float32, if a cure was applied.
    batches: int  # Number of batches.
    # Errors in the order of the forward pass; none of outputs that are not finite.
    modules: Sequence[ModuleError]
    gradient_cosine: BatchMean  # Cosine of the angle between the whole gradients.
    gradient_error: BatchMean  # Error of the whole gradient.
    loss_change: BatchMean  # Loss in the mode minus loss in float32.


@dataclass(frozen=True, kw_only=True)
class ExaminedSetup:
    """What was examined."""

    model: str  # Name of the model.
    data: str  # Name of the data, or of the saved step.
    mode: str  # Precision.
    execution: str  # `native` or `emulated`.
    device: str  # Device type, such as `cpu`.
    batches: int  # Number of batches.
    examples: int  # Number of examples in them.
    processes: int = 1  # Number of processes.
    padding_free: bool = False  # Whether the model ran without padding.


@dataclass(frozen=True, kw_only=True)
class GradientFigures:
    """The gradients of all batches in the mode relative to float32, without dropout."""

    cosine: float  # Cosine of the angle between them.
    size: float  # Norm, relative to float32.
    error: float  # Norm of the difference, relative to float32.
    # Share of the weights whose parameters have lost the direction of their gradient.
    lost_share: float


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Whether a precision holds on some batches, and if not, why."""

    setting: ExaminedSetup  # What was examined.
    # Whether loss and gradient are finite, and the gradient has direction and size of float32's
    # (`ampft.checks.harm`).
    holds: bool
    faults: Sequence[Fault]  # Failures, the first one first, then the harmless ones.
    # How the gradient changes; None if a batch is not finite.
    gradient: GradientFigures | None = None
    # The first steps of the training in float32, if a cure was searched.
    float32_trial: ShortTrainingResult | None = None
    cure: Cure | None = None  # A change that helps; None if nothing failed or nothing was found.
    ranges: Sequence[ModuleRange] = ()  # Values of every module in float32.
    loss_scales: LossScales | None = None  # Loss scales that the gradients allow.
    # Number of gradient entries by exponent, as in `ModuleRange`.
    gradient_exponents: Mapping[str, int] = field(default_factory=dict)
    # The mode, with any cure, compared with float32; None if it fails.
    alignment: Alignment | None = None
    # Share of the weights that an update of the size of the learning rate, as AdamW makes it, does
    # not change if they are stored in bfloat16, by learning rate.
    bf16_lost_updates: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=versions)  # Package versions.
    # Start time, ISO 8601, UTC.
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA  # Version of this layout.
