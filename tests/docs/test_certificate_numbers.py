"""Every number that the page on certificates quotes follows from the stored results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
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


KINDS = {
    "fp32": "fp32",
    "fp16": "fp16",
    "int8 blocks": "int8 in blocks",
    "int8 dynamic": "int8, dynamic",
    "int8 static": "int8, static",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_planted_faults_are_those_of_the_benchmark(kind):
    stored = json.loads((RESULTS / "certificate-catches.json").read_text(encoding="utf-8"))
    assert {each["kind"] for each in stored["artifacts"]} == set(KINDS)
    of_kind = [each for each in stored["artifacts"] if each["kind"] == kind]
    faulty = [each for each in of_kind if not each["is_faithful"]]
    faithful = [each for each in of_kind if each["is_faithful"]]
    cells = [_share(faithful, "verdict", "passed")]
    cells += [_share(faulty, part, "failed") for part in ("verdict", "usual_gate")]
    row = "".join(f"| {cell} ".replace("  ", " ") for cell in (KINDS[kind], *cells))
    assert f"{row}|" in PAGE


def _share(artifacts, part, expected) -> str:
    count = sum(each[part] == expected for each in artifacts)
    return f"{count} of {len(artifacts)}" if artifacts else ""
