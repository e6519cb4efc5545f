"""Runs whose predictions are masks, compared with intervals over images."""

from __future__ import annotations

import numpy as np
import pytest
from representatives import full_except
from run_folders import SEEDS, assert_has_interval, write_outcomes

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.media.pixel_outcome import BINS, METRICS, PixelPredictions
from ampft.runs.record import DataPart

NAMES = ("ground", "car", "tree")
N, PIXELS = 40, 200


def outcome(seed: int) -> PixelPredictions:
    """Return predictions that are wrong for about a tenth of the pixels of each image."""
    labelled = np.random.default_rng(0).multinomial(PIXELS, [0.6, 0.1, 0.3], size=N)
    errors = np.random.default_rng(seed)
    counts = np.zeros((N, 3, 3), dtype=np.int64)
    for label in range(3):
        shares = np.full(3, 0.05)
        shares[label] = 0.9
        counts[:, label] = errors.multinomial(labelled[:, label], shares)
    losses = PIXELS * errors.uniform(0.2, 0.4, (N, 2))
    digests = errors.integers(0, 2**62, N)
    return PixelPredictions(counts, losses, np.zeros((N, 3, BINS)), digests, NAMES, "test")


@pytest.fixture
def outcomes():
    return {
        "fp32": [outcome(seed) for seed in SEEDS],
        "bf16": [outcome(seed + 100) for seed in SEEDS],
    }


@pytest.mark.slow
@pytest.mark.parametrize("metric", full_except(METRICS, ["mean_iou", "log_loss"]))
def test_every_metric_has_an_interval(outcomes, metric, tmp_path):
    assert_has_interval(write_outcomes(tmp_path, outcomes, task="pixels"), outcomes, metric)


@pytest.mark.slow
def test_without_a_correct_mask_no_subgroup_is_said_to_lose_nothing(outcomes, tmp_path):
    """An image is correct as a whole if every pixel is, so that no difference could be seen."""
    data = DataPart(name="x", kind="pixels", input_columns=("image",), fingerprints={},
                    examples={"train": 9, "test": N})  # fmt: skip
    comparison = compare_folders(write_outcomes(tmp_path, outcomes, task="pixels", data=data))
    assert [arm.subgroups for arm in comparison.arms] == [None, None]
