"""doctor.html: a single file without scripts or network access, with its pictures."""

from __future__ import annotations

import math

from markupsafe import Markup

from ampft.comparison.charts import Axis, Plot, element, picture, power_of_two_label, text
from ampft.lab.doctor.diagnosis import Alignment, BatchMean, Diagnosis, Fault, ModuleError
from ampft.lab.doctor.diagnosis_text import (
    ROLES,
    alignment_summary,
    alignment_table,
    diagnosis_answer,
    examples_text,
    innermost_modules_with_error,
    module_table,
    range_text,
)
from ampft.lab.doctor.ranges import BINARY16
from ampft.text.numbers import counted, or_dash, percent
from ampft.text.page import (
    Block,
    Cell,
    Facts,
    Figure,
    Name,
    Notices,
    Page,
    Paragraph,
    Quote,
    Section,
    Subheading,
    Table,
    html_page,
    html_text,
    isolated,
)


def page_text(diagnosis: Diagnosis) -> str:
    """Return the diagnosis as one HTML document, in which every string is inert."""
    setting, cure = diagnosis.setting, diagnosis.cure
    processes = f", {setting.processes} processes" if setting.processes > 1 else ""
    padding = "without padding" if setting.padding_free else "padded"
    facts = (
        f"{counted(setting.examples, 'example')} in {counted(setting.batches, 'batch')} of ",
        *(Quote(setting.data), f"{processes}; {setting.device}, {padding}; "),
        *(Quote(diagnosis.started), "."),
    )
    return html_page(
        Page(
            kind="doctor",
            title=f"{setting.mode}: {setting.model}",
            kicker=("Doctor: ", Quote(setting.model), f" in {setting.mode}, {setting.execution}"),
            headline=f"{setting.mode} {'holds' if diagnosis.holds else 'does not hold'}",
            lead=[Paragraph(_with_code(diagnosis_answer(diagnosis)), "answer")],
            notices=[
                *([] if cure is None else [Notices("Cure", [_with_code(cure.sentence)])]),
                Paragraph(facts, "facts"),
            ],
            sections=[each for each in _sections(diagnosis) if each.blocks],
        )
    )


def _sections(diagnosis: Diagnosis) -> list[Section]:
    faults: list[Block] = []
    for number, fault in enumerate(diagnosis.faults, start=1):
        place = f"{fault.cause[0].upper()}{fault.cause[1:]}: {fault.module or fault.operation}"
        faults.append(Subheading(Quote(place), "harmless" if fault.is_harmless else ""))
        faults.append(Facts(_fault_rows(fault), f"Fault {number}"))
    ranges: list[Block] = []
    if diagnosis.ranges:
        ranges = [Paragraph(_updates_text(diagnosis)), _bits_table(diagnosis)]
    return [
        Section("faults", "Faults", faults),
        Section("gradients", "Gradients", _gradient_figures(diagnosis)),
        Section("alignment", "Compared with float32", _alignment(diagnosis)),
        Section("modules", "Modules", [module_table(diagnosis)] if diagnosis.ranges else []),
        Section("others", "What bf16 and fp8 lose", ranges),
        Section("method", "Method", _method(diagnosis)),
    ]


def _gradient_figures(diagnosis: Diagnosis) -> list[Block]:
    exponents, lost = exponent_chart(diagnosis), gradient_underflow_chart(diagnosis)
    if exponents is None:
        return []
    figures: list[Block] = [
        Figure(
            exponents,
            (
                "Entries of the gradient by exponent, in float32, without zeros. The bars above "
                "show which exponents fp16 has, lighter where its numbers are subnormal; a loss "
                "scale moves them to the left. Red: lost.",
            ),
        )
    ]
    if lost is not None:
        power = Markup("2<sup>\N{MINUS SIGN}24</sup>")
        caption = (
            *("Share of the gradient below ", power),
            " over the loss scale. Dashed: the share that is tolerated. Shaded: scales at which a "
            "gradient exceeds 65,504.",
        )
        figures.append(Figure(lost, caption))
    return figures


