"""Log loss: no case can be lost by more than its bound, and equivalence takes that into account."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from ampft.comparison.statistics.interval import estimate_difference, jackknife_differences
from ampft.labels import multi_label
from ampft.media import pixel_outcome
from ampft.metrics.scores import case_binary_log_losses, case_brier_scores, case_log_losses
from ampft.metrics.sums import BRIER, LOG_LOSS, MAX_LOG_LOSS, CostliestCase, mean_sums
from ampft.tasks import single_label
from ampft.words import token_labels

TASKS = (single_label, multi_label, token_labels, pixel_outcome)
EXTREME = np.array([[1.0, 0.0], [0.0, 1.0], [1e-300, 1.0], [0.5, 0.5]])


def test_no_value_is_above_its_bound():
    labels = np.zeros(len(EXTREME), dtype=np.int64)
    losses = case_log_losses(labels, EXTREME)
    decisions = case_binary_log_losses(np.tile([True, False], (len(EXTREME), 1)), EXTREME)
    for values in (losses, decisions):
        assert values.max() == pytest.approx(MAX_LOG_LOSS)
    assert case_brier_scores(labels, EXTREME).max() == 2


@pytest.mark.parametrize(
    "metric", [metric for task in TASKS for metric in task.METRICS.values()], ids=lambda m: m.name
)
def test_every_mean_says_how_much_a_case_can_cost(metric):
    """By the metric itself: one case goes from 0 to the largest value that its name allows."""
    if metric.from_sums is not LOG_LOSS.from_sums:
        return
    most = {"log_loss": MAX_LOG_LOSS, "brier": 2.0}.get(metric.name, 1.0)
    values = np.random.default_rng(0).gamma(0.2, 0.3, 200).clip(max=1)
    values[0] = 0
    before = metric.value(mean_sums(values))
    values[0] = most
    change = metric.value(mean_sums(values)) - before
    assert metric.costliest_case([mean_sums(values)]).effect == pytest.approx(change)


def typical_case(values) -> CostliestCase:
    """The earlier rule: sum v^3 / sum v^2, which is the baseline's typical bad case."""
    return CostliestCase(
        float((values**3).sum() / (values**2).sum()) / len(values), None, len(values)
    )


def false_equivalence(n: int, share: float, nats: float, *, bounded: bool) -> float:
    """The probability of "equivalent" where a share of the cases is lost by so much at each seed.

    The margin is what is lost in the mean.
    """
    generator = np.random.default_rng(0)
    values = generator.gamma(0.3, 1.0, n)
    noise = generator.normal(0, 0.01, (5, n))
    total = 0.0
    for lost in range(int(stats.binom.ppf(0.999, n, share)) + 1):
        arm = values + noise
        arm[:, :lost] += nats
        jackknife = jackknife_differences(
            [mean_sums(row) for row in arm], [mean_sums(values)] * 5, LOG_LOSS
        )
        if not bounded:
            jackknife = replace(jackknife, costliest=typical_case(values))
        p_value = estimate_difference(jackknife).p_equivalence(share * nats)
        total += stats.binom.pmf(lost, n, share) * (p_value <= 0.05)
    return total


CASES = [(1000, 0.001, 30.0), (1000, 0.002, 12.0), (5000, 0.001, 30.0), (300, 0.01, 36.0)]


@pytest.mark.parametrize(("n", "share", "nats"), CASES)
def test_rare_large_losses_are_not_called_equivalent(n, share, nats):
    assert false_equivalence(n, share, nats, bounded=True) <= 0.05


def test_with_the_typical_bad_case_they_were():
    """Negative control: the rates that were found from outside."""
    assert false_equivalence(1000, 0.001, 30.0, bounded=False) > 0.3
    assert false_equivalence(1000, 0.002, 12.0, bounded=False) > 0.1


def test_equivalence_in_log_loss_is_possible_with_many_cases():
    """108 nats over the margin: 10,796 cases exclude a mean loss of 0.01."""
    needed = int(np.ceil(np.log(0.05) / np.log1p(-0.01 / MAX_LOG_LOSS)))
    assert needed == pytest.approx(10_796, abs=2)
    for n, is_equivalent in ((needed + 1, True), (needed - 100, False)):
        values = [mean_sums(np.full(n, 0.25))] * 3
        estimate = estimate_difference(jackknife_differences(values, values, LOG_LOSS))
        assert (estimate.p_equivalence(0.01) <= 0.05) == is_equivalent
    assert BRIER.costliest_case([mean_sums(np.ones(600))]).effect == pytest.approx(2 / 600)
