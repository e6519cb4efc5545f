"""The page on the defaults quotes the stored results of the defaults."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import fields

from defaults import gains, page_rows, verdict
from running import REPOSITORY

from ampft.arguments import ClassifyArguments

FOLDER = REPOSITORY / "benchmarks" / "results"


def stored(name):
    return json.loads((FOLDER / name).read_text("utf-8"))["results"]


def test_the_page_has_the_rows_of_the_stored_results():
    page = (REPOSITORY / "docs" / "defaults.md").read_text(encoding="utf-8").splitlines()
    results = stored("defaults.json")
    rows = page_rows(results)
    assert len(rows) >= 13
    assert set(rows) <= set(page)
    changed = deepcopy(results)
    for row in changed:
        row["accuracy"] -= 0.01
    assert not set(page_rows(changed)) & set(page)


def test_the_page_of_settings_has_only_what_is_left_to_choose():
    page = (REPOSITORY / "docs" / "hyperparameters.md").read_text(encoding="utf-8")
    settings = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(settings) == 6
    known = {f"--{each.name}" for each in fields(ClassifyArguments)}
    assert {word for each in settings for word in each.split() if word[:2] == "--"} <= known
    assert len(page.split()) <= 1_300, "what the defaults do, and folds, have their own pages"


def test_the_gains_are_those_of_the_rows_and_of_the_runs():
    results = stored("defaults.json")
    found = gains(results).set_index(["set", "size", "arm"])["gain"]
    by_cell = {(r["set"], r["size"], r["seed"], r["arm"]): r for r in results}
    draws = {key[2] for key in by_cell}
    checked = 0
    for (name, size, arm), gain in found.items():
        pairs = [
            (by_cell[name, size, draw, arm], by_cell[name, size, draw, "default"])
            for draw in draws
            if (name, size, draw, arm) in by_cell and (name, size, draw, "default") in by_cell
        ]
        expected = sum(a["accuracy"] - b["accuracy"] for a, b in pairs) / len(pairs)
        assert abs(gain - expected) < 2e-4, (name, size, arm)
        checked += 1
    assert checked > 30


def test_a_verdict_is_about_the_default():
    assert verdict(-0.05, -0.01) == "better"
    assert verdict(0.01, 0.05) == "worse"
    assert verdict(-0.005, 0.005) == "as good"
    assert verdict(-0.05, 0.005) == "undecided"
