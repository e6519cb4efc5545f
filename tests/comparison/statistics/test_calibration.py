"""A small run of the calibration: levels hold, and the pooled McNemar test does not."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from ampft.comparison.statistics.interval import jackknife_differences
from ampft.metrics.sums import ACCURACY, single_label_sums

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = (
    "simulated_seeds",
    "simulated_losses",
    "simulated_grid",
    "interval_methods",
    "interval_calibration",
)
COMPARISONS = 250

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def modules():
    sys.path.insert(0, str(BENCHMARKS))  # as where the script is started
    yield {name: importlib.import_module(name) for name in MODULES}
    sys.path.remove(str(BENCHMARKS))
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture(scope="module")
def calibration(modules):
    return modules["interval_calibration"]


@pytest.fixture(scope="module")
def cells(modules):
    latent, losses = modules["simulated_seeds"].Latent, modules["simulated_losses"]
    settings = (
        # seeds, examples, metric, mode x seed, mode x example, residual
        latent(3, 200, "accuracy", 0.0, 0.0, 0.1),
        latent(5, 200, "accuracy", 0.1, 0.4, 0.1),
        latent(5, 500, "accuracy", 0.1, 0.0, 0.1),
        latent(5, 200, "macro_f1", 0.0, 0.4, 0.4),
        # seeds, examples, accuracy, flips, certainty, mode x seed
        losses.Subgroup(10, 300, 0.97, 0.001, 1.0, 0.0),
        losses.RareClasses(5, "macro_f1", (250, 150, 91, 3, 3, 3), 0.95, 0.0),
        losses.GroupedDuplicates(5, 100, 10),
        losses.GroupedDuplicates(5, 200, 4, varies=True),
        losses.Duplicates(5, 100, 10),
        losses.BadSeeds(5, 1000),
    )
    run = modules["interval_calibration"].run_setting
    return [run(setting, comparisons=COMPARISONS, seed=0) for setting in settings]


@pytest.mark.full
def test_levels_hold(calibration, cells):
    outcome = calibration.outcome(cells)
    assert outcome["settings"] == 8
    now = outcome["now"]
    assert now["over_false_difference"] == 0
    assert now["over_false_equivalence"] == 0
    assert now["under_coverage"] == 0


@pytest.mark.full
def test_without_rare_losses_they_do_not(calibration, cells):
    families = calibration.outcome(cells)["families"]
    assert families["subgroup"]["without rare losses"]["worst_false_equivalence"] > 0.12
    assert families["subgroup"]["without rare losses"]["worst_coverage"] < 0.9
    assert families["rare classes"]["without rare losses"]["worst_coverage"] < 0.9
    assert families["latent"]["without rare losses"]["over_false_equivalence"] == 0


@pytest.mark.full
def test_what_is_not_held_to_a_level_is_seen_to_fail(calibration, cells):
    families = calibration.outcome(cells)["families"]
    assert families["duplicates"]["now"]["worst_false_difference"] > 0.12
    assert families["bad seeds"]["now"]["worst_false_equivalence"] > 0.3


@pytest.mark.full
def test_controls_fail(calibration, cells):
    controls = calibration.outcome(cells)["controls"]
    assert controls["pooled_mcnemar"]["worst_false_difference"] > 0.2
    assert controls["examples_alone"]["settings_over"] > 0
    assert controls["seeds_alone"]["settings_over"] > 0


def test_the_grid_has_what_its_text_says(modules):
    settings = modules["simulated_grid"].grid()
    assert len(set(map(repr, settings))) == len(settings) > 450
    logit = [each for each in settings if each.family == "logit"]
    assert {each.accuracy for each in logit} == {0.55, 0.75, 0.9, 0.97, 0.99, 0.999}
    assert {each.coupling for each in logit} == {0.0, 0.5, 0.9, 0.99}
    assert {each.examples for each in logit} >= {50, 5000}


def test_accuracy_is_computed_as_real_comparisons_are(calibration):
    generator = np.random.default_rng(0)
    arm, baseline = generator.random((2, 4, 60)) < 0.8
    labels = generator.integers(0, 2, 60)
    sides = (
        [single_label_sums(labels, np.where(row, labels, 1 - labels), 2) for row in rows]
        for rows in (arm, baseline)
    )
    wanted = jackknife_differences(*sides, ACCURACY)
    found = calibration.accuracy_differences(arm, baseline)
    np.testing.assert_allclose(found.per_seed, wanted.per_seed, atol=1e-12)
    np.testing.assert_allclose(found.pseudovalues, wanted.pseudovalues, atol=1e-12)
    for name in ("variance", "covariance", "cases", "case_effect"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-9)
    assert found.costliest.effect == pytest.approx(wanted.costliest.effect)
    assert found.costliest.label is wanted.costliest.label is None


def many(setting, modules, comparisons=1):
    """Mean differences over drawn comparisons, and their standard errors."""
    generator = np.random.default_rng(0)
    run = modules["interval_methods"].all_differences
    means = np.array(
        [
            [each.per_seed.mean() for each in run(setting, setting.draw(generator))]
            for _ in range(comparisons)
        ]
    )
    return means.mean(axis=0), means.std(axis=0) / np.sqrt(comparisons)


@pytest.mark.full
def test_the_true_difference_is_what_was_set(modules):
    """By many comparisons: mode x seed and mode x example move the mode's thresholds."""
    seeds, losses = modules["simulated_seeds"], modules["simulated_losses"]
    settings = (
        seeds.Latent(40, 2000, "macro_f1", 0.1, 0.4, 0.4),
        seeds.Logit(20, 5000, 0.97, "bimodal", 0.5, 0.2, 1.0),
        seeds.Logit(20, 5000, 0.75, "heavy", 0.0, 0.2, 1.0),
        losses.Subgroup(20, 1000, 0.85, 0.02, 0.5, 0.01),
        losses.RareClasses(5, "balanced_accuracy", (300, 100, 20), 0.95, 0.01),
        losses.GroupedDuplicates(20, 400, 3),
        losses.GroupedDuplicates(20, 400, 3, varies=True),
        losses.BadSeeds(40, 1000),
        losses.OffsetSubgroup(20, 1000, 4.0),
    )
    for setting in settings:
        mean, error = many(setting, modules, comparisons=30)
        assert (np.abs(mean - setting.differences()) < 3.5 * error + 1e-4).all(), setting
        assert error.max() < 0.01


def test_forecasts_are_checked(modules, calibration):
    setting = modules["simulated_seeds"].Latent(5, 500, "accuracy", 0.03, 0.0, 0.1)
    found = calibration.run_forecast(setting, comparisons=40, seed=0)
    assert set(found["undecided"]) == {"0", "-0.01", "-0.02", "-0.04"}
    assert len(found["decided_sooner"]) == len(found["undecided_later"]) > 0
    assert max(found["decided_sooner"].values()) < 0.3
    assert max(found["undecided_later"].values()) < 0.3
