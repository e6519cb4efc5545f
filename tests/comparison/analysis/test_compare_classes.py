"""The difference in F1 of every class, with its interval: a loss in one class is seen."""

from __future__ import annotations

import numpy as np
import pytest
from run_folders import NAMES, SEEDS, labels, predicted, write_run, write_runs
from sklearn.metrics import f1_score

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.report.html import html_text
from ampft.comparison.report.report_files import markdown_text, terminal_text
from ampft.comparison.verdict_text import verdict_texts

EVERYWHERE = [[3 * seed, 3 * seed + 1, 3 * seed + 2] for seed in range(5)]
IN_YES = [range(1, 100, 3)] * 5  # half of the class "yes" becomes "maybe", at every seed


def compared(tmp_path, wrong, **settings):
    runs = write_runs(tmp_path, {"fp32": EVERYWHERE, **wrong})
    return compare_folders(runs, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["accuracy", "log_loss"])
def test_the_differences_are_those_of_scikit_learn(tmp_path, metric):
    comparison = compared(tmp_path, {"bf16": IN_YES, "placebo": EVERYWHERE}, metric=metric)
    for index, figures in enumerate(comparison.arm("bf16").classes):
        expected = np.mean(
            [
                f1_score(labels(), predicted(mine), average=None)[index]
                - f1_score(labels(), predicted(other), average=None)[index]
                for mine, other in zip(IN_YES, EVERYWHERE, strict=True)
            ]
        )
        assert figures.difference.estimate == pytest.approx(expected)
        assert figures.f1_difference == pytest.approx(expected)
        low, high = figures.difference.interval
        assert low < expected < high
    placebo = comparison.arm("placebo").classes[0].difference
    assert (placebo.p_difference, placebo.p_difference_holm) == (None, None)


@pytest.mark.slow
def test_a_loss_in_one_class_is_said_in_every_report(tmp_path):
    comparison = compared(tmp_path, {"bf16": IN_YES})
    (verdict,) = verdict_texts(comparison)
    assert "F1 falls beyond chance in class 'yes' -" in verdict.replace("\N{MINUS SIGN}", "-")
    assert "F1 falls beyond chance in class" in terminal_text(comparison)
    for text in (markdown_text(comparison), html_text(comparison)):
        assert "Difference in F1 to fp32 in points, with intervals" in text


@pytest.mark.slow
def test_equal_classes_are_not_said_to_fall(tmp_path):
    comparison = compared(tmp_path, {"bf16": EVERYWHERE[::-1]})
    assert "falls beyond chance" not in terminal_text(comparison)
    assert "Difference in F1 to fp32 in points, with intervals" in markdown_text(comparison)
    differences = [each.difference for each in comparison.arm("bf16").classes]
    assert all(each.p_difference_holm >= each.p_difference for each in differences)


@pytest.mark.slow
def test_holm_covers_all_classes_of_all_arms(tmp_path):
    comparison = compared(tmp_path, {"bf16": IN_YES, "fp16": EVERYWHERE[::-1]})
    found = [each.difference for name in ("bf16", "fp16") for each in comparison.arm(name).classes]
    smallest = min(found, key=lambda each: each.p_difference)
    assert smallest.p_difference_holm == pytest.approx(min(1.0, 6 * smallest.p_difference))


@pytest.mark.slow
def test_a_class_without_examples_has_no_difference(tmp_path):
    names = (*NAMES, "absent")
    runs = [
        write_run(tmp_path, mode, seed, predicted(range(seed - 40)), truth=labels(), names=names,
                  label_names=names)
        for mode in ("fp32", "bf16")
        for seed in SEEDS[:3]
    ]  # fmt: skip
    classes = compare_folders(runs).arm("bf16").classes
    assert classes[3].difference is None
    assert classes[0].difference is not None


def test_two_seeds_have_no_intervals(tmp_path):
    wrong = dict.fromkeys(("fp32", "bf16"), EVERYWHERE[:2])
    comparison = compare_folders(write_runs(tmp_path, wrong, seeds=SEEDS[:2]))
    assert all(each.difference is None for each in comparison.arm("bf16").classes)
