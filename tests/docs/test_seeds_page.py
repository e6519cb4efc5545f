"""The page on what seeds hide has the tables of the stored results."""

from __future__ import annotations

import json
import sys

from running import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))
from seeds import ARMS, BASELINE, markdown


def test_the_page_has_the_stored_tables():
    stored = json.loads((REPOSITORY / "benchmarks/results/seeds.json").read_text("utf-8"))
    page = (REPOSITORY / "docs" / "seeds.md").read_text(encoding="utf-8")
    assert stored["arms"].keys() == ARMS.keys()
    assert markdown(stored) in page
    design = stored["design"]
    numbers = (
        f"{design['train_rows']} pairs, {design['test_rows']} test pairs, {stored['seeds']} seeds"
    )
    assert numbers in page
    # The sentence on the baseline, which predicts the majority class at every seed.
    assert stored["arms"][BASELINE]["sd"] == 0
    assert set(stored["arms"][BASELINE]["per_seed"]) == {stored["majority"]}
    assert f"majority class, {100 * stored['majority']:.1f} %" in page
