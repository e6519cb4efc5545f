"""What the yardstick found, as data: `Yardstick` and its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from ampft.machine import versions
from ampft.text.json_io import from_json

SCHEMA = 1
WHOLE = "whole gradient"
INITIAL = "initial weights"
FOUND_Z = 2.0  # 2.3 % of modes without a bias exceed it, by the normal distribution


@dataclass(frozen=True, kw_only=True)
class GradientNoise:
    """The float64 gradients of the step batches, all entries or those of a module.

    Attributes:
        name: `WHOLE` or the module's.
        parameters: Trainable entries.
        gradient_norm: Norm of the mean over the batches.
        signal: Estimated norm of the expected gradient; 0 where the noise hides it.
        noise: Root of the trace of the covariance of one batch's gradient.
    """

    name: str
    parameters: int
    gradient_norm: float
    signal: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class GradientError:
    """A mode's errors beside that noise; see `ampft.diagnosis.yardstick` for the formulas.

    Attributes:
        name: As in `GradientNoise`.
        error_over_noise: Root mean square error of a batch's gradient; None where there is no
            noise, or the mode has no finite gradient.
        bias_over_noise: The part that all batches share; None likewise.
        bias_z: How far that part stands out from chance; None likewise.
        underflow: Share of the entries that became zero, 0 to 1; None likewise.
    """

    name: str
    error_over_noise: float | None
    bias_over_noise: float | None
    bias_z: float | None
    underflow: float | None

    @property
    def bias_is_found(self) -> bool:
        """Whether the bias stands out from chance."""
        return self.bias_z is not None and self.bias_z > FOUND_Z


@dataclass(frozen=True, kw_only=True)
class ModeFigures:
    """What a mode made of the gradients.

    Attributes:
        mode: One of `ampft.MODES`.
        execution: `native` or `emulated`.
        executed: What its products were measured to be, in one clause.
        initial_scale: Scale of the loss that every batch began with; None without a scaler.
        lowest_scale: The lowest that a finite gradient needed.
        overflowed_batches: Batches whose gradient was not finite at first.
        failed_batches: Batches without a finite gradient at any scale.
        whole: Over all entries.
        modules: By module, in the model's order.
    """

    mode: str
    execution: str
    executed: str
    initial_scale: float | None
    lowest_scale: float | None
    overflowed_batches: int
    failed_batches: int
    whole: GradientError
    modules: Sequence[GradientError]


@dataclass(frozen=True, kw_only=True)
class CheckpointFigures:
    """The yardstick at one set of weights.

    Attributes:
        name: `INITIAL`, or the folder of the run as it was given.
        whole: The noise over all entries.
        modules: By module.
        modes: In the order asked for.
    """

    name: str
    whole: GradientNoise
    modules: Sequence[GradientNoise]
    modes: Sequence[ModeFigures]


@dataclass(frozen=True, kw_only=True)
class YardstickSettings:
    """What was measured, and on what.

    Attributes:
        modes: Asked for, in order.
        batches: Step batches, n.
        effective_batch_size: Examples of each.
        micro_batches: Parts that a mode computes one in.
        model: Name of the model.
        data: Name of the data.
        seed: Of head and order.
        device: Type, such as `cpu`.
        cpu_threads: Of this process.
        padding_free: Whether the modes ran on real tokens alone.
    """

    modes: Sequence[str]
    batches: int
    effective_batch_size: int
    micro_batches: int
    model: str
    data: str
    seed: int
    device: str
    cpu_threads: int
    padding_free: bool


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """The errors of modes beside the noise of batches, at one or more sets of weights.

    Attributes:
        settings: What was measured.
        checkpoints: The initial weights first.
        versions: Of the packages.
        started: ISO 8601, UTC.
        schema: Version of this layout.
    """

    settings: YardstickSettings
    checkpoints: Sequence[CheckpointFigures]
    versions: Mapping[str, str] = field(default_factory=versions)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA

    def as_dict(self) -> dict[str, Any]:
        """Return the same as dictionaries, lists, strings and numbers, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Yardstick:
        """Return what `as_dict` gave, read back from JSON.

        Raises:
            ValueError: The layout is another version's, or a part is missing or of another kind.
        """
        if values.get("schema") != SCHEMA:
            raise ValueError(f"layout {values.get('schema')}, this version of ampft reads {SCHEMA}")
        return from_json(cls, values, "yardstick")
