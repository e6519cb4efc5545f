"""Runs with a label per word, compared with intervals over sentences."""

from __future__ import annotations

import numpy as np
import pytest
from run_folders import SEEDS, check_interval, write_outcomes

from ampft.comparison.analysis.compare import compare_folders
from ampft.comparison.report.files import write_comparison
from ampft.comparison.report.terminal import terminal_text
from ampft.data.tags import bio_tags
from ampft.tasks.token_labels import METRICS, TokenPredictions

TYPES = ("place", "person")
TAGS = bio_tags(TYPES)
N = 120


def outcome(seed: int) -> TokenPredictions:
    """Return predictions that are wrong for a tenth of the words."""
    generator = np.random.default_rng(0)
    counts = generator.integers(3, 12, N)
    labels = generator.choice(len(TAGS), counts.sum(), p=[0.6, 0.15, 0.05, 0.15, 0.05])
    errors = np.random.default_rng(seed)
    is_wrong = errors.random(len(labels)) < 0.1
    predicted = np.where(is_wrong, errors.integers(0, len(TAGS), len(labels)), labels)
    shares = np.full((len(labels), len(TAGS)), 0.05, dtype=np.float32)
    shares[np.arange(len(labels)), predicted] = 0.8
    return TokenPredictions(labels, counts, shares, TAGS, "test")


@pytest.fixture
def outcomes():
    return {
        "fp32": [outcome(seed) for seed in SEEDS],
        "bf16": [outcome(-seed % 99) for seed in SEEDS],
    }


@pytest.fixture
def folders(outcomes, tmp_path):
    return write_outcomes(tmp_path, outcomes, task="tokens")


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_has_an_interval(folders, outcomes, metric):
    check_interval(folders, outcomes, metric)


def test_types_are_compared_and_flips_name_entities(folders, outcomes, tmp_path):
    comparison = compare_folders(folders)
    assert comparison.metric == "micro_f1"
    assert comparison.examples == N
    arm = comparison.arm("bf16")
    assert [row.name for row in arm.classes] == list(TYPES)
    for index, figures in enumerate(arm.classes):
        own, base = (
            np.mean([each.scores()[index].f1 for each in outcomes[name]])
            for name in ("bf16", "fp32")
        )
        assert figures.difference.estimate == pytest.approx(own - base)
    matrix = np.array(arm.confusion)
    assert matrix.shape == (2, 2)
    assert matrix.trace() > 0.8 * matrix.sum()
    flipped = [example.arm for example in arm.flips.examples]
    assert any("place " in text or "person " in text for text in flipped)
    assert "micro F1" in terminal_text(comparison)
    write_comparison(comparison, tmp_path / "report")
    html = (tmp_path / "report" / "comparison.html").read_text(encoding="utf-8")
    assert "person" in html
