"""The cost of predicting in a precision, as a comparison reports it."""

from __future__ import annotations

from dataclasses import dataclass


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
        size: Size in bytes of the weights on disk.
        size_ratio: Size relative to the baseline; None for the baseline.
    """

    timings: tuple[BatchTiming, ...]
    size: int
    size_ratio: float | None
