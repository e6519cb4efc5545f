"""The answer of the page: a headline, the condition of the recommendation, and a card per arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ampft.comparison.answer import listed
from ampft.comparison.cost_text import gain_text, speed_up_of
from ampft.comparison.findings import (
    BROKEN,
    INFERENCE,
    TRAINING,
    ArmResult,
    Comparison,
)
from ampft.comparison.report import strips
from ampft.comparison.report.arm_styles import ArmStyle
from ampft.comparison.report.costs import cost_columns
from ampft.comparison.statistics.verdict import BETTER, EQUIVALENT, UNDECIDED, WORSE
from ampft.comparison.verdict_text import these_models, verdict_text
from ampft.text.charts import Axis
from ampft.text.numbers import NOT_MEASURED, counted, level, mean_count
from ampft.text.tables import plain

# Kind of a verdict -> CSS class of its chip.
CHIPS = {EQUIVALENT: "good", BETTER: "good", WORSE: "bad", UNDECIDED: "open"}


@dataclass(frozen=True)
class Card:
    """What the page says first about an arm.

    Attributes:
        style: Style of the arm in charts.
        chip: Its verdict, or what it is.
        chip_class: CSS class of the chip.
        value: Primary metric.
        difference: Difference to the baseline with its interval; empty for the baseline.
        strip: Chart of the difference.
        facts: Names and values: changed predictions, speed, memory or size.
        sentence: Verdict in sentences; empty for the baseline and the placebo.
    """

    style: ArmStyle
    chip: str
    chip_class: str
    value: str
    difference: str
    strip: Markup
    facts: tuple[tuple[str, str], ...]
    sentence: str


def headline(comparison: Comparison) -> str:
    """Return the answer in a few words, such as "No loss found; bf16 needs 9 % less memory"."""
    arms = [arm for arm in comparison.arms[1:] if not arm.is_placebo]
    if not arms:
        return "Nothing was compared"
    suspects = comparison.baseline.suspect_runs or comparison.baseline.status != "complete"
    if suspects:
        return f"No answer: {comparison.baseline.name} did not train well"
    by_verdict = {
        word: [arm for arm in arms if arm.outcome == word] for word in (*CHIPS, BROKEN, "")
    }
    parts = [
        f"{listed(by_verdict[WORSE])} {_verb(by_verdict[WORSE], 'lose')} {comparison.units.title}",
        f"{listed(by_verdict[BROKEN])} failed",
        _not_worse(by_verdict, len(arms)),
        f"{listed(by_verdict[UNDECIDED])} not decided",
        f"{listed(by_verdict[''])} without a verdict",
    ]
    keys = (WORSE, BROKEN, EQUIVALENT, UNDECIDED, "")
    shown = [part for key, part in zip(keys, parts, strict=True) if _has(by_verdict, key)]
    text = "; ".join([*shown, *_largest_gain(comparison, arms)])
    if comparison.has_one_model_each and any(by_verdict[word] for word in CHIPS):
        return f"{text} ({these_models(comparison)}, on examples like these)"
    return text


def _largest_gain(comparison: Comparison, arms: Sequence[ArmResult]) -> list[str]:
    """Return what the arm that saves most saves."""
    gaining = [arm for arm in arms if gain_text(comparison, arm)]
    if not gaining:
        return []
    best = max(gaining, key=speed_up_of)
    return [f"{best.name} {gain_text(comparison, best)}"]


def _has(by_verdict: Mapping[str, Sequence[ArmResult]], key: str) -> bool:
    return bool(by_verdict[key] or (key == EQUIVALENT and by_verdict[BETTER]))


def _not_worse(by_verdict: Mapping[str, list[ArmResult]], total: int) -> str:
    good = [*by_verdict[EQUIVALENT], *by_verdict[BETTER]]
    if by_verdict[BETTER] and not by_verdict[EQUIVALENT]:
        return f"{listed(good)} {'is' if len(good) == 1 else 'are'} better"
    is_first = not by_verdict[WORSE] and not by_verdict[BROKEN]
    where = "" if len(good) == total else f" in {listed(good)}"
    return f"{'N' if is_first else 'n'}o loss found{where}"


def _verb(arms: Sequence[ArmResult], verb: str) -> str:
    return f"{verb}s" if len(arms) == 1 else verb


def condition(comparison: Comparison) -> str:
    """Return what the recommendation depends on; empty without a verdict."""
    units = comparison.units
    if not any(arm.outcome in CHIPS for arm in comparison.arms[1:]):
        return ""
    seeds = len(comparison.seeds)
    noun = "examples" if comparison.groups is None else "groups of examples"
    cases = f"{comparison.groups or comparison.examples:,} {noun} of {comparison.split}"
    if comparison.kind == INFERENCE:
        evidence = f"{counted(seeds, 'trained model')} and {cases}"
    elif comparison.has_one_model_each:
        evidence = f"one model per {comparison.noun} and {cases}"
    else:
        evidence = f"{counted(seeds, 'seed')} and {cases}"
    on_machine = comparison.kind in (TRAINING, INFERENCE) and not comparison.has_one_model_each
    machine = ", on this machine" * on_machine
    return (
        f"This holds if differences of up to {units.margin_with_unit} in {units.title} do not "
        f"matter to you. It rests on {evidence}{machine}."
    )


def cards(comparison: Comparison, styles: Sequence[ArmStyle]) -> tuple[Card, ...]:
    """Return a card for each arm: the compared ones, then placebo and baseline."""
    axis = strips.difference_axis(comparison)
    pairs = list(zip(comparison.arms, styles, strict=True))
    ordered = [pair for pair in pairs[1:] if not pair[0].is_placebo]
    ordered += [pair for pair in pairs[1:] if pair[0].is_placebo]
    return tuple(_card(comparison, arm, style, axis) for arm, style in [*ordered, pairs[0]])


def _card(comparison: Comparison, arm: ArmResult, style: ArmStyle, axis: Axis) -> Card:
    units, is_baseline = comparison.units, arm is comparison.baseline
    values = arm.metrics.get(comparison.metric)
    word = arm.outcome
    chip, chip_class = (arm.difference.verdict if arm.difference else None) or "no verdict", "open"
    if is_baseline or arm.is_placebo:
        chip, chip_class = ("baseline" if is_baseline else "placebo"), "none"
    elif word == BROKEN:
        chip, chip_class = arm.status_words, "bad"
    elif not word:
        chip = "no verdict"
    else:
        chip_class = CHIPS[word]
    difference = ""
    if arm.difference is not None:
        difference = (
            f"{units.difference_with_unit(arm.difference.estimate)}, "
            f"{level(arm.difference.level95)} CI {units.interval(arm.difference.interval95)}"
        )
    facts = [(f"--{name}", value) for name, value in arm.settings.items()]
    facts += [("execution", arm.execution)] * (arm.execution == "emulated")
    if arm.flips is not None:
        changed = f"{mean_count(arm.flips.mean)} of {comparison.examples:,}"
        facts.append(("changed predictions", changed))
    facts += [
        (column.heading, plain(cell))
        for column in cost_columns(comparison)
        if (cell := column.cell(arm)) not in ("", NOT_MEASURED)
    ]
    strip = Markup("")
    if not is_baseline and arm.difference is not None:
        drawn = strips.difference_strip(comparison, arm, style, axis)
        strip = Markup('{}<div class="strip">{}</div>').format(
            strips.points_head(axis, units), drawn
        )
    return Card(
        style=style,
        chip=chip,
        chip_class=chip_class,
        value="" if values is None else units.value(values.mean) + " %" * units.is_share,
        difference=difference,
        strip=strip,
        facts=tuple(facts),
        sentence="" if is_baseline or arm.is_placebo else verdict_text(comparison, arm),
    )
