"""Runs with any number of labels per example, compared with intervals like any other."""

from __future__ import annotations

import numpy as np
import pytest
from representatives import full_except
from run_folders import SEEDS, assert_has_interval, write_outcomes

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.findings import Comparison
from ampft.comparison.report.report_files import read_comparison, terminal_text, write_comparison
from ampft.labels.multi_label import METRICS, MultiLabelPredictions

NAMES = ("joy", "fear", "love", "pride")
N = 150


def outcome(seed: int, wrong: float) -> MultiLabelPredictions:
    """Return predictions of which a share `wrong` of the decisions is wrong."""
    labels = np.random.default_rng(0).random((N, len(NAMES))) < (0.5, 0.3, 0.2, 0.05)
    errs = np.random.default_rng(seed).random(labels.shape) < wrong
    return MultiLabelPredictions(
        labels, np.where(labels ^ errs, 0.8, 0.3).astype(np.float32), NAMES, "test"
    )


@pytest.fixture
def outcomes():
    return {
        "fp32": [outcome(seed, 0.1) for seed in SEEDS],
        "bf16": [outcome(seed + 100, 0.1) for seed in SEEDS],
    }


@pytest.fixture
def folders(outcomes, tmp_path):
    return write_outcomes(tmp_path, outcomes, task="multi-label")


@pytest.mark.slow
@pytest.mark.parametrize("metric", full_except(METRICS, ["micro_f1", "log_loss"]))
def test_every_metric_has_an_interval(folders, outcomes, metric):
    assert_has_interval(folders, outcomes, metric)


@pytest.mark.slow
def test_the_report_shows_labels_and_no_confusion(folders, tmp_path):
    comparison = compare_folders(folders)
    assert comparison.metric == "micro_f1"
    arm = comparison.arm("bf16")
    assert arm.confusion == ()
    assert [row.name for row in arm.classes] == list(NAMES)
    assert arm.calibration
    assert arm.flips is not None
    shown = {name for example in arm.flips.examples for name in example.label.split(", ")}
    assert shown <= {*NAMES, "(none)"}
    assert "micro F1" in terminal_text(comparison)
    target = tmp_path / "report"
    write_comparison(comparison, target)
    again = read_comparison(target)
    assert isinstance(again, Comparison)
    assert again.arm("bf16").difference == arm.difference
    for name in ("comparison.html", "comparison.md"):
        text = (target / name).read_text(encoding="utf-8")
        assert "micro F1" in text
        assert "pride" in text


@pytest.mark.slow
def test_every_label_has_an_interval(folders, outcomes):
    arm = compare_folders(folders).arm("bf16")
    for index, figures in enumerate(arm.classes):
        own, base = (
            np.mean([each.scores()[index].f1 for each in outcomes[name]])
            for name in ("bf16", "fp32")
        )
        assert figures.difference.estimate == pytest.approx(own - base)
        assert figures.difference.p_difference_holm >= figures.difference.p_difference
