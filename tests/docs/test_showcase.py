"""The page on bf16 and fp32 quotes the stored results."""

from __future__ import annotations

import json

import pytest
from running import REPOSITORY


def signed(points: float) -> str:
    return f"{100 * points:+.1f}".replace("-", "\u2212")


@pytest.mark.parametrize(("name", "examples"), [("SST-2", 1821), ("MRPC", 1725)])
def test_the_page_has_the_stored_numbers(name, examples):
    file = REPOSITORY / f"benchmarks/results/showcase-{name.lower().replace('-', '')}.json"
    stored = json.loads(file.read_text("utf-8"))
    whole = (REPOSITORY / "docs" / "showcase.md").read_text(encoding="utf-8")
    page = whole.partition(f"\n{name}:\n\n")[2].partition("\n\n")[0]
    assert (len(stored["seeds"]), stored["examples"], stored["margin"]) == (10, examples, 0.01)
    means = {name: f"{100 * mean:.1f}" for name, mean in stored["means"].items()}
    low, high = map(signed, stored["interval95"])
    difference = f"{signed(stored['estimate'])} ({low} to {high})"
    assert f"| fp32 | {means['fp32']} | | |" in page
    assert f"| bf16 | {means['bf16']} | {difference} | {stored['outcome']} |" in page
    least, most = signed(min(stored["per_seed"])), signed(max(stored["per_seed"]))
    assert f"by {least} to {most} points on {name}" in whole
