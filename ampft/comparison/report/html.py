"""comparison.html: a single, deterministic file without scripts or network access."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from ampft.comparison.findings import Comparison
from ampft.comparison.report import cells, drawing, strips
from ampft.comparison.report.arm_styles import ArmStyle, arm_styles
from ampft.comparison.report.calibration_charts import MIN_COUNT, calibration_panels
from ampft.comparison.report.classes import (
    MAX_MATRIX_CLASSES,
    class_rows,
    largest_confusions,
    matrix_cells,
)
from ampft.comparison.report.curve_charts import loss_chart, scale_chart, validation_chart
from ampft.comparison.report.drawing import one_line
from ampft.comparison.report.method import SOURCES, method_paragraphs
from ampft.comparison.report.noise import noise_protocol, noise_rows, share
from ampft.comparison.verdict_text import verdict_texts
from ampft.text import numbers
from ampft.text.numbers import counted, duration

TEMPLATE = "comparison.html.j2"
MISSING = "\N{EN DASH}"
NO_BREAK = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=%|points?\b)")


def isolated(text: str) -> Markup:
    """Return untrusted text, inert, escaped and isolated in its text direction."""
    line = one_line(text)
    return Markup("<bdi>{}</bdi>").format(line) if line else Markup('<i class="none">blank</i>')


def _optional(format_: Callable[..., str]) -> Callable[..., str]:
    """Return a format that shows a dash for None."""
    return lambda value, *more: MISSING if value is None else format_(value, *more)


def stacked(cell: str) -> Markup:
    """Return a cell such as "+0.3 (+0.1 to +0.5)" on two lines."""
    first, _, rest = cell.removesuffix(")").partition(" (")
    if not rest:
        return escape(MISSING if cell == numbers.NOT_MEASURED else cell)
    return Markup("{}<br><small>{}</small>").format(first, rest)


FILTERS: Mapping[str, Callable[..., str]] = {
    "one_line": one_line,
    "isolated": isolated,
    "no_break_units": lambda text: isolated(_UNIT.sub(NO_BREAK, text)),
    "dash": lambda cell: MISSING if cell == numbers.NOT_MEASURED else cell,
    "stacked": stacked,
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
    "integer": _optional(lambda value: f"{value:,.0f}"),
}


def html_text(comparison: Comparison) -> str:
    """Return the report as one HTML document.

    Every string of the comparison is escaped and isolated, and its direction and control
    characters are shown as escapes, so that it cannot affect the document. A content security
    policy forbids what the document does not need: scripts, external resources and forms.

    Args:
        comparison: Comparison to render.
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
    comparison = cells.without_incomplete_medians(comparison)
    arms = comparison.arms
    styles = arm_styles(arms)
    pairs = tuple(zip(arms, styles, strict=True))
    confused = tuple((arm, style) for arm, style in pairs if arm.confusion)
    has_many = len(comparison.label_names) > MAX_MATRIX_CLASSES
    return {
        "c": comparison,
        "pairs": pairs,
        "units": comparison.units,
        "verdicts": verdicts,
        "seeds": numbers.seed_list(comparison.seeds),
        "levels": (numbers.level(1 - comparison.alpha), numbers.level(1 - 2 * comparison.alpha)),
        "has_band": any(arm.is_placebo and arm.difference for arm in arms),
        "cell": cells,
        "modes": _modes(comparison, styles),
        "in_fp32": _in_fp32(comparison, styles),
        "loss": loss_chart(comparison, styles),
        "validation": validation_chart(comparison, styles),
        "scale": scale_chart(comparison, styles),
        "classes": class_rows(arms, styles),
        "matrices": () if has_many else tuple((a, style, matrix_cells(a)) for a, style in confused),
        "confused_arms": confused,
        "confusions": largest_confusions([arm for arm, _ in confused], comparison.label_names)
        if has_many and confused
        else (),
        "calibration": calibration_panels(arms, styles),
        "speed": _speed(comparison, styles),
        "memory": _memory(comparison, styles),
        "broken": any(arm.status != "complete" for arm in arms),
        "min_count": MIN_COUNT,
        "complete": tuple((arm, style) for arm, style in pairs if arm.metrics),
        "flipped": tuple((arm, style) for arm, style in pairs if arm.flips is not None),
        "tested": tuple((arm, style) for arm, style in pairs if arm.difference is not None),
        "paragraphs": method_paragraphs(comparison),
        "sources": SOURCES,
        "noise": noise_rows(comparison.yardstick),
        "noise_protocol": noise_protocol(comparison.yardstick),
    }


def _modes(comparison: Comparison, styles: Sequence[ArmStyle]) -> dict[str, Any]:
    axis = strips.difference_axis(comparison)
    rows = tuple(
        (arm, style, strips.difference_strip(comparison, arm, style, axis))
        for arm, style in zip(comparison.arms, styles, strict=True)
    )
    return {"head": strips.points_head(axis, comparison.units), "rows": rows}


def _in_fp32(comparison: Comparison, styles: Sequence[ArmStyle]) -> dict[str, Any] | None:
    measured = [(a, s) for a, s in zip(comparison.arms, styles, strict=True) if a.metrics_fp32]
    if not any(arm.difference_fp32 for arm, _ in measured):
        return None
    axis = strips.difference_axis(comparison, of_fp32=True)
    rows = tuple(
        (arm, style, strips.difference_strip(comparison, arm, style, axis, of_fp32=True))
        for arm, style in measured
    )
    return {"head": strips.points_head(axis, comparison.units), "rows": rows}


def _speed(comparison: Comparison, styles: Sequence[ArmStyle]) -> dict[str, Any] | None:
    measured = [(a, s) for a, s in zip(comparison.arms, styles, strict=True) if a.speed]
    if not measured:
        return None
    axis = strips.step_axis(comparison.arms)
    head = strips.strip_axis(axis, lambda s: f"{1000 * s:,.6g}", "Scale: milliseconds per step")
    return {
        "head": head,
        "rows": tuple((arm, style, strips.step_strip(arm, style, axis)) for arm, style in measured),
        "has_tf32": any(arm.speed and arm.speed.ratio_to_tf32 for arm, _ in measured),
        "reasons": tuple(
            (style, a.speed.reason) for a, style in measured if a.speed and a.speed.reason
        ),
    }


def _memory(comparison: Comparison, styles: Sequence[ArmStyle]) -> dict[str, Any] | None:
    measured = [
        (arm, style, arm.memory)
        for arm, style in zip(comparison.arms, styles, strict=True)
        if arm.memory is not None
    ]
    if not measured:
        return None
    axis = strips.memory_axis([memory for _, _, memory in measured])
    return {
        "head": strips.memory_head(axis),
        "rows": tuple(
            (a, style, m, strips.memory_strip(m, style, axis)) for a, style, m in measured
        ),
        "patches": strips.part_keys(),
        "protocols": sorted({memory.protocol for _, _, memory in measured if memory.protocol}),
    }
