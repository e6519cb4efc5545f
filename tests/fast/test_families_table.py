"""The table of docs/speed.md: what it claims, and that it is the one that the command writes."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def load():
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))  # as where the script is started
    try:
        return importlib.import_module("families")
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in set(sys.modules) - before:
            if (BENCHMARKS / f"{name}.py").exists():
                del sys.modules[name]


families = load()
SIZE = families.Size(layers=2, hidden=64, vocabulary=300)
RESULTS = json.loads((BENCHMARKS / "results" / "families.json").read_text())["families"]
PADDED = {"DeBERTa", "BigBird", "Longformer", "FNet", "ConvBERT"}


@pytest.mark.parametrize("name", sorted(set(families.CASES) - PADDED))
def test_a_family_without_padding_equals_single_texts(name):
    result = families.errors(families.CASES[name], SIZE)
    assert result["padding_free"]
    assert result["logits_error"] <= families.LOGITS_LIMIT
    assert result["gradient_error"] <= families.GRADIENT_LIMIT


@pytest.mark.parametrize("name", sorted(PADDED))
def test_a_family_with_padding_is_named(name):
    result = families.errors(families.CASES[name], SIZE)
    assert not result["padding_free"]
    assert (result["padded_logits_error"] > 1e-4) == (name in ("FNet", "ConvBERT"))


def test_the_table_is_the_one_that_the_command_writes():
    assert list(RESULTS) == list(families.CASES)
    assert families.table(RESULTS) in (ROOT / "docs" / "speed.md").read_text()
    supported = [row for row in RESULTS.values() if row["padding_free"]]
    assert len(supported) >= 18
    for row in supported:
        assert row["logits_error"] <= families.LOGITS_LIMIT
        assert row["gradient_error"] <= families.GRADIENT_LIMIT
