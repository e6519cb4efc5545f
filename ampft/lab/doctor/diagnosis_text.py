"""A diagnosis as text: the answer in a few sentences, and a table of the modules."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ampft.checks.harm import Harm, ShortTrainingResult
from ampft.lab.doctor.causes import OVERFLOWS
from ampft.lab.doctor.diagnosis import (
    Alignment,
    BatchMean,
    Cause,
    Diagnosis,
    Fault,
    ModuleError,
    ModuleRange,
    ValueRange,
)
from ampft.lab.doctor.ranges import BFLOAT16, BINARY16
from ampft.text.escaping import inert
from ampft.text.numbers import MINUS, counted, number, or_dash, percent
from ampft.text.page import Block, Name, Paragraph, Table, terminal

NAMED = 3  # modules that the text names per role
TOP_MODULES = 10
MAX_MODULE_WIDTH = 34  # columns; half as many for the class
ROLES = {
    "born": "the error is born here: it at least doubles",
    "grows": "it grows",
    "carried": "it is carried on",
    "forgiven": "it is forgiven: it at least halves",
}
EXPLANATION = (
    "Values are from float32. Headroom: bits between the largest value and 65504, negative if "
    "it overflows. Subnormal: share of the values in which binary16 has fewer significant bits. "
    "Lost: share of the gradient below 2^-24 without a loss scale. Zeros do not count."
)


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Return the answer, the faults, the cure and the modules with the least headroom."""
    setting = diagnosis.setting
    batches = f"{counted(setting.examples, 'example')} in {counted(setting.batches, 'batch')}"
    processes = f", {setting.processes} processes" if setting.processes > 1 else ""
    padding = ", without padding" if setting.padding_free else ""
    examined = (
        f"{inert(setting.model)} with {inert(setting.data)}: {batches}; {setting.mode}, "
        f"{setting.execution}, on {setting.device}{processes}{padding}"
    )
    blocks: list[Block] = [
        Paragraph(diagnosis_answer(diagnosis)),
        Paragraph(examined, label="examined"),
        *(block for fault in diagnosis.faults for block in fault_lines(fault)),
    ]
    if diagnosis.cure is not None:
        blocks.append(Paragraph(diagnosis.cure.sentence, label="cure"))
    if diagnosis.ranges:
        blocks.append(module_table(diagnosis, limit=TOP_MODULES))
    return terminal(blocks)


def diagnosis_answer(diagnosis: Diagnosis) -> str:
    """Return the answer in one to three sentences."""
    setting = diagnosis.setting
    harmful = [fault for fault in diagnosis.faults if not fault.is_harmless]
    if not harmful:
        return (
            f"{setting.mode} holds on {counted(setting.examples, 'example')}. {_margins(diagnosis)}"
        )
    first = harmful[0]
    text = f"{_failure(first, diagnosis)}."
    if first.in_float32:
        is_all = all(fault.in_float32 for fault in harmful)
        text += f" float32 fails too{', so no other precision helps' if is_all else ''}."
    others = len(harmful) - 1
    if others:
        text += f" See below for {counted(others, 'more fault')}."
    trial = diagnosis.float32_trial
    if trial is not None and trial.harm() is not None:
        text += f" But this is not a fault of the precision: {_trial_text(trial)}."
    return text


def _trial_text(trial: ShortTrainingResult) -> str:
    """Return why a training in float32 fails, and what to do."""
    ends = f"from {trial.before:.3g} to {trial.after:.3g}" if trial.before and trial.after else ""
    happened = {
        Harm.DIVERGES: f"the loss rises {ends}",
        Harm.LEARNS_NOTHING: f"the loss does not fall ({ends})",
    }.get(trial.harm() or Harm.NOT_FINITE, "loss or weights are not finite")
    return (
        f"float32 fails too with these settings: in {counted(trial.steps, 'step')} with a learning "
        f"rate of {trial.learning_rate:g}, {happened}. Lower --learning_rate"
    )


