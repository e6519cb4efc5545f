"""Valid predictions, and invalid ones that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ampft.tasks.outcome import check_ids_complete
from ampft.tasks.single_label import Predictions

GOOD = Predictions(
    example_ids=np.arange(3),
    labels=np.array([0, 1, 1]),
    probabilities=np.array([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]], dtype=np.float32),
    label_names=("no", "yes"),
    split="test",
)


def test_the_lowest_index_wins_a_tie():
    assert GOOD.predicted.tolist() == [0, 0, 1]
    assert GOOD.predicted.dtype == np.int64
    assert GOOD.confidence.tolist() == [0.75, 0.5, 0.75]
    assert len(GOOD) == 3


def rows(*values: tuple[float, float]) -> np.ndarray:
    return np.array(values, dtype=np.float32)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an id twice": ({"example_ids": np.array([0, 1, 1])}, "2 missing; 1 counted more than once"),
    "an unknown id": ({"example_ids": np.array([0, 1, 7])}, "2 missing; 7 outside the split"),
    "ids out of order": ({"example_ids": np.array([1, 0, 2])}, "must ascend"),
    "a label too high": ({"labels": np.array([0, 1, 2])}, r"labels outside 0\.\.1; the first .* 2"),
    "a negative label": (
        {"labels": np.array([-100, 1, 1])},
        r"labels outside 0\.\.1; the first .* 0",
    ),
    "int32 labels": ({"labels": np.array([0, 1, 1], dtype=np.int32)}, "dtype int64"),
    "too few rows": ({"probabilities": rows((1, 0))}, r"shape \(3, 2\)"),
    "float64": ({"probabilities": GOOD.probabilities.astype(np.float64)}, "dtype float32"),
    "not a number": (
        {"probabilities": rows((1, 0), (np.nan, np.nan), (0, 1))},
        "that are not finite; the first is example 1",
    ),
    "infinite": ({"probabilities": rows((1, 0), (1, 0), (np.inf, 0))}, "are not finite"),
    "logits": ({"probabilities": rows((1, 0), (0, 1), (0.5, 0.9))}, "are they logits"),
    "negative": ({"probabilities": rows((1, 0), (0, 1), (1.5, -0.5))}, r"outside \[0, 1\]"),
    "one class": ({"label_names": ("a", "a")}, "at least two distinct"),
    "no examples": (
        {
            "example_ids": np.arange(0),
            "labels": np.arange(0),
            "probabilities": np.zeros((0, 2), dtype=np.float32),
        },
        "has no examples",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_the_reason(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        replace(GOOD, **changes)


@pytest.mark.parametrize("n", range(1, 18))
def test_census_counts_each_once(n: int):
    check_ids_complete(np.random.default_rng(n).permutation(n), n)
    with pytest.raises(ValueError, match="counted more than once"):
        check_ids_complete(np.append(np.arange(n), 0), n)
    with pytest.raises(ValueError, match="missing"):
        check_ids_complete(np.arange(1, n + 1), n + 1)


def test_census_names_five_at_most():
    with pytest.raises(ValueError, match="5, 6, 7, 8, 9 and 5 more missing"):
        check_ids_complete(np.arange(5), 15)
