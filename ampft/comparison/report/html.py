"""comparison.html: one file that needs no network and no script, the same bytes each time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from ampft.comparison.findings import Comparison
from ampft.comparison.report import cells, drawing, strips
from ampft.comparison.report.arm_styles import Look, looks
from ampft.comparison.report.calibration_charts import FEW, calibration_panels
from ampft.comparison.report.classes import (
    MOST_CLASSES,
    class_rows,
    largest_confusions,
    matrix_cells,
)
from ampft.comparison.report.curve_charts import loss_chart, scale_chart, validation_chart
from ampft.comparison.report.drawing import shown
from ampft.comparison.report.method import SOURCES, method_paragraphs
from ampft.comparison.report.noise import noise_protocol, noise_rows, share
from ampft.comparison.verdict_text import verdict_texts
from ampft.text import numbers
from ampft.text.numbers import counted, duration

TEMPLATE = "comparison.html.j2"
MISSING = "\N{EN DASH}"
NO_BREAK = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=%|points?\b)")


def foreign(text: str) -> Markup:
    """Return text of the data: inert, escaped, in a direction of its own."""
    words = shown(text)
    return Markup("<bdi>{}</bdi>").format(words) if words else Markup('<i class="none">blank</i>')


def _optional(form: Callable[..., str]) -> Callable[..., str]:
    """Return a format that shows a dash for what was not measured."""
    return lambda value, *more: MISSING if value is None else form(value, *more)


def beneath(cell: str) -> Markup:
    """Return a cell such as "+0.3 (+0.1 to +0.5)" on two lines."""
    first, _, rest = cell.removesuffix(")").partition(" (")
    if not rest:
        return escape(MISSING if cell == numbers.NOT_MEASURED else cell)
    return Markup("{}<br><small>{}</small>").format(first, rest)


FILTERS: Mapping[str, Callable[..., str]] = {
    "flat": shown,
    "foreign": foreign,
    "tied": lambda text: foreign(_UNIT.sub(NO_BREAK, text)),
    "dash": lambda cell: MISSING if cell == numbers.NOT_MEASURED else cell,
    "beneath": beneath,
    "sentence": lambda text: f"{text[:1].upper()}{text[1:].rstrip('.')}.",
    "count": lambda value: f"{value:,}",
    "counted": counted,
    "duration": _optional(duration),
    "level": numbers.level,
    "mean_count": numbers.mean_count,
    "metric": drawing.metric,
    "mebibytes": _optional(cells.mebibytes),
    "p_value": _optional(numbers.p_value),
    "percent": _optional(numbers.percent),
    "points": _optional(numbers.points),
    "range": numbers.count_range,
    "ratio": _optional(lambda value: f"{value:.2f}"),
    "share": _optional(share),
    "fixed": _optional(numbers.number),
    "whole": _optional(lambda value: f"{value:,.0f}"),
}


def html_text(comparison: Comparison) -> str:
    """Return the report as one HTML document.

    Every string of the comparison is escaped and isolated, its direction and control characters
    are shown as escapes: nothing of it can act. A content security policy forbids whatever the
    document does not need: scripts, addresses, forms.

    Args:
        comparison: What was found.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= FILTERS
    return environment.get_template(TEMPLATE).render(_context(comparison))


def _context(comparison: Comparison) -> dict[str, Any]:
    verdicts = comparison.verdicts or verdict_texts(comparison)
    comparison = cells.without_survivors(comparison)
    arms = comparison.arms
    styles = looks(arms)
    pairs = tuple(zip(arms, styles, strict=True))
    drawn = tuple((arm, look) for arm, look in pairs if arm.confusion)
    has_many = len(comparison.label_names) > MOST_CLASSES
    return {
        "c": comparison,
        "pairs": pairs,
        "units": comparison.units,
        "verdicts": verdicts,
        "seeds": numbers.seed_words(comparison.seeds),
        "levels": (numbers.level(1 - comparison.alpha), numbers.level(1 - 2 * comparison.alpha)),
        "has_band": any(arm.is_placebo and arm.difference for arm in arms),
        "cell": cells,
        "modes": _modes(comparison, styles),
        "in_fp32": _in_fp32(comparison, styles),
        "loss": loss_chart(comparison, styles),
        "validation": validation_chart(comparison, styles),
        "scale": scale_chart(comparison, styles),
        "classes": class_rows(arms, styles),
        "matrices": () if has_many else tuple((a, look, matrix_cells(a)) for a, look in drawn),
        "confused_arms": drawn,
        "confusions": largest_confusions([arm for arm, _ in drawn], comparison.label_names)
        if has_many and drawn
        else (),
        "calibration": calibration_panels(arms, styles),
        "speed": _speed(comparison, styles),
        "memory": _memory(comparison, styles),
        "broken": any(arm.status != "complete" for arm in arms),
        "few": FEW,
        "complete": tuple((arm, look) for arm, look in pairs if arm.metrics),
        "flipped": tuple((arm, look) for arm, look in pairs if arm.flips is not None),
        "tested": tuple((arm, look) for arm, look in pairs if arm.difference is not None),
        "paragraphs": method_paragraphs(comparison),
        "sources": SOURCES,
        "noise": noise_rows(comparison.yardstick),
        "noise_protocol": noise_protocol(comparison.yardstick),
    }


def _modes(comparison: Comparison, styles: Sequence[Look]) -> dict[str, Any]:
    axis = strips.difference_axis(comparison)
    rows = tuple(
        (arm, look, strips.difference_strip(comparison, arm, look, axis))
        for arm, look in zip(comparison.arms, styles, strict=True)
    )
    return {"head": strips.points_head(axis, comparison.units), "rows": rows}


def _in_fp32(comparison: Comparison, styles: Sequence[Look]) -> dict[str, Any] | None:
    measured = [(a, s) for a, s in zip(comparison.arms, styles, strict=True) if a.metrics_fp32]
    if not any(arm.difference_fp32 for arm, _ in measured):
        return None
    axis = strips.difference_axis(comparison, of_fp32=True)
    rows = tuple(
        (arm, look, strips.difference_strip(comparison, arm, look, axis, of_fp32=True))
        for arm, look in measured
    )
    return {"head": strips.points_head(axis, comparison.units), "rows": rows}


def _speed(comparison: Comparison, styles: Sequence[Look]) -> dict[str, Any] | None:
    measured = [(a, s) for a, s in zip(comparison.arms, styles, strict=True) if a.speed]
    if not measured:
        return None
    axis = strips.step_axis(comparison.arms)
    head = strips.strip_axis(axis, lambda s: f"{1000 * s:,.6g}", "Scale of milliseconds per step")
    return {
        "head": head,
        "rows": tuple((arm, look, strips.step_strip(arm, look, axis)) for arm, look in measured),
        "has_tf32": any(arm.speed and arm.speed.ratio_to_tf32 for arm, _ in measured),
        "reasons": tuple(
            (look, a.speed.reason) for a, look in measured if a.speed and a.speed.reason
        ),
    }


def _memory(comparison: Comparison, styles: Sequence[Look]) -> dict[str, Any] | None:
    measured = [
        (arm, look, arm.memory)
        for arm, look in zip(comparison.arms, styles, strict=True)
        if arm.memory is not None
    ]
    if not measured:
        return None
    axis = strips.memory_axis([memory for _, _, memory in measured])
    return {
        "head": strips.memory_head(axis),
        "rows": tuple((a, look, m, strips.memory_strip(m, look, axis)) for a, look, m in measured),
        "patches": strips.part_keys(),
        "protocols": sorted({memory.protocol for _, _, memory in measured if memory.protocol}),
    }
