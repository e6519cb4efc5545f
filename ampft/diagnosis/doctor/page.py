"""doctor.html: a single file without scripts or network access, in the comparison's design."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from ampft.diagnosis.doctor.charts import alignment_chart, exponent_chart, lost_chart
from ampft.diagnosis.doctor.findings import Diagnosis, Fault
from ampft.diagnosis.doctor.show import (
    ROLES,
    alignment_table,
    answer,
    examples_text,
    module_table,
    range_text,
    summary,
)
from ampft.text import page
from ampft.text.charts import element
from ampft.text.numbers import or_dash
from ampft.text.tables import Name, Quote, Table, isolated

TEMPLATE = Path(__file__).with_name("doctor.html.j2")


def page_text(diagnosis: Diagnosis) -> str:
    """Return the diagnosis as one HTML document, in which every string is inert."""
    alignment = diagnosis.alignment
    return page.page_text(
        TEMPLATE,
        d=diagnosis,
        answer=_with_code(answer(diagnosis)),
        cure=None if diagnosis.cure is None else _with_code(diagnosis.cure.sentence),
        faults=[(fault, _fault_table(fault)) for fault in diagnosis.faults],
        title=_title,
        exponents=exponent_chart(diagnosis),
        lost=lost_chart(diagnosis),
        modules=module_table(diagnosis) if diagnosis.ranges else None,
        updates=_updates_text(diagnosis),
        bits=_bits_table(diagnosis) if diagnosis.ranges else None,
        alignment=None
        if alignment is None
        else {
            "chart": alignment_chart(alignment),
            "table": alignment_table(alignment),
            "summary": _with_code(summary(alignment)),
            "roles": ROLES,
        },
        has_media=False,
    )


def _title(fault: Fault) -> str:
    return f"{fault.cause[0].upper()}{fault.cause[1:]}: {fault.module or fault.operation}"


def _with_code(text: str) -> Markup:
    """Return a sentence of ampft with its names in backticks as code."""
    spans = []
    for index, part in enumerate(text.split("`")):
        words = part.strip()
        if index % 2:
            spans.append(element("code", isolated(part)))
        elif words:  # outer spaces would collapse inside an element
            before, _, after = part.partition(words)
            spans.append(Markup(before) + page.no_break_units(words) + Markup(after))
        else:
            spans.append(Markup(part))
    return Markup("").join(spans)


def _fault_table(fault: Fault) -> Table:
    rows: list[tuple[str, str | Name | Quote]] = [
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
    return Table(header=("", ""), rows=rows, left=2)


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
