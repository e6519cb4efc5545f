"""What an arm costs: the speed and memory of training, or the speed and size of inference."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.comparison.remarks import Remark
from ampft.comparison.statistics.speed_up import SpeedUp


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Median steady-state step times, and their ratios to the baseline seed by seed.

    Attributes:
        step_seconds: Median step time of each run, in the order of the runs.
        speed_up: Speed-up over the baseline; None for the baseline and for emulated modes, which
            are not ranked.
        speed_up_over_tf32: Speed-up over tf32, if tf32 is part of the comparison.
        tokens_per_second: Median over the runs.
        waiting_share: Share of the step time spent waiting for data, median over the runs.
        utilisation: Share of the matrix product rate measured in the same process, median over the
            runs.
        training_seconds: Median over the runs.
        total_seconds: Time from start to report, median over the runs.
        reason: Why a mode is less than 1.2 times as fast as the baseline.
    """

    step_seconds: tuple[float, ...]
    speed_up: SpeedUp | None
    speed_up_over_tf32: SpeedUp | None
    tokens_per_second: float | None
    waiting_share: float | None
    utilisation: float | None
    training_seconds: float | None
    total_seconds: float | None
    reason: Remark | None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak memory in bytes and its parts as in the run records, medians over the runs."""

    peak: int | None
    ratio: float | None
    weights: int | None
    gradients: int | None
    optimizer_state: int | None
    activations: int | None
    rest: int | None
    baseline: int | None
    protocol: str | None


@dataclass(frozen=True, kw_only=True)
class BatchTiming:
    """Time of the forward pass of one batch.

    Attributes:
        batch_size: Texts per batch.
        seconds: Median over the rounds.
        quartiles: First and third quartile over the rounds.
        speed_up: Speed-up over the baseline, from the times of the same rounds; None for the
            baseline.
    """

    batch_size: int
    seconds: float
    quartiles: tuple[float, float]
    speed_up: SpeedUp | None


@dataclass(frozen=True, kw_only=True)
class Inference:
    """The cost of predicting in a precision.

    Attributes:
        timings: Times by ascending batch size; empty for emulated modes.
        size: Size in bytes of the weights on disk.
        size_ratio: Size relative to the baseline; None for the baseline.
    """

    timings: tuple[BatchTiming, ...]
    size: int
    size_ratio: float | None
