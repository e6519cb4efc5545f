"""A small run of the calibration: levels hold, and the pooled McNemar test does not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "interval_calibration.py"
COMPARISONS = 300


@pytest.fixture(scope="module")
def calibration():
    sys.path.insert(0, str(SCRIPT.parent))  # as where the script is started
    spec = importlib.util.spec_from_file_location("interval_calibration", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPT.parent))
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def cells(calibration):
    points = (
        # seeds, examples, metric, mode x seed, mode x example, residual
        calibration.Cell(3, 200, "accuracy", 0.0, 0.0, 0.1),
        calibration.Cell(5, 200, "accuracy", 0.1, 0.4, 0.1),
        calibration.Cell(5, 200, "macro_f1", 0.0, 0.4, 0.4),
    )
    return [calibration.run_cell(cell, comparisons=COMPARISONS, seed=0) for cell in points]


def test_levels_hold(calibration, cells):
    outcome = calibration.outcome(cells, COMPARISONS)
    assert outcome["cells"] == 3
    assert outcome["cells_over_false_alarms"] == 0
    assert outcome["cells_over_false_equivalence"] == 0
    assert outcome["cells_under_coverage"] == 0


def test_intervals_are_no_wider_than_they_must_be(cells):
    """Mean V over the true variance: a formula that counts a part twice is far above this."""
    assert all(0.85 < cell["variance_over_true"] < 1.9 for cell in cells), cells


def test_controls_fail(calibration, cells):
    controls = calibration.outcome(cells, COMPARISONS)["controls"]
    assert controls["pooled_mcnemar"]["worst_false_alarms"] > 0.2
    assert controls["examples_alone"]["cells_over"] > 0
    assert controls["seeds_alone"]["cells_over"] > 0


def test_the_true_difference_is_what_was_set(calibration):
    """By a large sample: mode x seed and mode x example move the mode's thresholds."""
    cell = calibration.Cell(40, 20_000, "macro_f1", 0.1, 0.4, 0.4)
    first, seconds = calibration.thresholds(cell)
    drawn = calibration.draw(cell, np.random.default_rng(0))
    for loss, second in zip(calibration.LOSSES, seconds, strict=True):
        jackknife, _ = calibration.one_comparison(cell, drawn, first, second)
        error = jackknife.per_seed.std(ddof=1) / 40**0.5 + max(jackknife.covariance, 0) ** 0.5
        assert abs(jackknife.per_seed.mean() + loss) < 3 * error
        assert error < 0.005
