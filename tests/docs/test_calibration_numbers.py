"""Every number that the documentation quotes from the calibration follows from the stored file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORED = ROOT / "benchmarks/results/interval-calibration.json"
HELD = 0.05
RATES = {
    "equal modes, called different": "false_difference",
    "a difference as large as the margin, called equivalent": "false_equivalence",
    "true difference outside the 95 % interval": "coverage",
}


@pytest.fixture(scope="module")
def stored():
    return json.loads(STORED.read_text(encoding="utf-8"))


def percent(share: float, decimals: int = 1) -> str:
    return f"{100 * share:.{decimals}f} %"


def error(cell: dict, name: str) -> float:
    """The worst error of one rate in a setting, over its true differences."""
    rate = cell["now"][name]
    if name == "coverage":
        return 1 - min(rate.values())
    return max(rate.values(), default=0.0) if isinstance(rate, dict) else rate


def errors(cells, name: str, families=None) -> list[float]:
    return [error(cell, name) for cell in cells if families is None or cell["family"] in families]


def held(stored) -> list[dict]:
    apart = stored["outcome"]["not_held_to_a_level"]
    return [cell for cell in stored["settings"] if cell["family"] not in apart]


def quoted(stored) -> list[str]:
    """The phrases of docs/intervals.md with numbers of the calibration."""
    cells, again = held(stored), stored["again"]
    limits = [percent(limit) for limit in stored["outcome"]["limits"]]
    phrases = [
        f"in {len(cells)} settings",
        f"{stored['settings_left_out']} settings of the grid were left out",
        f"{stored['comparisons']:,} comparisons of each ({stored['comparisons'] // 2:,} ",
        f"the {len(again)} worst were simulated again with {stored['comparisons_again']:,} "
        f"({stored['comparisons_again'] // 2:,})",
    ]
    for title, name in RATES.items():
        all_errors = errors(cells, name)
        mean, worst = sum(all_errors) / len(all_errors), max(all_errors)
        phrases.append(
            f"| {title} | {percent(mean)} | {percent(worst)} | {limits[0]} ({limits[1]}) "
            f"| {percent(max(errors(again, name)))} |"
        )
    return phrases + of_limits(stored)


def of_limits(stored) -> list[str]:
    """The phrases on what no interval can know."""
    cells = stored["settings"]
    pooled = stored["outcome"]["controls"]["pooled_mcnemar"]["worst_false_difference"]
    bad = max(errors(cells, "false_equivalence", {"bad seeds"}))
    lost = 1 - max(errors(cells, "coverage", {"rare classes, mostly lost"}))
    offset = max(errors(cells, "false_difference", {"offset subgroup"}))
    copies = errors(cells, "false_difference", {"duplicates"})
    groups = errors(cells, "false_difference", {"duplicates, grouped"})
    return [
        f"in up to {percent(pooled, 0)} of comparisons of equal modes",
        f"up to {percent(bad, 0)} of comparisons with 5 or 10 seeds",
        f"only {percent(lost, 0)} of its 95 % intervals",
        f"called different in up to {percent(offset, 0)} of comparisons",
        f"{100 * min(copies):.0f} to {percent(max(copies), 0)} of equal modes",
        f"({100 * min(groups):.0f} to {percent(max(groups), 0)})",
    ]


def words(path: str) -> str:
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def test_the_page_on_intervals_quotes_the_stored_file(stored):
    text = words("docs/intervals.md")
    missing = [phrase for phrase in quoted(stored) if " ".join(phrase.split()) not in text]
    assert missing == []


def test_the_front_page_quotes_the_stored_file(stored):
    worst = max(max(errors(stored["again"], name)) for name in RATES.values())
    cells = len(held(stored))
    assert f"{percent(worst)} in the worst of {cells} simulated settings" in words("README.md")
    assert f"{cells} 种模拟设置中最差为 {percent(worst)}" in words("README.zh-CN.md")


def test_the_stored_outcome_is_that_of_its_settings(stored):
    """The summary is recomputed, and the worst settings again are within noise of 5 %."""
    outcome, cells = stored["outcome"]["now"], held(stored)
    assert outcome["settings"] == len(cells)
    assert outcome["worst_false_difference"] == max(errors(cells, "false_difference"))
    assert outcome["worst_false_equivalence"] == max(errors(cells, "false_equivalence"))
    for cell in stored["again"]:
        most = HELD + 3 * (HELD * (1 - HELD) / cell["comparisons"]) ** 0.5
        for name in ("false_difference", "false_equivalence"):
            assert error(cell, name) <= most, (cell["setting"], name)


def test_every_metric_with_a_verdict_was_simulated(stored):
    """A new metric of a task needs a family of settings, or its verdicts were never checked."""
    from ampft.labels import multi_label
    from ampft.media import pixel_outcome
    from ampft.tasks import single_label
    from ampft.words import token_labels

    simulated = {
        (cell["family"], cell["setting"].get("metric", "accuracy")) for cell in held(stored)
    }
    # Their log losses are simulated for words, and the accuracy of pixels as "pixel_accuracy".
    families = {
        "several labels": (multi_label, {"log_loss"}),
        "images": (pixel_outcome, {"log_loss", "accuracy"}),
        "entities": (token_labels, {"log_loss", "token_accuracy"}),
    }
    one_label = {metric for family, metric in simulated if family not in families}
    words = [cell["setting"] for cell in held(stored) if cell["family"] == "words"]
    assert {"nats" in setting for setting in words} == {True, False}
    advice = "add it to benchmarks/simulated_grid.py and run interval_calibration of benchmarks"
    missing = set(single_label.METRICS) - one_label
    assert not missing, f"{missing} was not simulated: {advice}"
    for family, (task, elsewhere) in families.items():
        found = {metric for name, metric in simulated if name == family}
        missing = set(task.METRICS) - elsewhere - found
        assert not missing, f"{missing} of {family} was not simulated: {advice}"
