"""The page on few labels quotes the stored results."""

from __future__ import annotations

import json

from running import REPOSITORY

from ampft.text.numbers import points


def test_the_page_has_the_stored_numbers():
    stored = json.loads((REPOSITORY / "benchmarks/results/few-labels.json").read_text("utf-8"))
    page = (REPOSITORY / "docs" / "showcase.md").read_text(encoding="utf-8")
    assert (stored["design"]["draws"], stored["design"]["test_rows"]) == (10, 500)
    assert len(stored["sets"]) == 3
    for name, found in stored["sets"].items():
        rows = [*found["systems"].values(), *found["published"].values()]
        assert len(rows) == 5, name
        for row in rows:
            assert f"| {100 * row['mean']:.1f} ± {100 * row['sd']:.1f} |" in page, name
        for row in found["systems"].values():
            if "verdict" in row:
                low, high = (points(end) for end in row["interval_95"])
                difference = points(row["difference_to_frozen"])
                assert f"| {difference} ({low} to {high}), {row['verdict']} |" in page, name
