"""What an arm costs: the speed and memory of training, or the speed and size of inference."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.comparison.remarks import Remark
from ampft.comparison.statistics.speed_up import SpeedUp


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Median steady-state step times, and their ratios to the baseline seed by seed."""

    step_seconds: tuple[float, ...]  # Median step time of each run, in the order of the runs.
    # Speed-up over the baseline; None for the baseline and for emulated modes, which are not
    # ranked.
    speed_up: SpeedUp | None
    speed_up_over_tf32: SpeedUp | None  # Speed-up over tf32, if tf32 is part of the comparison.
    tokens_per_second: float | None  # Median over the runs.
    # Share of the step time spent waiting for data, median over the runs.
    waiting_share: float | None
    # Share of the matrix product rate measured in the same process, median over the runs.
    utilisation: float | None
    training_seconds: float | None  # Median over the runs.
    total_seconds: float | None  # Time from start to report, median over the runs.
    reason: Remark | None  # Why a mode is less than 1.2 times as fast as the baseline.


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
    """Time of the forward pass of one batch."""

    batch_size: int  # Texts per batch.
    seconds: float  # Median over the rounds.
    quartiles: tuple[float, float]  # First and third quartile over the rounds.
    # Speed-up over the baseline, from the times of the same rounds; None for the baseline.
    speed_up: SpeedUp | None


@dataclass(frozen=True, kw_only=True)
class Inference:
    """The cost of predicting in a precision."""

    timings: tuple[BatchTiming, ...]  # Times by ascending batch size; empty for emulated modes.
    size: int  # Size in bytes of the weights on disk.
    size_ratio: float | None  # Size relative to the baseline; None for the baseline.
