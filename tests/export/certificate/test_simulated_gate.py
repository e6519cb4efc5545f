"""A small run of the simulation of the gate: faithful artifacts rarely fail, faults do not pass."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.slow
def test_the_gate_keeps_its_level(monkeypatch):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # as where the script is started
    simulation = importlib.import_module("certificate_gate")
    for name in set(sys.modules) - before:
        if (BENCHMARKS / f"{name}.py").exists():
            monkeypatch.delitem(sys.modules, name)
    cells = simulation.simulate(1000, simulation.SUPPORTS[1], 6, 0, 0)
    assert {cell["artifact"] for cell in cells} == {*simulation.FAITHFUL, *simulation.FAULTY}
    by_kind = {(cell["artifact"], cell["precision"]): cell for cell in cells}
    for cell in cells:
        if cell["is_faithful"]:
            assert cell["failed"] <= 100 * 3 / 6  # of 6 at 5 %; more have a probability of 0.01 %
        elif cell["precision"] == "fp32":
            assert cell["failed"] == 100
    for fault in ("class", "labels", "lower case", "batch"):
        assert by_kind[fault, "int8"]["passed"] == 0
    # Negative control: the usual gate, which sees 100 rows, lets lost margins pass.
    assert by_kind["margin", "int8"]["usual_gate_failed"] < 90
    assert by_kind["margin", "int8"]["passed"] <= 100 * 3 / 6
