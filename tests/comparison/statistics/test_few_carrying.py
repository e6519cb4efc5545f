"""A few large errors that carry a difference are stated, and only where an error has no limit."""

from __future__ import annotations

import numpy as np
import pytest

from ampft.comparison.statistics.interval import (
    estimate_over_cases,
    few_carrying,
    jackknife_differences,
)
from ampft.comparison.statistics.verdict import decide
from ampft.comparison.verdict_text import carrying_text
from ampft.metrics.sums import BRIER, mean_sums
from ampft.tasks.table import problem_types

MSE = problem_types()["regression"].metrics["mse"]


def squares(df: float, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return squared errors of a model, and of one that predicts the mean for a share of rows."""
    rng = np.random.default_rng(3)
    errors = rng.normal(0, 0.3, 1000)
    labels = rng.standard_t(df, 1000)
    return errors**2, np.where(rng.random(1000) < share, labels, errors) ** 2


def difference(df: float, share: float, metric=MSE):
    before, after = map(mean_sums, squares(df, share))
    estimate = estimate_over_cases(jackknife_differences([after], [before], metric))
    return decide({"arm": estimate}, margin=0.01)["arm"]


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_heavy_tails_are_found(share):
    found = difference(3, share)
    assert found.carrying_cases is not None
    assert found.carrying_cases <= 20
    assert f"comes from {found.carrying_cases} of 1,000 cases" in carrying_text(
        found.carrying_cases, found.cases
    )


def test_normal_errors_and_limited_ones_are_not():
    assert difference(1e9, 0.3).carrying_cases is None
    assert difference(3, 0.01, BRIER).carrying_cases is None
    assert few_carrying(np.zeros(100)) is None
    assert few_carrying(np.append(np.zeros(99), 1.0)) == 1
