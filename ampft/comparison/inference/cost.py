"""The cost of predicting in a precision, as a comparison reports it."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.comparison.statistics.speed_up import SpeedUp


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
