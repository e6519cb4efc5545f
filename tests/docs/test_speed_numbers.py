"""The speeds that README and docs/speed.md quote follow from the stored measurements."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
PAGE, *_ = (ROOT / "docs/speed.md").read_text(encoding="utf-8").split("## Model families")
SYSTEMS = ("trainer", "trainer (tuned)", "accelerate loop")
LONG = 512  # tokens at most, of the case that the page also leaves out


@pytest.fixture(scope="module")
def stored():
    return json.loads((ROOT / "benchmarks/results/speed.json").read_text(encoding="utf-8"))


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def cell(result: dict) -> str:
    least, greatest = result["ampft_times_faster_range"]
    return f"{number(result['ampft_times_faster'])} ({number(least)} to {number(greatest)})"


def geometric_mean(cases: list[dict], system: str) -> tuple[str, int]:
    ratios = [c["systems"][system]["ampft_times_faster"] for c in cases if system in c["systems"]]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return number(mean), len(ratios)


def test_the_table_has_the_stored_speeds(stored):
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ")][2:]
    shown = Counter(re.sub(r"\s+", " ", text.strip()) for row in rows for text in row[3:6])
    shown = Counter({text: count for text, count in shown.items() if re.match(r"[\d.]+ \(", text)})
    measured = Counter(
        cell(case["systems"][name])
        for case in stored
        for name in SYSTEMS
        if name in case["systems"]
    )
    assert shown
    assert not shown - measured


def test_the_means_are_those_of_all_stored_cases(stored):
    trainer, count = geometric_mean(stored, "trainer")
    without_long, _ = geometric_mean([c for c in stored if c["max_length"] != LONG], "trainer")
    tuned, tuned_count = geometric_mean(stored, "trainer (tuned)")
    loop, loop_count = geometric_mean(stored, "accelerate loop")
    text = " ".join(PAGE.split())
    assert (
        f"{trainer} times the Trainer's defaults ({count} cases; {without_long} without the case "
        f"of {LONG} tokens), {tuned} times the tuned Trainer ({tuned_count}), {loop} times "
        f"Accelerate's loop ({loop_count})"
    ) in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "README.md",
            ("**{} times** the tuned Trainer", "({} to {}) in bf16, ", "{} % of its memory"),
        ),
        (
            "README.zh-CN.md",
            ("调优后的 Trainer 的 **{} 倍**", "（{}～{} 倍），bf16", "内存占用为其 {} %"),
        ),
    ],
)
def test_the_first_line_of_readme(stored, name, words):
    systems = stored[0]["systems"]
    assert (stored[0]["case"], stored[0]["mode"]) == ("docstrings", "bf16")
    result = systems["trainer (tuned)"]
    share = median(systems["ampft"]["peak_bytes"]) / median(result["peak_bytes"])
    ratio, least, greatest = re.findall(r"[\d.]+", cell(result))
    text = (ROOT / name).read_text(encoding="utf-8")
    assert words[0].format(ratio) in text
    assert words[1].format(least, greatest) in text
    assert words[2].format(f"{100 * share:.0f}") in text
