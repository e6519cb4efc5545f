"""The page on bf16 and fp32 quotes the stored results."""

from __future__ import annotations

import json

from running import REPOSITORY


def signed(points: float) -> str:
    return f"{100 * points:+.1f}".replace("-", "\u2212")


def test_the_page_has_the_stored_numbers():
    stored = json.loads((REPOSITORY / "benchmarks/results/showcase-sst2.json").read_text("utf-8"))
    page = (REPOSITORY / "docs" / "showcase.md").read_text(encoding="utf-8")
    assert (len(stored["seeds"]), stored["examples"], stored["margin"]) == (10, 1821, 0.01)
    means = {name: f"{100 * mean:.1f}" for name, mean in stored["means"].items()}
    low, high = map(signed, stored["interval95"])
    difference = f"{signed(stored['estimate'])} ({low} to {high})"
    assert f"| fp32 | {means['fp32']} | | |" in page
    assert f"| bf16 | {means['bf16']} | {difference} | {stored['outcome']} |" in page
    least, most = signed(min(stored["per_seed"])), signed(max(stored["per_seed"]))
    assert f"Single seeds differ by {least} to {most} points" in page