def _alignment(diagnosis: Diagnosis) -> list[Block]:
    """Return the errors of the modules compared with float32."""
    alignment, cure = diagnosis.alignment, diagnosis.cure
    if alignment is None:
        return []
    summary = _with_code(alignment_summary(alignment))
    with_cure = " All of this is with the cure." if cure and cure.fp32_modules else ""
    blocks: list[Block] = [Paragraph((summary, with_cure))]
    drawn = alignment_chart(alignment)
    if drawn is not None:
        roles = [part for role, words in ROLES.items() for part in (_dot(role), f" {words}. ")]
        caption = (
            "Relative error of the output of each module without further modules inside, in the "
            "order of the forward pass, with its 95 % interval over the batches. ",
            *(*roles, _dot("gradient"), " Error of the gradient of that output."),
        )
        blocks.append(Figure(drawn, caption))
    return [*blocks, alignment_table(alignment)]


def _dot(class_: str) -> Markup:
    dot = element("circle", cx=5, cy=5, r=4, class_=class_)
    return picture(dot, height=10, alt=None, class_="key")


def _method(diagnosis: Diagnosis) -> list[Block]:
    setting = diagnosis.setting
    emulated = ", emulated as a GPU computes it" if setting.execution == "emulated" else ""
    versions = ", ".join(f"{package} {version}" for package, version in diagnosis.versions.items())
    return [
        Paragraph(
            "All values were recorded in one float32 pass, forward and backward. Then each batch "
            f"was computed in {setting.mode}{emulated}, and every operation was watched. A fault "
            "is the first operation whose result is not finite although its operands are. It was "
            "repeated in float64, which tells a result that is too large for the format from one "
            "that does not exist, and its batch was repeated in float32."
        ),
        Paragraph(versions, "facts"),
    ]


def _with_code(sentence: str) -> Markup:
    """Return a sentence of ampft with its names in backticks as code."""
    spans = []
    for index, part in enumerate(sentence.split("`")):
        words = part.strip()
        if index % 2:
            spans.append(element("code", isolated(part)))
        elif words:  # outer spaces would collapse inside an element
            before, _, after = part.partition(words)
            spans.append(Markup(before) + html_text(words) + Markup(after))
        else:
            spans.append(Markup(part))
    return Markup("").join(spans)


def _fault_rows(fault: Fault) -> list[tuple[str, Cell]]:
    rows: list[tuple[str, Cell]] = [
        ("operation", Name(f"{fault.operation}, {fault.direction}")),
        ("module", Name(fault.module or "none: code of the whole model, or of the loss")),
    ]
    if fault.source:
        rows.append(("source", Quote(fault.source)))
    rows += [("received", Quote(range_text(values))) for values in fault.inputs]
    if fault.largest is not None:
        rows.append(("result in float64", f"up to {fault.largest:,.5g}"))
    if fault.example_ids:
        rows.append(("examples", examples_text(fault)))
    if fault.in_float32 is not None:
        rows.append(("in float32", "fails too" if fault.in_float32 else "does not fail"))
    rows.append(("remedy", fault.remedy))
    return rows


def _bits_table(diagnosis: Diagnosis) -> Table:
    """Return what bfloat16 and fp8 lose, the modules with the coarsest steps first."""
    forward = [each for each in diagnosis.ranges if each.direction == "forward"]
    forward.sort(key=lambda each: -(each.bf16_step or 0))
    backward = {each.module: each for each in diagnosis.ranges if each.direction == "backward"}
    rows = [
        (
            Name(each.module or "(model)"),
            Name(each.kind),
            or_dash(each.bf16_step, lambda step: f"{step:.3g}"),
            or_dash(each.fp8_lost, _percent),
            or_dash(backward[each.module].fp8_lost if each.module in backward else None, _percent),
        )
        for each in forward
    ]
    return Table(
        header=("module", "class", "bf16: step", "fp8: values lost", "fp8: gradient lost"),
        rows=rows,
        note="bf16: distance between neighbouring numbers at the largest value; a sum, a norm or a "
        "softmax cannot resolve less. fp8: share of the values (E4M3) and of the gradient (E5M2) "
        "that become 0 if the tensor is scaled so that its largest value fits.",
        label="Modules in bf16 and fp8",
        left=2,
    )


