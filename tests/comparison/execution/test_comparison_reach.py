"""What a comparison can show is said before its first run, and refused if it is nothing."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from planned import ESTIMATE, plan
from running import rows, write_csv

from ampft.comparison.arm_settings import parse_compare_arms_arguments
from ampft.comparison.execution import trial
from ampft.comparison.execution.plan import TOO_FEW, FinalRows
from ampft.comparison.execution.plan_text import plan_lines
from ampft.comparison.execution.planning import check_final_rows
from ampft.comparison.settings import parse_compare_arguments
from ampft.comparison.statistics.interval import estimate_difference, jackknife_differences
from ampft.comparison.statistics.power import detection_limits
from ampft.comparison.statistics.verdict import decide
from ampft.errors import InputError
from ampft.metrics.sums import ACCURACY, MACRO_F1, single_label_sums
from ampft.text.json_io import json_values


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


def check(cases, *words, rows=None, arms=1, parse=parse_compare_arguments):
    """Check a comparison whose test data have a number of cases; the rest are training rows."""
    size = FinalRows(
        split="test", cases=cases, rows=rows or 5 * cases, problem="single_label", arms=arms
    )
    check_final_rows(parse([*words]), size)


def test_a_comparison_of_modes_with_80_test_rows_is_refused():
    message = (
        "test has 80 independent examples, and no number of seeds can show equivalence within "
        "1 point (--margin) with fewer than 299; at best, only a loss of 5 points or more can be "
        "found. Use more labelled data, or test on all 400 rows, with 5 times as many runs: ampft "
        "compare --seeds 3 --modes fp32,bf16 --folds 5 -- --train_file 'my reviews.csv' (or "
        "--anyway in its place, to find only large losses)"
    )
    words = ("--modes", "fp32,bf16", "--seeds", "3")
    with pytest.raises(InputError) as refused:
        check(80, *words, "--", "--train_file", "my reviews.csv")
    assert sorted(str(refused.value).split()) == sorted(message.split())
    for flag in (("--margin", "3.7"), ("--metric", "log_loss")):
        check(80, *words, *flag)
    check(299, *words)


@pytest.mark.parametrize(
    ("cases", "rows", "words", "command"),
    [
        # 290 rows are too few in folds, too.
        (58, 290, ("--", "--train_file", "a.csv"), "compare --margin 5.1 -- --train_file a.csv"),
        (80, 400, ("--", "--train_file", "a.csv", "--test_file", "b.csv"), "compare --margin 3.7"),
        (80, 400, ("--", "--train_file", "a.csv", "--test_fraction", "0.3"), "--margin 3.7"),
        (80, 400, ("--margin", "2", "--", "--dataset_name", "a"), "compare --margin 3.7 --"),
        (50, 250, ("--folds", "5", "--", "--train_file", "a.csv"), "--margin 1.2 --folds 5 --"),
    ],
)
def test_the_command_that_works_is_named(cases, rows, words, command):
    with pytest.raises(InputError) as refused:
        check(cases, *words, rows=rows)
    advised = str(refused.value).partition("ampft ")[2].partition(" (or ")[0].split()
    assert set(command.split()) <= {"compare", *advised}
    check(cases, *advised[1:], rows=rows)
    assert advised.count("--folds") == words.count("--folds")


def test_other_settings_may_differ_by_more_and_are_refused_only_if_nothing_can_be_found():
    words = ("--arm", "a", "--arm", "b: --learning_rate 1")
    check(80, *words, parse=parse_compare_arms_arguments)
    with pytest.raises(InputError, match=r"at best, no loss can be found.* train anyway: ampft"):
        check(5, *words, parse=parse_compare_arms_arguments)


@pytest.mark.slow
def test_too_few_rows_are_refused_before_anything_is_timed(
    tiny_bert, tmp_path, monkeypatch, fresh_accelerate
):
    def prepare(*_args: object, **_settings: object) -> None:
        raise AssertionError("a mode was prepared")

    monkeypatch.setattr(trial, "prepare_mode", prepare)
    file = write_csv(tmp_path / "reviews.csv", rows(400, 1), ("text", "label"))
    words = ("--train_file", str(file), "--model_name_or_path", str(tiny_bert))
    design = parse_compare_arguments(["--modes", "fp32,bf16", "--", *words]).design
    request = {"classify_argv": words, "modes": ["fp32", "bf16"], "launched": time.time()}
    found = trial.run_trial({**request, "design": json_values(design)})
    few = FinalRows(split="test", cases=80, rows=400, problem="single_label", arms=1)
    assert found == {TOO_FEW: few}
    for other in (None, json_values(replace(design, margin=0.04))):
        with pytest.raises(AssertionError, match="a mode was prepared"):
            trial.run_trial({**request, "design": other})


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
