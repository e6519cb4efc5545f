"""comparison.html: the report of a comparison as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from ampft.comparison.answer import answer_sentences
from ampft.comparison.charts import Axis
from ampft.comparison.findings import (
    BROKEN,
    INFERENCE,
    PREDICTIONS,
    TRAINING,
    ArmResult,
    Comparison,
)
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report import strips, tables
from ampft.comparison.report.run_charts import (
    BASELINE,
    MIN_COUNT,
    ArmStyle,
    Chart,
    arm_styles,
    calibration_panels,
    loss_chart,
    loss_difference_chart,
    scale_chart,
    validation_chart,
)
from ampft.comparison.report.sections import sections, tables_of_arms
from ampft.comparison.report.tables import cost_columns
from ampft.comparison.statistics.verdict import BETTER, EQUIVALENT, UNDECIDED, WORSE
from ampft.comparison.verdict_text import seeds_text, verdict_text
from ampft.tasks.report import outputs_text
from ampft.text.escaping import one_line
from ampft.text.numbers import (
    NOT_MEASURED,
    confidence_percent,
    counted,
    mean_count,
    percent,
    signed_number,
)
from ampft.text.page import (
    Block,
    Card,
    Cards,
    Cell,
    Details,
    Figure,
    Name,
    Notices,
    Page,
    Paragraph,
    Quote,
    Section,
    Subheading,
    Table,
    cell_text,
    html_page,
    isolated,
)

LINE = Markup("<br>")
MAX_MATRIX_CLASSES = 30  # a matrix of more classes is not readable
SHADES = 8


def html_text(comparison: Comparison) -> str:
    """Return the report as one HTML document, in which every string of the comparison is inert."""
    return html_page(comparison_page(comparison))


def comparison_page(comparison: Comparison) -> Page:
    """Return the report as a page."""
    comparison = tables.without_incomplete_medians(comparison)
    c, styles = comparison, arm_styles(comparison.arms)
    headline, *answer = answer_sentences(c) or ["Nothing was compared"]
    lead = [Paragraph(" ".join(answer), "answer")] if answer else []
    if condition := recommendation_condition(c):
        lead.append(Paragraph(condition, "condition"))
    examples = _changed_examples(c)
    training, drawn = _training(c, styles), _drawn_sections(c, styles, examples)
    return Page(
        kind="comparison",
        title=c.title,
        kicker=(f"{c.heading}: ", Quote(c.title)),
        headline=headline.removesuffix("."),
        lead=lead,
        cards=cards(c, styles),
        reading=_reading(c),
        notices=[Notices("Before you rely on this", remark_texts(c.stamps))] if c.stamps else [],
        sections=[
            next(drawn),
            *([Section("training", "Training", training)] if training else []),
            *drawn,
        ],
        has_media=bool(examples),
    )


def _reading(comparison: Comparison) -> list[Block]:
    """Return how to read the bars, and what was measured."""
    c, units = comparison, comparison.units
    blocks: list[Block] = []
    if any(arm.difference for arm in c.arms):
        wide, narrow = (confidence_percent(1 - sides * c.alpha) for sides in (1, 2))
        shaded = ""
        if any(arm.is_placebo and arm.difference for arm in c.arms):
            shaded = " Shaded: what the placebo does by chance."
        blocks += [
            Subheading("How to read the bars", level=2),
            Paragraph(
                (
                    f"The dot is the {'mean ' if not c.has_one_model_each else ''}difference to ",
                    Quote(c.baseline.name),
                    f". The thin line is its {wide} confidence interval (CI), the thick line its "
                    f"{narrow} interval. If the whole thick line lies between the dashed lines "
                    f"(±{units.margin_with_unit}), the verdict is “equivalent”.{shaded}",
                )
            ),
        ]
    dates: tuple[Cell, ...] = ()
    if c.dates:
        first, last = c.dates
        dates = (" Runs of ", Quote(first), *((" to ", Quote(last)) if last != first else ()), ".")
    return [
        *blocks,
        Subheading("What was measured", level=2),
        Paragraph(
            (
                f"{counted(c.examples, 'example')} of ",
                *(("the split ",) if c.kind != PREDICTIONS else ()),
                Quote(c.split),
                f", {outputs_text(c.label_names)}, {seeds_text(c)}; primary metric {units.title}.",
                *dates,
            )
        ),
    ]


def _drawn_sections(
    comparison: Comparison, styles: Sequence[ArmStyle], examples: Sequence[Block]
) -> Iterator[Section]:
    c = comparison
    keys = {arm.name: style.key() for arm, style in zip(c.arms, styles, strict=True)}
    strip_of = {each.name: each for each in strips.columns(c, styles)}
    before = {"calibration": _calibration(c, styles)}
    after = {"changed": examples, "classes": _matrices(c, styles)}
    for section in (tables_of_arms(c), *sections(c)):
        blocks: list[Block] = [*before.get(section.name, ())]
        strip = strip_of.get(section.name)
        for block in section.blocks:
            if isinstance(block, Table):
                block, strip = _with_graphics(block, keys, strip), None
            blocks.append(block)
        yield replace(section, blocks=[*blocks, *after.get(section.name, ())])


def _training(comparison: Comparison, styles: Sequence[ArmStyle]) -> list[Block]:
    c = comparison
    lines = "Thick lines: means over the seeds; thin lines: individual seeds."
    has_broken = any(arm.status != "complete" for arm in c.arms)
    no_mean = " An arm with a diverged or unfinished run has no mean." if has_broken else ""
    has_placebo = any(arm.is_placebo and arm.difference for arm in c.arms)
    placebo = (
        " The placebo shows what the smallest possible change of the arithmetic does."
        if has_placebo
        else ""
    )
    base, split = one_line(c.baseline.name), one_line(c.split)
    charts: tuple[tuple[str, Chart | None, str], ...] = (
        ("Training loss", loss_chart(c, styles), lines + no_mean),
        (
            f"Training loss minus the loss of {base}",
            loss_difference_chart(c, styles),
            f"{lines} Both losses are of the same examples in the same step.{placebo}",
        ),
        (
            f"{c.units.capitalized()} on validation",
            validation_chart(c, styles),
            f"{lines} The verdicts are based on {split}.",
        ),
        (
            "Loss scale and skipped steps",
            scale_chart(c, styles),
            "The loss is multiplied by this factor, a power of two, to keep small gradients from "
            "vanishing. When a gradient overflows, the step is skipped and the factor is halved. "
            "Below the plot, each row is a seed and each tick a skipped step.",
        ),
    )
    figures: list[Block] = []
    for heading, chart, text in charts:
        if chart is not None:
            if chart.is_clipped:
                text += " Values above the top edge are drawn at it."
            figures.append(Figure(chart.svg, (_legend(chart.styles), text), heading))
    return figures


def _legend(styles: Sequence[ArmStyle]) -> Markup:
    names = (
        Markup("<span>{} {}</span> ").format(style.key(), isolated(style.name)) for style in styles
    )
    return Markup('<span class="legend">{}</span>').format(Markup("").join(names))


def _calibration(comparison: Comparison, styles: Sequence[ArmStyle]) -> list[Block]:
    panels = []
    for style, error, curve in calibration_panels(comparison.arms, styles):
        shown = Markup("")
        if error is not None:
            shown = Markup(" <small>error {}</small>").format(percent(error, 1))
        name = Markup("{} {}").format(style.key(), isolated(style.name))
        panels.append(Markup("<div>\n<h3>{}{}</h3>\n{}\n</div>").format(name, shown, curve))
    over_seeds = ", over all seeds" if not comparison.has_one_model_each else ""
    caption = (
        f"Share of correct predictions by confidence{over_seeds}. On the dashed diagonal, "
        "confidence equals accuracy. Thin line: ",
        Quote(comparison.baseline.name),
        f". Small marks: fewer than {MIN_COUNT} predictions. Bars: number of predictions with that "
        "confidence. The calibration error has no confidence interval.",
    )
    return [Figure(_side_by_side("panels", panels), caption, is_wide=True)] if panels else []


def _side_by_side(class_: str, parts: Sequence[Markup]) -> Markup:
    return Markup('<div class="{}">\n{}\n</div>').format(class_, Markup("\n").join(parts))


def _changed_examples(comparison: Comparison) -> list[Block]:
    blocks: list[Block] = []
    base = Quote(comparison.baseline.name)
    for arm in comparison.arms:
        shown = [each for each in arm.flips.examples if each.shown] if arm.flips else []
        if not shown:
            continue
        found = []
        for each in shown:
            assert each.shown is not None
            facts = (
                *(base, ": ", Quote(each.baseline), _confidence(each.baseline_confidence), LINE),
                *(Quote(arm.name), ": ", Quote(each.arm), _confidence(each.arm_confidence)),
            )
            title = Markup("<strong>{}</strong>").format(isolated(each.label))
            blocks_of_case: list[Block] = [Paragraph(facts, "facts"), each.shown]
            tag = f"example {each.example_id}"
            found.append(Card(title, blocks_of_case, tag=tag, kind="", is_data=True))
        blocks += [
            Subheading(("Examples as they are: ", Quote(arm.name))),
            Cards(found, role="cases"),
        ]
    return blocks


def _confidence(value: float | None) -> str:
    return "" if value is None else f" ({percent(value)})"


def _matrices(comparison: Comparison, styles: Sequence[ArmStyle]) -> list[Block]:
    """Return the confusion matrices next to each other; nothing with too many classes."""
    c, base = comparison, comparison.arms[0]
    found = [
        _matrix(c, style, matrix_cells(arm, None if arm is base else base))
        for arm, style in zip(c.arms, styles, strict=True)
        if arm.confusion
    ]
    if not found or len(c.label_names) > MAX_MATRIX_CLASSES:
        return []
    summed = ", summed over the seeds" if not c.has_one_model_each else ""
    caption = (
        "Confusion matrices. Rows are labels, columns are predictions. Cells are numbers of "
        f"examples{summed}; the other matrices show only what differs from the first. The shade is "
        "the share of the row on a square-root scale, which makes errors visible. Correct "
        "predictions are bold."
    )
    return [Figure(_side_by_side("matrices", found), (caption,), is_wide=True)]


def _matrix(
    comparison: Comparison, style: ArmStyle, rows: Sequence[Sequence[MatrixCell]]
) -> Markup:
    names = comparison.label_names
    head = Markup("").join(
        Markup('<th scope="col" title="{}">{}</th>').format(one_line(name), number)
        for number, name in enumerate(names, start=1)
    )
    minus = Markup("")
    if style.number != BASELINE:
        minus = Markup(" minus {}").format(isolated(comparison.baseline.name))
    body = []
    for number, (name, row) in enumerate(zip(names, rows, strict=True), start=1):
        cells = (
            Markup('<td class="s{}{}">{}</td>').format(
                cell.shade, " correct" if cell.is_correct else "", cell.text if cell.shade else "·"
            )
            for cell in row
        )
        body.append(
            Markup(
                '<tr><th scope="row" translate="no"><span class="clip">{}</span> '
                '<span class="index">{}</span></th>{}</tr>'
            ).format(isolated(name), number, Markup("").join(cells))
        )
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="Confusion matrix of {}">\n'
        '<table class="matrix">\n<caption>{}{}</caption>\n<thead>\n<tr><td></td>{}</tr>\n'
        "</thead>\n<tbody>\n{}\n</tbody>\n</table>\n</div>"
    ).format(style.name, isolated(style.name), minus, head, Markup("\n").join(body))


def _with_graphics(
    table: Table, keys: Mapping[str, Markup], column: strips.Column | None = None
) -> Table:
    """Return a table with the line styles of the arms next to their names, and a strip per row."""

    def with_key(cell: Cell) -> Cell:
        key = None
        if isinstance(cell, Name):
            key = keys[cell.text] if cell.kind == "arm" else None
        elif column is not None and isinstance(cell, str):
            key = column.keys.get(cell)
        return Markup("{} {}").format(key, isolated(cell_text(cell))) if key else cell

    header = tuple(with_key(cell) for cell in table.header)
    rows = [(with_key(row[0]), *row[1:]) for row in table.rows]
    if column is None:
        return replace(table, header=header, rows=rows)
    names = [cell_text(row[0]) for row in table.rows]
    strip = Markup('<div class="strip">{}</div>')
    return replace(
        table,
        header=(header[0], Markup("{} {}").format(column.heading, column.scale), *header[1:]),
        rows=[
            (row[0], strip.format(column.strips.get(name, "")), *row[1:])
            for name, row in zip(names, rows, strict=True)
        ],
        note=f"{column.explanation} {table.note}".strip(),
        left=table.left + 1,
    )


@dataclass(frozen=True)
class MatrixCell:
    """A cell as text, and its shade (0 is blank); cells on the diagonal are correct."""

    text: str
    shade: int
    is_correct: bool


def matrix_cells(arm: ArmResult, base: ArmResult | None) -> tuple[tuple[MatrixCell, ...], ...]:
    """Return the cells of a matrix, shaded by the share of the row on a square-root scale.

    The square root makes errors visible, which are few compared with correct predictions. The first
    row of spans counts those that are not in the data, so that its sum differs between arms.

    Args:
        base: Baseline, from which only the differences are shown; None shows the matrix.
    """
    others = base.confusion if base else [[0] * len(row) for row in arm.confusion]
    return tuple(
        tuple(
            MatrixCell(
                signed_number(count - other, 0) if base else f"{count}",
                _shade(abs(count - other), max(sum(row), sum(other_row))),
                column == index,
            )
            for column, (count, other) in enumerate(zip(row, other_row, strict=True))
        )
        for index, (row, other_row) in enumerate(zip(arm.confusion, others, strict=True))
    )


def _shade(count: int, total: int) -> int:
    return 0 if not count else max(1, min(SHADES, round(SHADES * (count / total) ** 0.5)))


# Kind of a verdict -> CSS class of its chip.
CHIPS = {EQUIVALENT: "good", BETTER: "good", WORSE: "bad", UNDECIDED: "open"}


def recommendation_condition(comparison: Comparison) -> str:
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
    machine = ", on this machine" if on_machine else ""
    return (
        f"This holds if differences of up to {units.margin_with_unit} in {units.title} do not "
        f"matter to you. It rests on {evidence}{machine}."
    )


def cards(comparison: Comparison, styles: Sequence[ArmStyle]) -> Cards:
    """Return a card for each arm: the compared ones, then placebo and baseline."""
    axis = strips.difference_axis(comparison)
    pairs = list(zip(comparison.arms, styles, strict=True))
    ordered = [pair for pair in pairs[1:] if not pair[0].is_placebo]
    ordered += [pair for pair in pairs[1:] if pair[0].is_placebo]
    return Cards([_card(comparison, arm, style, axis) for arm, style in [*ordered, pairs[0]]])


def _card(comparison: Comparison, arm: ArmResult, style: ArmStyle, axis: Axis) -> Card:
    units, is_baseline = comparison.units, arm is comparison.baseline
    values = arm.metrics.get(comparison.metric)
    chip, kind = (arm.difference.verdict if arm.difference else None) or "no verdict", "open"
    if is_baseline or arm.is_placebo:
        chip, kind = ("baseline" if is_baseline else "placebo"), "none"
    elif arm.outcome == BROKEN:
        chip, kind = arm.status_words, "bad"
    elif not arm.outcome:
        chip = "no verdict"
    else:
        kind = CHIPS[arm.outcome]
    value = NOT_MEASURED
    if values is not None:
        value = units.value(values.mean) + (" %" if units.is_share else "")
    facts: list[Cell] = [f"{units.title} {value}"]
    named = [(f"--{name}", text) for name, text in arm.settings.items()]
    named += [("execution", arm.execution)] if arm.execution == "emulated" else []
    if arm.flips is not None:
        changed = f"{mean_count(arm.flips.mean)} of {comparison.examples:,}"
        named.append(("changed predictions", changed))
    named += [
        (column.heading, cell_text(cell))
        for column in cost_columns(comparison)
        if (cell := column.cell(arm)) not in ("", NOT_MEASURED)
    ]
    for name, text in named:
        facts += [LINE, f"{name}: ", Quote(text)]
    blocks: list[Block] = [Paragraph(tuple(facts), "facts")]
    if not is_baseline and arm.difference is not None:
        difference = (
            f"{units.difference_with_unit(arm.difference.estimate)}, "
            f"{confidence_percent(arm.difference.level95)} CI "
            f"{units.interval(arm.difference.interval95)}"
        )
        blocks.insert(0, Figure(strips.scaled_strip(comparison, arm, style, axis), difference))
    if not is_baseline and not arm.is_placebo:
        words = Paragraph(verdict_text(comparison, arm))
        blocks.append(Details("The verdict in words", [words]))
    title = Markup("{} <strong>{}</strong>").format(style.key(), isolated(style.name))
    return Card(title, blocks, kind, chip)
