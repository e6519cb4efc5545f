"""The page on durations quotes the stored stopwatches: installation, first run, first tasks."""

from __future__ import annotations

import json
import re
from statistics import median

from running import REPOSITORY


def test_the_page_has_the_stored_seconds():
    stored = json.loads((REPOSITORY / "benchmarks/results/first-contact.json").read_text("utf-8"))
    page = (REPOSITORY / "docs" / "duration.md").read_text(encoding="utf-8")
    ampft, trainer = stored["turns"]["ampft"], stored["turns"]["trainer"]
    assert len(ampft) == len(trainer) == 5
    for event in ("first line", "first step", "report", "end"):
        medians = [f"{median(turn[event] for turn in turns):.1f}" for turns in (ampft, trainer)]
        assert f"| the {event} | {medians[0]} | {medians[1]} |" in page
    assert f"{ampft[0]['first step']:.1f} s to the first step" in page


def test_the_page_has_the_stored_installation():
    path = REPOSITORY / "benchmarks/results/install.json"
    figures = json.loads(path.read_text("utf-8"))["install"]
    page = " ".join((REPOSITORY / "docs" / "duration.md").read_text(encoding="utf-8").split())
    assert f"{figures['download_mb']} MB in {figures['wheels']} wheels" in page
    assert f"takes {figures['environment_mib']:,} MiB" in page
    assert f"download took {figures['download_s']:.0f} s" in page
    assert f"installation {figures['install_s']:.0f} s" in page
    assert f"`import ampft` {figures['import_s']:.1f} s" in page


def test_the_page_has_the_stored_seconds_of_the_first_tasks():
    stored = json.loads((REPOSITORY / "benchmarks/results/first-tasks.json").read_text("utf-8"))
    page = (REPOSITORY / "docs" / "duration.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| (\d+) \|.*\| (\d+) \|$", page, re.MULTILINE))
    assert shown == {task: f"{sum(seconds):.0f}" for task, seconds in stored["tasks"].items()}
    assert len(shown) == 10
