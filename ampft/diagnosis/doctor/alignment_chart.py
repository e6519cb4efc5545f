"""The picture of an alignment: the error of every module, in the order of the forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from ampft.comparison.report.drawing import Axis, element, exponent, line, picture, text
from ampft.diagnosis.doctor.findings import Alignment, Estimate, ModuleError
from ampft.text.tables import Name, Table

LEFT, RIGHT = 8.0, 98.0  # percent
HEIGHT, TOP, BOTTOM = 300.0, 20.0, 262.0  # pixels
NAMED = 3  # modules that the text names per role
ROLES = {
    "born": "the error is born here: it at least doubles",
    "grows": "it grows",
    "carried": "it is carried on",
    "forgiven": "it is forgiven: it at least halves",
}


def aligned_modules(alignment: Alignment) -> list[ModuleError]:
    """Return the modules of the picture: those without modules inside, in order."""
    return [each for each in alignment.modules if each.is_leaf and each.outputs.mean > 0]


def alignment_chart(alignment: Alignment) -> Markup | None:
    """Return the errors of outputs and gradients with their intervals; None without errors."""
    modules = aligned_modules(alignment)
    if not modules:
        return None
    values = [each.outputs for each in modules]
    values += [each.gradients for each in modules if each.gradients is not None]
    ends = [end for each in values for end in (each.mean, each.high) if end]
    lows = [each.mean for each in values if each.mean > 0]
    y_axis = Axis(math.floor(math.log2(min(lows))), math.ceil(math.log2(max(ends))), BOTTOM, TOP)
    x_axis = Axis(-0.5, len(modules) - 0.5, LEFT, RIGHT)
    parts = []
    step = max(1, round((y_axis.high - y_axis.low) / 6))
    for power in range(round(y_axis.low), round(y_axis.high) + 1, step):
        y = y_axis.at(power)
        parts.append(line(f"{LEFT}%", y, f"{RIGHT}%", y, "grid"))
        parts.append(text(exponent(power), f"{LEFT - 0.8}%", y + 4, "tick end"))
    for position, each in enumerate(modules):
        if each.gradients is not None and each.gradients.mean > 0:
            parts += _mark(each, each.gradients, "gradient", position + 0.2, x_axis, y_axis)
        parts += _mark(each, each.outputs, each.role or "carried", position, x_axis, y_axis)
    parts.append(text("first module", f"{LEFT}%", BOTTOM + 20, "tick"))
    parts.append(text("last module", f"{RIGHT}%", BOTTOM + 20, "tick end"))
    alt = (
        f"Relative error of {len(modules)} modules in {alignment.mode}, in the order of the "
        f"forward pass, from 2^{y_axis.low:.0f} to 2^{y_axis.high:.0f}. {summary(alignment)}"
    )
    return picture(*parts, height=HEIGHT, alt=alt, class_="chart")


def _mark(
    module: ModuleError,
    value: Estimate,
    class_: str,
    position: float,
    x_axis: Axis,
    y_axis: Axis,
) -> list[Markup]:
    """Return a point and its interval."""
    x, y = x_axis.percent(position), y_axis.at(math.log2(value.mean))
    what = "gradient" if class_ == "gradient" else "output"
    label = element("title", f"{module.module}: {what} {value.mean:.2g} ({class_})")
    point = element("circle", label, cx=x, cy=y, r=3 if class_ != "gradient" else 2, class_=class_)
    if value.low is None or value.high is None:
        return [point]
    low = y_axis.at(math.log2(value.low)) if value.low > 0 else BOTTOM
    return [line(x, low, x, y_axis.at(math.log2(value.high)), f"interval {class_}"), point]


def summary(alignment: Alignment) -> str:
    """Return where the error is born and forgiven, and what reaches gradient and loss."""
    modules = [each for each in aligned_modules(alignment) if each.inputs is not None]
    parts = []
    for name in ("born", "forgiven"):
        chosen = sorted((each for each in modules if each.role == name), key=_change, reverse=True)
        if chosen:
            listed = ", ".join(f"`{each.module}`" for each in chosen[:NAMED])
            more = f" and {len(chosen) - NAMED} more" if len(chosen) > NAMED else ""
            parts.append(f"The error is {name} in {listed}{more}.")
    cosine, loss = alignment.gradient_cosine, alignment.loss_change
    parts.append(
        f"The gradient has a cosine of {cosine.mean:.6f} with that of float32, and the loss "
        f"differs by {loss.mean:+.2g}{_interval(loss)}."
    )
    return " ".join(parts)


def _change(module: ModuleError) -> float:
    assert module.inputs is not None
    return abs(module.outputs.mean - module.inputs.mean)


def _interval(value: Estimate) -> str:
    if value.low is None or value.high is None:
        return ""
    return f" (95 % interval {value.low:+.2g} to {value.high:+.2g})"


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
        left=3,
    )


def _cell(value: Estimate | None) -> str:
    if value is None:
        return "-"
    half = "" if value.high is None else f" ± {value.high - value.mean:.1g}"
    return f"{value.mean:.2g}{half}"
