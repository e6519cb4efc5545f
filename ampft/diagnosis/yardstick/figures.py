"""The results of the yardstick: `Yardstick` and its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ampft.machine import versions

SCHEMA = 1
WHOLE_GRADIENT = "whole gradient"
INITIAL_WEIGHTS = "initial weights"
MIN_BIAS_Z = 2.0  # exceeded by 2.3 % of modes without a bias, by the normal distribution


@dataclass(frozen=True, kw_only=True)
class GradientNoise:
    """The float64 gradients of the step batches, over all entries or the entries of a module.

    Attributes:
        name: `WHOLE_GRADIENT` or the name of the module.
        parameters: Number of trainable entries.
        gradient_norm: Norm of the mean over the batches.
        signal: Estimated norm of the expected gradient; 0 if the noise hides it.
        noise: Square root of the trace of the covariance of a batch's gradient.
    """

    name: str
    parameters: int
    gradient_norm: float
    signal: float
    noise: float


@dataclass(frozen=True, kw_only=True)
class GradientError:
    """The errors of a mode relative to the noise; see `ampft.diagnosis.yardstick` for formulas.

    Attributes:
        name: Name as in `GradientNoise`.
        error_over_noise: Root mean square error of a batch's gradient divided by the noise; None
            if there is no noise, or the mode has no finite gradient.
        bias_over_noise: Error that all batches share, divided by the noise; None likewise.
        bias_z: z-score of the bias; None likewise.
        underflow: Share of the entries that became zero, 0 to 1; None likewise.
    """

    name: str
    error_over_noise: float | None
    bias_over_noise: float | None
    bias_z: float | None
    underflow: float | None

    @property
    def has_significant_bias(self) -> bool:
        """Whether the bias exceeds what chance explains."""
        return self.bias_z is not None and self.bias_z > MIN_BIAS_Z


@dataclass(frozen=True, kw_only=True)
class ModeFigures:
    """The results of one mode.

    Attributes:
        mode: One of `ampft.MODES`.
        execution: `native` or `emulated`.
        executed: Measured dtypes of its products, in one clause.
        initial_scale: Loss scale at which every batch started; None without a scaler.
        lowest_scale: Lowest loss scale that a finite gradient needed.
        overflowed_batches: Number of batches whose gradient overflowed at the initial scale.
        failed_batches: Number of batches without a finite gradient at any scale.
        whole: Errors over all entries.
        modules: Errors by module, in the order of the model.
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
    """The yardstick for one set of weights.

    Attributes:
        name: `INITIAL_WEIGHTS`, or the folder of the run as the user named it.
        whole: Noise over all entries.
        modules: Noise by module.
        modes: Results by mode, in the requested order.
    """

    name: str
    whole: GradientNoise
    modules: Sequence[GradientNoise]
    modes: Sequence[ModeFigures]


@dataclass(frozen=True, kw_only=True)
class YardstickSettings:
    """The settings of the measurement.

    Attributes:
        modes: Requested modes, in order.
        batches: Number n of step batches.
        effective_batch_size: Examples per step batch.
        micro_batches: Micro-batches per step batch.
        model: Name of the model.
        data: Name of the data.
        seed: Seed of classification head and data order.
        device: Device type, such as `cpu`.
        cpu_threads: CPU threads of the process.
        padding_free: Whether the modes ran without padding.
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
    """The gradient errors of modes relative to batch noise, for one or more sets of weights.

    Attributes:
        settings: Settings of the measurement.
        checkpoints: Results by set of weights, the initial weights first.
        versions: Package versions.
        started: Start time, ISO 8601, UTC.
        schema: Version of this layout.
    """

    settings: YardstickSettings
    checkpoints: Sequence[CheckpointFigures]
    versions: Mapping[str, str] = field(default_factory=versions)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA
