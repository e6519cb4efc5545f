"""What arms cost in training and in inference: the part of a comparison's results on costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Median steady-state step times, and their ratios to the baseline seed by seed.

    Attributes:
        step_seconds: Median step time of each run, in the order of the runs.
        ratio: Speed-up: median over the seeds of baseline step / this arm's step (2 is twice as
            fast); None for the baseline and for emulated modes, which are not ranked.
        ratio_spread: Minimum and maximum of the ratio over the seeds.
        ratio_to_tf32: Speed-up over tf32, if tf32 is part of the comparison.
        tokens_per_second: Median over the runs.
        waiting_share: Share of the step time spent waiting for data, median over the runs.
        utilisation: Share of the matrix product rate measured in the same process, median over the
            runs.
        training_seconds: Median over the runs.
        total_seconds: Time from start to report, median over the runs.
        reason: One sentence on why a mode is less than 1.2 times as fast as the baseline.
    """

    step_seconds: tuple[float, ...]
    ratio: float | None
    ratio_spread: tuple[float, float] | None
    ratio_to_tf32: float | None
    tokens_per_second: float | None
    waiting_share: float | None
    utilisation: float | None
    training_seconds: float | None
    total_seconds: float | None
    reason: str | None


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
        ratio: Median over the rounds of the baseline's time divided by this arm's time in the same
            round; None for the baseline.
        ratio_quartiles: Quartiles of that ratio; None for the baseline.
    """

    batch_size: int
    seconds: float
    quartiles: tuple[float, float]
    ratio: float | None
    ratio_quartiles: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Inference:
    """The cost of predicting in a precision.

    Attributes:
        timings: Times by ascending batch size; empty for emulated modes.
        rounds: Rounds in which every arm was timed once.
        size: Size in bytes of the weights on disk; None if it was not measured.
        size_ratio: Size relative to the baseline; None for the baseline.
    """

    timings: tuple[BatchTiming, ...]
    rounds: int
    size: int | None
    size_ratio: float | None
