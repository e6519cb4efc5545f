"""A few large errors that carry a difference are stated, and only where an error has no limit."""

from __future__ import annotations

import numpy as np
import pytest

from ampft.comparison.statistics.interval import estimate_of_sums, few_carrying
from ampft.comparison.statistics.verdict import decide
from ampft.comparison.verdict_text import carrying_labels_text, carrying_text
from ampft.labels.regression import METRICS, RegressionPredictions
from ampft.metrics.sums import BRIER, mean_sums


def difference(df: float, share: float, metric: str = "mse"):
    """Return the difference to a model that predicts the mean for a share of 1,000 rows."""
    rng = np.random.default_rng(3)
    errors = rng.normal(0, 0.3, 1000)
    labels = rng.standard_t(df, 1000)
    before, after = (
        RegressionPredictions(labels, values, ("number",), "test").sums(metric)
        for values in (labels + errors, np.where(rng.random(1000) < share, 0, labels + errors))
    )
    return decide({"arm": estimate_of_sums([after], [before], METRICS[metric])}, margin=0.01)["arm"]


@pytest.mark.parametrize("metric", ["mse", "r2"])
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_heavy_tails_are_found(share, metric):
    found = difference(3, share, metric)
    assert found.carrying_cases is not None
    assert found.carrying_labels is None  # said once
    assert found.carrying_cases <= 20
    assert f"comes from {found.carrying_cases} of 1,000 cases" in carrying_text(
        found.carrying_cases, found.cases
    )


@pytest.mark.parametrize("metric", ["mse", "r2", "pearson"])
def test_labels_show_errors_that_the_sample_lacks(metric):
    found = difference(3, 0.0, metric)
    assert found.carrying_cases is None
    assert found.carrying_labels is not None
    text = carrying_labels_text(found.carrying_labels, found.cases)
    assert f"one of the {found.carrying_labels} most extreme of 1,000 cases" in text


@pytest.mark.parametrize("metric", list(METRICS))
def test_normal_labels_and_errors_have_no_warning(metric):
    found = difference(1e9, 0.0, metric)
    assert found.carrying_cases is None
    assert found.carrying_labels is None


def test_an_absolute_error_weighs_less_than_a_squared_one():
    assert difference(5, 0.0, "mse").carrying_labels is not None
    assert difference(5, 0.0, "mae").carrying_labels is None


def test_normal_errors_and_limited_ones_are_not():
    assert difference(1e9, 0.3).carrying_cases is None
    rng = np.random.default_rng(3)
    limited = [mean_sums(rng.standard_t(3, 1000) ** 2) for _ in range(2)]
    assert estimate_of_sums(limited[:1], limited[1:], BRIER).carrying is None
    assert few_carrying(np.zeros(100)) is None
    assert few_carrying(np.append(np.zeros(99), 1.0)) == 1