def _updates_text(diagnosis: Diagnosis) -> str:
    """Return how many weights an update of AdamW does not change in bfloat16."""
    shares = [
        f"{rate} does not change {_percent(share)}"
        for rate, share in diagnosis.bf16_lost_updates.items()
    ]
    return (
        "If the weights are stored in bf16, an update of the size of the learning rate, as AdamW "
        f"makes it, can be lost to rounding: one of {', one of '.join(shares)} of the weights."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


LEFT, RIGHT = 8.0, 98.0  # percent
HEIGHT, TOP, BOTTOM = 290.0, 66.0, 250.0  # pixels
ALIGNMENT_HEIGHT, ALIGNMENT_TOP, ALIGNMENT_BOTTOM = 300.0, 20.0, 262.0
SMALLEST = round(math.log2(BINARY16.smallest_subnormal))
NORMAL = round(math.log2(BINARY16.smallest_normal))
END = 16  # binary16 ends below 2^16
SHOWN_BELOW = 1e-6  # share of the gradient; rarer exponents do not widen the axis


def exponent_chart(diagnosis: Diagnosis) -> Markup | None:
    """Return the histogram of the gradient's exponents with binary16's range; None without one.

    As in figure 2 of Micikevicius et al., "Mixed Precision Training" (2018).
    """
    counts = {int(e): count for e, count in diagnosis.gradient_exponents.items()}
    total = sum(counts.values())
    shown = {e: count / total for e, count in counts.items() if count > SHOWN_BELOW * total}
    if not shown:
        return None
    scales = diagnosis.loss_scales
    scale = 1.0
    if scales is not None and scales.initial is not None:
        scale = scales.found or scales.largest or 1.0
    shift = round(math.log2(scale))
    low = min(*shown, SMALLEST - shift) - 2
    high = max(*shown, END) + 2
    plot = Plot(Axis(low, high, LEFT, RIGHT), Axis(0.0, max(shown.values()) * 1.05, BOTTOM, TOP))
    parts = [
        _shares(plot),
        plot.scale(range(math.ceil(low / 8) * 8, high + 1, 8), power_of_two_label, BOTTOM),
        *_range(plot.x, 0, TOP - 44, "fp16 without a loss scale"),
    ]
    if shift:
        parts += _range(plot.x, shift, TOP - 18, f"fp16 with a loss scale of {scale:,.0f}")
    for e, share in sorted(shown.items()):
        height = max(BOTTOM - plot.y.at(share), 1)
        class_ = "lost" if e < SMALLEST - shift else "kept"
        title = f"2^{e}: {percent(share, 2)}"
        parts.append(plot.x.box(e + 0.07, e + 0.93, plot.y.at(share), height, class_, title))
    lost = sum(share for e, share in shown.items() if e < SMALLEST)
    lost_scaled = sum(share for e, share in shown.items() if e < SMALLEST - shift)
    alt = (
        f"Histogram of the exponents of the gradient. Below 2^-24: {percent(lost, 1)} without a "
        f"loss scale, {percent(lost_scaled, 1)} with a scale of {scale:g}."
    )
    return picture(*parts, height=HEIGHT, alt=alt, class_="chart")


def gradient_underflow_chart(diagnosis: Diagnosis) -> Markup | None:
    """Draw the share of the gradient that is lost at each loss scale; None without gradients."""
    scales = diagnosis.loss_scales
    if scales is None or not diagnosis.gradient_exponents:
        return None
    points = [(math.log2(float(scale)), share) for scale, share in scales.lost.items()]
    top = max(max(share for _, share in points), 2 * scales.tolerated)
    plot = Plot(Axis(points[0][0], points[-1][0], LEFT, RIGHT), Axis(0.0, top, BOTTOM - 30, 20.0))
    parts = []
    if scales.largest is not None and scales.largest < float(2 ** points[-1][0]):
        first = math.log2(scales.largest) + 0.5  # between the last scale that fits and the next
        parts.append(plot.x.box(first, plot.x.high, 20, BOTTOM - 50, "band"))
        parts.append(text("overflow", f"{min(plot.x.at(first) + 1, 88):.2f}%", 34, "tick"))
    powers = range(round(plot.x.low), round(plot.x.high) + 1, 4)
    parts += [
        _shares(plot),
        plot.scale(powers, power_of_two_label, BOTTOM - 30),
        plot.rule(plot.y.at(scales.tolerated), "margin"),
        plot.area(plot.curve(points, "mean a0")),
    ]
    alt = f"Share of the gradient below 2^-24 over the loss scale, from {percent(points[0][1], 1)}"
    return picture(*parts, height=BOTTOM, alt=alt, class_="chart")


def alignment_chart(alignment: Alignment) -> Markup | None:
    """Draw the error of each innermost module's outputs and gradients against float32.

    Errors are relative and have intervals. The modules are in the order of the forward pass. None
    if no such module's outputs differ.
    """
    modules = innermost_modules_with_error(alignment)
    if not modules:
        return None
    values = [each.outputs for each in modules]
    values += [each.gradients for each in modules if each.gradients is not None]
    ends = [end for each in values for end in (each.mean, each.high) if end]
    lows = [each.mean for each in values if each.mean > 0]
    low, high = math.floor(math.log2(min(lows))), math.ceil(math.log2(max(ends)))
    plot = Plot(
        Axis(-0.5, len(modules) - 0.5, LEFT, RIGHT),
        Axis(low, high, ALIGNMENT_BOTTOM, ALIGNMENT_TOP),
    )
    parts = [plot.grid(range(low, high + 1, max(1, round((high - low) / 6))), power_of_two_label)]
    for position, each in enumerate(modules):
        if each.gradients is not None and each.gradients.mean > 0:
            parts += _mark(plot, each, each.gradients, "gradient", position + 0.2)
        parts += _mark(plot, each, each.outputs, each.role or "carried", position)
    parts.append(text("first module", f"{LEFT}%", ALIGNMENT_BOTTOM + 20, "tick"))
    parts.append(text("last module", f"{RIGHT}%", ALIGNMENT_BOTTOM + 20, "tick end"))
    alt = (
        f"Relative error of {len(modules)} modules in {alignment.mode}, in the order of the "
        f"forward pass, from 2^{low} to 2^{high}. {alignment_summary(alignment)}"
    )
    return picture(*parts, height=ALIGNMENT_HEIGHT, alt=alt, class_="chart")


def _mark(
    plot: Plot, module: ModuleError, value: BatchMean, class_: str, position: float
) -> list[Markup]:
    """Return a point and its interval."""
    is_gradient = class_ == "gradient"
    what = "gradient" if is_gradient else "output"
    label = element("title", f"{module.module}: {what} {value.mean:.2g} ({class_})")
    point = element(
        "circle", label, cx=plot.x.percent(position), cy=plot.y.at(math.log2(value.mean)),
        r=2 if is_gradient else 3, class_=class_,
    )  # fmt: skip
    if value.low is None or value.high is None:
        return [point]
    low = plot.y.at(math.log2(value.low)) if value.low > 0 else plot.y.start
    high = plot.y.at(math.log2(value.high))
    return [plot.x.upright(position, low, high, f"interval {class_}"), point]


def _shares(plot: Plot) -> Markup:
    """Return horizontal lines at round shares, with their labels."""
    decimals = 0 if plot.y.high > 0.04 else 1
    return plot.grid(plot.y.ticks(4), lambda share: percent(share, decimals))


def _range(x_axis: Axis, shift: int, y: float, label: str) -> list[Markup]:
    """Return a bar over the exponents that binary16 has, its subnormal part lighter."""
    first, normal, end = (value - shift for value in (SMALLEST, NORMAL, END))
    return [
        x_axis.box(first, normal, y + 6, 9, "subnormal"),
        x_axis.box(normal, end, y + 6, 9, "normal"),
        text(label, x_axis.percent(first), y + 2, "tick"),
    ]
