"""A learning curve for readers: lines for a terminal, and a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from markupsafe import Markup

from ampft.commands.extension_points import FolderReport
from ampft.comparison.charts import Axis, Plot, element, picture, text
from ampft.files import hashed_text, write_errors_explained, write_text
from ampft.lab.curve.learning_curve import CURVE_NAME, LearningCurve, read_curve
from ampft.ownership import check_replaceable
from ampft.text.numbers import counted, percent, seed_list
from ampft.text.page import (
    Block,
    Figure,
    Notices,
    Page,
    Paragraph,
    Quote,
    Section,
    Table,
    ValueWithDetail,
    html_page,
    isolated,
    terminal,
)

PAGE_NAME = "curve.html"
LEFT, RIGHT, TOP, HEIGHT = 9.0, 96.0, 14.0, 260.0  # percent and pixels of the chart
ROOM = 0.06  # of the vertical range, above and below


def write_curve(curve: LearningCurve, folder: Path) -> None:
    """Write curve.json and curve.html, each atomically.

    Raises:
        InputError: A file cannot be written, or is somebody else's.
    """
    sentences = {"answer": doubling_text(curve), "covered": interval_coverage_text(curve)}
    texts = {
        CURVE_NAME: hashed_text({**asdict(curve), "sentences": sentences}),
        PAGE_NAME: page(curve),
    }
    check_replaceable("--output_dir", folder, tuple(texts))
    remedy = "Free disk space and repeat the command."
    with write_errors_explained(f"--output_dir {folder}: the curve", remedy):
        for name, content in texts.items():
            write_text(folder / name, content)


def doubling_text(curve: LearningCurve) -> str:
    """Return what twice the labels would add, in one sentence."""
    most = curve.sizes[-1].labels
    if curve.twice is None:
        return f"It is unknown what twice the labels would add: {curve.reason}."
    gain, ends = _gain(curve, curve.twice.gain, curve.twice.interval)
    return f"Twice the labels ({2 * most:,}) would add {gain} ({ends})."


def last_gain_text(curve: LearningCurve) -> str:
    """Return what the last step between sizes added, in one sentence."""
    last = curve.steps[-1]
    gain, ends = _gain(curve, last.gain, last.interval)
    sizes = f"from {last.fewer:,} to {counted(last.more, 'label')}"
    return f"{sizes[0].upper()}{sizes[1:]}, {gain} were added ({ends})."


def _gain(curve: LearningCurve, gain: float, interval: tuple[float, float]) -> tuple[str, str]:
    low, high = (curve.units.difference(end).removeprefix("+") for end in interval)
    return curve.units.difference_with_unit(gain).removeprefix("+"), f"{low} to {high}"


def interval_coverage_text(curve: LearningCurve) -> str:
    """Return what the intervals cover and what not."""
    counts = ""
    if curve.validation_share:
        counts = (
            f" Labels include the {percent(curve.validation_share)} that are split off for "
            "validation."
        )
    return (
        "95 % intervals cover other seeds, other draws of labelled rows from these "
        f"{curve.sizes[-1].labels:,}, and other test examples. With all labels, every seed trains "
        "on the same rows, so that another collection of that size may score differently. "
        "The extrapolation assumes that the curve goes on as a power law, a hyperbola or an "
        "exponential does, with labels of the same source and the same settings; a plateau that "
        "begins after the last size cannot be foreseen. It goes no further "
        f"than twice the labels.{counts}"
    )


def curve_text(curve: LearningCurve) -> str:
    """Return the curve as lines for a terminal."""
    return terminal(
        [
            Paragraph(doubling_text(curve), label="answer"),
            *_lead(curve),
            *_notices(curve),
            _covered(curve),
            replace(sizes_table(curve), title="", note=""),
        ]
    )


def _lead(curve: LearningCurve) -> tuple[Paragraph, ...]:
    """Return what the last sizes added, and what was measured how."""
    score = (
        f"{curve.units.capitalized()} on {counted(curve.examples, 'test example')}; "
        f"{seed_list(curve.seeds)}, each with its own draw of nested subsets."
    )
    measured = last_gain_text(curve)
    return (
        Paragraph(measured, "answer", label="measured"),
        Paragraph(score, "facts", label="score"),
    )


def _notices(curve: LearningCurve) -> list[Notices]:
    found = tuple(notes(curve))
    return [Notices("Before you rely on this", found)] if found else []


def _covered(curve: LearningCurve) -> Paragraph:
    return Paragraph(interval_coverage_text(curve), label="covers")


def notes(curve: LearningCurve) -> Iterator[str]:
    """Yield what a reader must know before relying on the curve."""
    if curve.omitted:
        yield f"Omitted, because a run did not finish: {seed_list(curve.omitted)}."
    if curve.twice is not None and curve.twice.sizes_used < len(curve.sizes):
        used = curve.sizes[-curve.twice.sizes_used].labels
        yield f"Sizes below {used:,} labels do not fit and are left out of the extrapolation."
    if curve.twice is not None and curve.twice.interval[0] <= 0 <= curve.twice.interval[1]:
        yield "The interval contains 0: more labels may add nothing."


def sizes_table(curve: LearningCurve) -> Table:
    """Return the sizes with their scores, and what each step added."""
    units = curve.units
    added = {step.more: step for step in curve.steps}
    rows = []
    for size in curve.sizes:
        step = added.get(size.labels)
        low, high = size.interval
        rows.append(
            (
                f"{size.labels:,}",
                f"{size.train:,}",
                ValueWithDetail(
                    units.value(size.mean), f"({units.value(low)} to {units.value(high)})"
                ),
                ""
                if step is None
                else ValueWithDetail(
                    units.difference(step.gain), f"({units.interval(step.interval)})"
                ),
            )
        )
    return Table(
        header=("labels", "trained on", units.heading, f"added{units.difference_suffix}"),
        rows=rows,
        title="Score by number of labels",
        note="Means over the seeds with 95 % intervals.",
        left=0,
    )


def page(curve: LearningCurve) -> str:
    """Return the curve as one HTML document, in which every string of data is inert."""
    caption = (
        "Dots: seeds. Line: their mean, with its 95 % interval shaded. Dashed: twice the labels, "
        "extrapolated."
    )
    settings = Markup("<code>{}</code>").format(isolated(curve.settings))
    blocks: list[Block] = [Figure(chart(curve), (caption,)), sizes_table(curve)]
    return html_page(
        Page(
            kind="curve",
            title=f"Learning curve of {curve.name}",
            kicker=("Learning curve: ", Quote(curve.name)),
            headline=doubling_text(curve),
            lead=_lead(curve),
            notices=_notices(curve),
            sections=[
                Section("curve", "Score by number of labels", blocks),
                Section(
                    "covered",
                    "What the intervals cover",
                    [_covered(curve), Paragraph(("Settings of all runs: ", settings))],
                ),
            ],
        )
    )


def chart(curve: LearningCurve) -> Markup:
    """Return the chart: seeds as dots, their mean with its band, and the extrapolation, dashed."""
    units, sizes = curve.units, curve.sizes
    places = [math.log2(size.labels) for size in sizes]
    ends: tuple[float, ...] = ()  # of the score with twice the labels, around its estimate
    if curve.twice is not None:
        sign = 1.0 if curve.metric.higher_is_better else -1.0
        low, high = curve.twice.interval
        ends = tuple(sorted(sizes[-1].mean + sign * gain for gain in (low, curve.twice.gain, high)))
    values = [v for size in sizes for v in (*size.scores, *size.interval)] + list(ends)
    room = ROOM * (max(values) - min(values)) or 0.01
    plot = Plot(
        Axis(places[0] - 0.2, places[-1] + 1.2, LEFT, RIGHT),
        Axis(min(values) - room, max(values) + room, HEIGHT, TOP),
    )
    lows = [(x, size.interval[0]) for x, size in zip(places, sizes, strict=True)]
    highs = [(x, size.interval[1]) for x, size in zip(places, sizes, strict=True)]
    lines = [
        plot.curve([*lows, *reversed(highs)], "band"),
        plot.curve([(x, size.mean) for x, size in zip(places, sizes, strict=True)], "mean a0"),
    ]
    parts = []
    if ends:
        low, middle, high = ends
        last = (places[-1], sizes[-1].mean)
        x = places[-1] + 1
        lines.append(plot.curve([last, (x, low), (x, high)], "band"))
        lines.append(plot.curve([last, (x, middle)], "mean a2"))
        parts.append(plot.x.upright(x, plot.y.at(low), plot.y.at(high), "whisker a2"))
    dots = [
        element("circle", cx=plot.x.percent(x), cy=plot.y.at(score), r=2.2, class_="a0")
        for x, size in zip(places, sizes, strict=True)
        for score in size.scores
    ]
    shown = [*places, places[-1] + 1] if ends else places
    means = ", ".join(f"{size.labels:,}: {units.value(size.mean)}" for size in sizes)
    return picture(
        plot.grid(plot.y.ticks(5), lambda value: units.value(value)),
        plot.area(*lines),
        *parts,
        *dots,
        plot.rule(HEIGHT),
        plot.scale(shown, lambda place: f"{round(2**place):,}", HEIGHT, "labels"),
        text(units.heading, f"{LEFT}%", 6, "tick"),
        height=HEIGHT + 36,
        alt=f"{units.heading} by number of labels: {means}. {doubling_text(curve)}",
        class_="chart",
    )


def _folder_text(folder: Path) -> str:
    return curve_text(read_curve(folder / CURVE_NAME))


CURVE_REPORT = FolderReport(CURVE_NAME, _folder_text)
