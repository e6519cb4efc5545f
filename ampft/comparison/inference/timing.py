"""Times of forward passes, measured in turns so that other load affects every mode alike."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ampft.comparison.cost_findings import BatchTiming
from ampft.comparison.statistics.speed_up import speed_up

MIN_ROUNDS, MAX_ROUNDS = 7, 40
SECONDS = 20.0  # per batch size, after which no further round starts


class Timed(Protocol):
    """Something that predicts a batch and says how long that took."""

    def seconds(self, batch: Any) -> float:
        """Predict a batch, and return its time without what only prepares it."""
        ...


def time_in_turns(
    predictors: Mapping[str, Timed],
    batches: Mapping[int, Sequence[Any]],
    *,
    baseline: str,
    seconds: float = SECONDS,
) -> dict[str, tuple[BatchTiming, ...]]:
    """Return the times of every arm by ascending batch size, and the arms' ratios to the baseline.

    In each round, every arm predicts the same batch once, and another arm begins. The first round
    is a warm-up.

    Args:
        predictors: Predictors by name of the arm.
        batches: Inputs by batch size; the rounds use them in turns.
        baseline: Name of the arm that the ratios refer to.
        seconds: Time per batch size after which no further round starts.
    """
    rounds = {size: _rounds(predictors, some, seconds) for size, some in sorted(batches.items())}
    return {
        name: tuple(
            _timing(size, np.array(times[name]), None if name == baseline else times[baseline])
            for size, times in rounds.items()
        )
        for name in predictors
    }


def _rounds(
    predictors: Mapping[str, Timed], batches: Sequence[Any], seconds: float
) -> dict[str, list[float]]:
    names = list(predictors)
    times: dict[str, list[float]] = {name: [] for name in names}
    start = time.perf_counter()
    for number in range(MAX_ROUNDS + 1):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            taken = predictors[name].seconds(batches[number % len(batches)])
            if number:
                times[name].append(taken)
        if number >= MIN_ROUNDS and time.perf_counter() - start > seconds:
            break
    return times


def _timing(size: int, seconds: np.ndarray, baseline: Sequence[float] | None) -> BatchTiming:
    low, middle, high = (float(value) for value in np.quantile(seconds, (0.25, 0.5, 0.75)))
    return BatchTiming(
        batch_size=size,
        seconds=middle,
        quartiles=(low, high),
        speed_up=None
        if baseline is None
        else speed_up((np.array(baseline) / seconds).tolist(), in_turns=True),
    )