def _failure(fault: Fault, diagnosis: Diagnosis) -> str:
    setting, mode = diagnosis.setting, diagnosis.setting.mode
    where = ""
    if fault.example_ids:
        where = f" in {len(fault.example_ids)} of {counted(setting.examples, 'example')}"
    name = module_name(fault.module) if fault.module else "code outside of the modules"
    if fault.cause in OVERFLOWS and mode == "fp16" and fault.largest is not None:
        backward = "" if fault.direction == "forward" else " in the backward pass"
        forward = [each for each in diagnosis.ranges if each.direction == "forward"]
        above = sum(each.headroom is not None and each.headroom < 0 for each in forward)
        others = f"; {above} modules exceed it in float32" if above > 1 else ""
        return (
            f"fp16 will overflow{backward}: {name} reaches {fault.largest:,.0f} (largest number of "
            f"fp16: 65,504){where}{others}"
        )
    if fault.cause == Cause.VANISHING and diagnosis.loss_scales is not None:
        lost = percent(diagnosis.loss_scales.lost_at_found, 1)
        scale = diagnosis.loss_scales.found or 1.0
        return (
            f"{mode} loses {lost} of the gradient, most of it in {module_name(fault.module)}: it "
            f"is below 2^-24 at a loss scale of {scale:g}"
        )
    if fault.cause == Cause.ROUNDING and diagnosis.gradient is not None:
        return (
            f"{mode} loses the gradient to rounding: its cosine with float32's is "
            f"{diagnosis.gradient.cosine:z.2f}, because of {name}{_resolution(fault, mode)}"
        )
    return f"{mode} fails: {fault.cause}, in {_operation(fault)}{where}"


def _resolution(fault: Fault, mode: str) -> str:
    """Return how far apart neighbouring numbers are at the largest value of a module."""
    epsilon = {"fp16": BINARY16.epsilon, "bf16": BFLOAT16.epsilon}.get(mode)
    if not fault.largest or epsilon is None:
        return ""
    step = epsilon * 2.0 ** math.floor(math.log2(fault.largest))
    return f", whose values reach {fault.largest:,.4g}, where numbers of {mode} are {step:g} apart"


def _operation(fault: Fault) -> str:
    of_module = f" of {module_name(fault.module)}" if fault.module else ""
    return f"`{inert(fault.operation)}`{of_module} ({fault.direction})"


def _margins(diagnosis: Diagnosis) -> str:
    """Return how far the mode is from failing."""
    forward = [each for each in diagnosis.ranges if each.direction == "forward" and each.largest]
    text = ""
    if forward:
        top = max(forward, key=lambda each: each.largest or 0)
        assert top.headroom is not None
        text = f"The largest value is {top.largest:,.4g}, in {module_name(top.module)}"
        mode = diagnosis.setting.mode
        if mode == "fp16":
            text += f": {number(top.headroom, 1)} bits below 65,504"
        if mode == "bf16":
            text += f", where numbers of bf16 are {top.bf16_step:g} apart"
        text += "."
    scales = diagnosis.loss_scales
    if scales is None or scales.initial is None:
        return text
    if scales.found is not None and scales.found < scales.initial:
        skipped = round(math.log2(scales.initial / scales.found))
        text += (
            f" The scaler will skip {counted(skipped, 'step')} while the loss scale falls from "
            f"{scales.initial:g} to {scales.found:g}, which is harmless."
        )
    if scales.smallest is not None and scales.largest is not None:
        text += (
            f" Loss scales from {scales.smallest:g} to {scales.largest:g} neither overflow nor "
            f"lose more than {percent(scales.tolerated)} of the gradient."
        )
    return text


def fault_lines(fault: Fault) -> list[Paragraph]:
    """Return the lines about one fault."""
    harmless = ", harmless" if fault.is_harmless else ""
    lines = [("fault", f"{fault.cause}{harmless}, in {_operation(fault)}")]
    if fault.source:
        lines.append(("source", fault.source))
    lines += [("inputs", range_text(values)) for values in fault.inputs]
    if fault.example_ids:
        lines.append(("examples", examples_text(fault)))
    return [Paragraph(text, label=label) for label, text in (*lines, ("remedy", fault.remedy))]


def range_text(values: ValueRange) -> str:
    """Return the range of an operand in words."""
    ends = [
        or_dash(end, lambda value: f"{value:,.4g}") for end in (values.smallest, values.largest)
    ]
    return f"{values.name}: absolute values from {ends[0]} to {ends[1]}"


def examples_text(fault: Fault, limit: int = 12) -> str:
    """Return the ids of the examples, and tokens if they are known."""
    ids = ", ".join(map(str, fault.example_ids[:limit]))
    if len(fault.example_ids) > limit:
        ids += f" and {len(fault.example_ids) - limit:,} more"
    if not fault.tokens:
        return ids
    example, token = fault.tokens[0]
    return f"{ids}; the first is token {token} of example {example}"


def module_name(path: str) -> str:
    """Return the path of a module in backticks."""
    return f"`{inert(path or '(model)')}`"


