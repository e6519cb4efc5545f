"""A small run of the simulation of choosing an arm: other seeds leave the gain unbiased."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_the_gain_of_a_chosen_arm(monkeypatch):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # as where the script is started
    simulate = importlib.import_module("selection").simulate
    for name in set(sys.modules) - before:
        if (BENCHMARKS / f"{name}.py").exists():
            monkeypatch.delitem(sys.modules, name)
    result = simulate(5, 0.15, (1000, 600), 80)
    bias, error = result["bias_points"], result["bias_standard_error"]
    assert abs(bias["other seeds"]) < 3 * error["other seeds"]
    assert result["alarms"]["other seeds"] < 5 + 3 * 2.5
    # Negative controls: choices that see the runs whose gain they report.
    assert bias["test"] > 5 * error["test"]
    assert bias["same seeds"] > 5 * error["same seeds"]
