"""What a comparison can show is said before its first run, and refused if it is nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from planned import ESTIMATE, plan

from ampft.arguments import parse_compare_arguments
from ampft.arguments.compare_arms import parse_compare_arms_arguments
from ampft.comparison.execution import planning
from ampft.comparison.execution.plan import KIND_OF_LABELS, TrialResult
from ampft.comparison.execution.plan_text import plan_lines
from ampft.comparison.execution.planning import plan_comparison
from ampft.comparison.statistics.interval import estimate_difference, jackknife_differences
from ampft.comparison.statistics.power import detection_limits
from ampft.comparison.statistics.verdict import decide
from ampft.errors import InputError
from ampft.metrics.sums import ACCURACY, MACRO_F1, single_label_sums


def verdicts(cases, lost, *, seeds, arms, margin=0.01, metric=ACCURACY):
    """The verdicts on arms that lose the same cases at every seed."""
    labels = np.arange(cases) % 2
    predicted = np.where(np.arange(cases) < lost, 1 - labels, labels)
    sides = [single_label_sums(labels, each, 2) for each in (predicted, labels)]
    estimate = estimate_difference(
        jackknife_differences(*([each] * seeds for each in sides), metric)
    )
    found = decide({str(arm): estimate for arm in range(arms)}, margin=margin)
    return {str(decision.verdict) for decision in found.values()}


@pytest.mark.parametrize(("seeds", "arms", "margin"), [(5, 1, 0.01), (5, 2, 0.01), (10, 3, 0.03)])
def test_fewer_cases_than_needed_are_undecided_with_any_number_of_seeds(seeds, arms, margin):
    found = detection_limits(
        1000, seeds=seeds, arms=arms, margin=margin, alpha=0.05, metric="accuracy"
    )
    cases = found.cases_needed
    assert verdicts(cases, 0, seeds=seeds, arms=arms, margin=margin) == {"equivalent"}
    assert verdicts(cases - 1, 0, seeds=60, arms=arms, margin=margin) == {"undecided"}
    needed = detection_limits(
        cases, seeds=seeds, arms=arms, margin=margin, alpha=0.05, metric="accuracy"
    )
    assert needed.is_equivalence_possible
    assert needed.margin_needed <= margin


@pytest.mark.parametrize("cases", [34, 80, 300, 648])
def test_the_smallest_difference_is_found_and_a_smaller_one_is_not(cases):
    found = detection_limits(cases, seeds=3, arms=2, margin=0.01, alpha=0.05, metric="accuracy")
    lost = round(found.smallest_difference * cases)
    assert "undecided" not in verdicts(cases, lost, seeds=3, arms=2)
    assert not any("worse" in each for each in verdicts(cases, lost - 1, seeds=3, arms=2))


def test_macro_f1_is_not_refused_where_it_can_be_decided():
    found = detection_limits(320, seeds=5, arms=1, margin=0.02, alpha=0.05, metric="macro_f1")
    assert verdicts(320, 0, seeds=5, arms=1, margin=0.02, metric=MACRO_F1) == {"equivalent"}
    assert found.cases >= found.cases_needed


def test_very_few_cases_show_nothing():
    for cases in (1, 5):
        found = detection_limits(cases, seeds=3, arms=1, margin=0.01, alpha=0.05, metric="accuracy")
        assert (found.smallest_difference, found.is_equivalence_possible) == (None, False)


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """A function that plans a comparison whose test data have a number of cases."""

    def make(cases, *words, parse=parse_compare_arguments):
        compared = {"reported split": "test", KIND_OF_LABELS: "single_label"}
        estimate = replace(ESTIMATE, cases=cases)
        trial = TrialResult(estimate, ("fp32", "bf16"), splits={}, compared=compared)
        monkeypatch.setattr(planning, "run_trial", lambda *_: trial)
        return plan_comparison(parse([*words, "--output_dir", str(tmp_path / "cmp")]))[1]

    return make


def test_a_comparison_of_modes_with_80_test_rows_is_refused(planned, tmp_path):
    message = (
        "test has 80 independent examples, and no number of seeds can show equivalence within "
        "1 point (--margin) with fewer than 299; at best, only a loss of 5 points or more can be "
        "found. Use more test data, or add one of these before ` -- `: --folds 5 (without a test "
        "split: every row is then a test row), --margin 3.7, or --anyway to look only for large "
        "losses."
    )
    with pytest.raises(InputError, match=re.escape(message)):
        planned(80, "--modes", "fp32,bf16", "--seeds", "3")
    assert not (tmp_path / "cmp").exists()
    for flag in (("--anyway",), ("--margin", "3.7"), ("--metric", "log_loss")):
        assert planned(80, "--modes", "fp32,bf16", "--seeds", "3", *flag).estimate.cases == 80
    assert planned(648, "--modes", "fp32,bf16")


def test_folds_are_refused_if_all_of_them_are_too_few(planned):
    words = ("--modes", "fp32,bf16", "--seeds", "3", "--folds", "5")
    message = "All 5 folds have 250 independent examples, and no number of seeds can show"
    with pytest.raises(InputError, match=message) as refused:
        planned(50, *words)
    assert "--folds" not in str(refused.value)
    assert planned(60, *words).estimate.cases == 60  # 300 in all
    assert planned(50, *words, "--anyway").estimate.cases == 50


def test_other_settings_may_differ_by_more_and_are_refused_only_if_nothing_can_be_found(planned):
    words = ("--arm", "a", "--arm", "b: --learning_rate 1")
    assert planned(80, *words, parse=parse_compare_arms_arguments)
    with pytest.raises(InputError, match="at best, no loss can be found"):
        planned(5, *words, parse=parse_compare_arms_arguments)


@pytest.mark.parametrize(
    ("cases", "changes", "words"),
    [
        (648, {}, "648 independent examples and 3 seeds, at best: equivalence within 1 point, and "
                  "a loss of 0.62 points or more in accuracy"),
        (80, {}, "80 independent examples and 3 seeds, at best: no equivalence within 1 point (it "
                 "takes 299 examples), and a loss of 5 points or more in accuracy"),
        (1000, {"margin": 0.03, "metric": "macro_f1"}, "equivalence within 3 points, and a loss"),
    ],
)  # fmt: skip
def test_the_plan_says_what_can_be_shown(tmp_path, cases, changes, words):
    text = plan_lines(tmp_path, plan(estimate=replace(ESTIMATE, cases=cases), **changes), ())
    assert words in " ".join(text.split())


def test_an_unknown_number_of_cases_says_nothing(tmp_path):
    assert "can show" not in plan_lines(tmp_path, plan(), ())
