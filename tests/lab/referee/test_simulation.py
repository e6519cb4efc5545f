"""A small run of the simulation of sequences, whose estimates are those of a comparison."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.metrics.sums import ACCURACY, MACRO_F1, single_label_sums

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def simulation(monkeypatch):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # as where the script is started
    found = importlib.import_module("judge_simulation")
    for name in set(sys.modules) - before:
        if (BENCHMARKS / f"{name}.py").exists():
            monkeypatch.delitem(sys.modules, name)
    return found


@pytest.mark.parametrize(("classes", "metric"), [(2, ACCURACY), (5, MACRO_F1)])
def test_its_estimates_are_those_of_a_comparison(simulation, monkeypatch, classes, metric):
    seen = []

    def single_label(labels, predicted, number):
        seen.append(single_label_sums(labels, predicted, number))
        return seen[-1]

    setting = simulation.Setting(classes, 200, 4, 0.02, "climber")
    world = simulation.World(setting, np.random.default_rng(0))
    if classes == 2:  # the same predictions, drawn again with the same generator
        sides = []
        for seed in (1, 2):
            world.generator = np.random.default_rng(seed)
            models = world.trained(world.best.right)
            right = models.left_out < models.values[:, None]  # leaving out a right row lowers it
            predicted = np.where(right, world.labels, world.confused)
            sides.append((models, [single_label_sums(world.labels, p, 2) for p in predicted]))
    else:
        monkeypatch.setattr(simulation, "single_label_sums", single_label)
        sides = []
        for _ in range(2):
            seen.clear()
            sides.append((world.trained(world.best.right), list(seen)))
    (candidate, of_candidate), (best, of_best) = sides
    fast = simulation.estimate_of(candidate, best)
    slow = estimate_of_sums(of_candidate, of_best, metric)
    for name in ("estimate", "seed_variance", "jackknife_variance", "jackknife_covariance"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name), rel=1e-9, abs=1e-12)
    assert fast.min_variance == pytest.approx(slow.min_variance)


@pytest.mark.slow
def test_a_voter_fools_an_open_ledger_and_not_a_sealed_one(simulation, monkeypatch):
    monkeypatch.setattr(simulation, "TRIES", 60)
    monkeypatch.setattr(simulation, "VOTES", 50)
    setting = simulation.Setting(2, 500, 5, 0.01, "voter")
    keeps = {
        method: sum(simulation.simulate_sequence(setting, method, k).false_keeps for k in range(8))
        for method in (simulation.SEALED, simulation.EACH, simulation.HIGHER)
    }
    assert keeps[simulation.SEALED] <= 2
    assert keeps[simulation.EACH] >= 6
    assert keeps[simulation.HIGHER] >= 40
