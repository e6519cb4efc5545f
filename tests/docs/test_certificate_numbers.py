"""Every number that the page on certificates quotes follows from the stored results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "certificate.md").read_text(encoding="utf-8")
NAMES = {
    "faithful, float32": "float32",
    "faithful, float16": "float16",
    "faithful, int8": "int8",
    "faithful, coarse int8": "coarse int8",
    "loses the margin": "margin",
    "loses the margin in one class": "margin in one class",
    "rarest class broken": "class",
    "two labels swapped": "labels",
    "3 % of the examples truncated": "truncation",
    "another training, as good": "stale",
    "kernel that depends on the batch": "batch",
}


@pytest.fixture(scope="module")
def gate():
    return json.loads((RESULTS / "certificate-gate.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("title", NAMES)
def test_the_table_is_that_of_the_simulation(title, gate):
    rows = [row for row in gate["summary"] if row["artifact"] == NAMES[title]]
    (row,) = [row for row in rows if row["is_faithful"] or row["precision"] == "int8"]
    parts = ("mean_failed", "mean_undecided", "mean_passed", "usual_gate_failed")
    shares = " | ".join(f"{row[part]:.1f} %" for part in parts)
    assert f"| {title} | {shares} |" in PAGE


def test_the_number_of_artifacts_is_that_of_the_simulation(gate):
    assert f"{sum(cell['artifacts'] for cell in gate['settings']):,} simulated artifacts" in PAGE


def test_the_planted_faults_are_those_of_the_benchmark():
    stored = json.loads((RESULTS / "certificate-catches.json").read_text(encoding="utf-8"))
    faulty = [each for each in stored["artifacts"] if not each["is_faithful"]]
    faithful = [each for each in stored["artifacts"] if each["is_faithful"]]
    assert {each["verdict"] for each in faulty} == {"failed"}
    assert {(each["verdict"], each["usual_gate"]) for each in faithful} == {("passed", "passed")}
    usual = sum(each["usual_gate"] == "failed" for each in faulty)
    text = " ".join(PAGE.split())
    assert f"The certificate fails all {len(faulty)}, and the usual gate {usual};" in text