def module_table(diagnosis: Diagnosis, *, limit: int | None = None) -> Table:
    """Return one row per module, those with the least headroom first.

    Args:
        limit: Number of rows, whose names are then cut to fit into a terminal; None for all.
    """
    forward = {each.module: each for each in diagnosis.ranges if each.direction == "forward"}
    backward = {each.module: each for each in diagnosis.ranges if each.direction == "backward"}
    names = sorted({**forward, **backward}, key=lambda name: _headroom(forward.get(name)))
    width = None if limit is None else MAX_MODULE_WIDTH
    rows = [_row(name, forward.get(name), backward.get(name), width) for name in names[:limit]]
    note = EXPLANATION
    if limit is not None and len(names) > limit:
        note = f"The {limit} modules with the least headroom, of {len(names):,}. {note}"
    header = ("module", "class", "largest", "headroom", "subnormal", "gradient", "lost")
    return Table(header=header, rows=rows, note=note, label="Modules", left=2)


def _headroom(values: ModuleRange | None) -> float:
    if values is None:
        return math.inf
    if values.largest is None:
        return -math.inf
    return math.inf if values.headroom is None else values.headroom


def _row(
    name: str, forward: ModuleRange | None, backward: ModuleRange | None, width: int | None
) -> tuple[str | Name, ...]:
    kind = (forward or backward).kind  # type: ignore[union-attr]
    return (
        Name(_cut(name or "(model)", width)),
        Name(_cut(kind, None if width is None else width // 2)),
        _size(forward),
        "-" if forward is None or forward.headroom is None else number(forward.headroom, 1),
        "-" if forward is None else _share(forward.subnormal),
        _size(backward),
        "-" if backward is None else _share(backward.below_smallest),
    )


def _cut(name: str, width: int | None) -> str:
    """Return the end of a name, because the beginnings of paths are what they have in common."""
    return name if width is None or len(name) <= width else f"…{name[1 - width :]}"


def _size(values: ModuleRange | None) -> str:
    if values is None:
        return "-"
    if values.largest is None:
        return "not finite"
    return f"{values.largest:,.3g}".replace("e-", f"e{MINUS}") if values.largest else "0"


def _share(share: float | None) -> str:
    if share is None:
        return "-"
    if share == 0:
        return "0 %"
    if share < 0.001:
        return "<0.1 %"
    return percent(share, 1 if share < 0.1 else 0)


def innermost_modules_with_error(alignment: Alignment) -> list[ModuleError]:
    """Return the modules without modules inside whose outputs differ from float32, in order."""
    return [each for each in alignment.modules if each.is_leaf and each.outputs.mean > 0]


def alignment_summary(alignment: Alignment) -> str:
    """Return which modules increase and reduce the error, and what reaches gradient and loss."""
    changes = {
        each: abs(each.outputs.mean - each.inputs.mean)
        for each in innermost_modules_with_error(alignment)
        if each.inputs is not None
    }
    parts = []
    for name in ("born", "forgiven"):
        chosen = [each for each in changes if each.role == name]
        if chosen:
            chosen.sort(key=lambda each: changes[each], reverse=True)
            listed = ", ".join(f"`{each.module}`" for each in chosen[:NAMED])
            more = f" and {len(chosen) - NAMED} more" if len(chosen) > NAMED else ""
            parts.append(f"The error is {name} in {listed}{more}.")
    cosine, loss = alignment.gradient_cosine, alignment.loss_change
    interval = ""
    if loss.low is not None and loss.high is not None:
        interval = f" (95 % interval {loss.low:+z.2g} to {loss.high:+z.2g})"
    parts.append(
        f"The gradient has a cosine of {cosine.mean:z.6f} with float32's, and the loss "
        f"differs by {loss.mean:+z.2g}{interval}."
    )
    return " ".join(parts)


def alignment_table(alignment: Alignment) -> Table:
    """Return the errors of all modules."""
    rows: Sequence[Sequence[str | Name]] = [
        (
            Name(each.module if each.call == 1 else f"{each.module}, call {each.call}"),
            Name(each.kind),
            each.role,
            _cell(each.inputs),
            _cell(each.outputs),
            _cell(each.gradients),
        )
        for each in alignment.modules
    ]
    header = ("module", "class", "role", "error of input", "of output", "of its gradient")
    return Table(
        header=header,
        rows=rows,
        note="Relative errors of the mode, ||x - x32|| / ||x32||: means over the batches, with "
        "half the width of their 95 % intervals.",
        label="Errors compared with float32",
        left=3,
    )


def _cell(value: BatchMean | None) -> str:
    if value is None:
        return "-"
    half = "" if value.high is None else f" ± {value.high - value.mean:.1g}"
    return f"{value.mean:.2g}{half}"
