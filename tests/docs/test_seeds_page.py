"""The page on what seeds hide has the tables of the stored results."""

from __future__ import annotations

import json

from running import REPOSITORY
from seeds import ARMS, markdown


def test_the_page_has_the_stored_tables():
    stored = json.loads((REPOSITORY / "benchmarks/results/seeds.json").read_text("utf-8"))
    page = (REPOSITORY / "docs" / "showcase.md").read_text(encoding="utf-8")
    assert stored["arms"].keys() == ARMS.keys()
    assert markdown(stored) in page
    design = stored["design"]
    numbers = (
        f"{design['train_rows']} sentences, {design['test_rows']} test sentences, "
        f"{stored['seeds']} seeds"
    )
    assert numbers in page
    for arm in ARMS:  # the sentences on single seeds
        lowest, highest = (100 * pick(stored["arms"][arm]["per_seed"]) for pick in (min, max))
        assert f"{lowest:.1f} to {highest:.1f} %" in page
