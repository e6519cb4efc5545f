"""The yardstick as text: tables of modes and modules, and a summary of each mode."""

from __future__ import annotations

import math

from ampft.diagnosis.yardstick.figures import (
    CheckpointFigures,
    GradientError,
    ModeFigures,
    Yardstick,
    YardstickSettings,
)
from ampft.text.escaping import inert
from ampft.text.numbers import counted
from ampft.text.tables import Table, terminal_table
from ampft.text.terminal import labelled

MAX_MODULE_WIDTH = 30  # columns; longer names are cut at the start, which they have in common
MIN_PERCENT = 1e-5  # smaller values are shown as "<"


def format_yardstick(yardstick: Yardstick) -> str:
    """Return the yardstick as text; at most 100 columns wide for up to five modes."""
    settings = yardstick.settings
    padding = "without padding" if settings.padding_free else "padded"
    lines = {
        "yardstick": "gradient error (compared with float64) relative to batch noise",
        "model": f"{inert(settings.model)}, {padding}",
        "data": inert(settings.data),
        "batches": f"{settings.batches} step batches of {settings.effective_batch_size} examples, "
        f"dropout off; {settings.device}, {counted(settings.cpu_threads, 'thread')}",
    }
    heading = "\n".join(labelled(name, text) for name, text in lines.items())
    parts = (format_checkpoint(checkpoint, settings) for checkpoint in yardstick.checkpoints)
    return "\n\n".join([heading, *parts])


def format_checkpoint(checkpoint: CheckpointFigures, settings: YardstickSettings) -> str:
    """Return the tables and summaries for one set of weights."""
    whole = checkpoint.whole
    title = (
        f"{inert(checkpoint.name)}: norm of the mean gradient {_number(whole.gradient_norm)} "
        f"({_number(whole.signal)} without noise), batch noise {_number(whole.noise)}"
    )
    summaries = (labelled(mode.mode, mode_summary(mode, settings)) for mode in checkpoint.modes)
    tables = [_mode_table(checkpoint, settings), _module_table(checkpoint)]
    return "\n\n".join([title, *tables, "\n".join(summaries)])


def mode_summary(mode: ModeFigures, settings: YardstickSettings) -> str:
    """Return the results of a mode in a sentence or two."""
    whole, n = mode.whole, settings.batches
    if mode.failed_batches:
        scale = "" if mode.initial_scale is None else " at any loss scale"
        failed = f"{mode.failed_batches} of {counted(n, 'batch')}"
        return f"No result, because the gradient of {failed} is not finite{scale}."
    if whole.error_over_noise is None:
        return "No result, because all batches have the same gradient and there is no noise."
    text = (
        f"The gradient error is {share(whole.error_over_noise)} of the batch noise. "
        f"{_bias_text(whole)}."
    )
    if mode.overflowed_batches:
        text += (
            f" {mode.overflowed_batches} of {counted(n, 'batch')} overflowed at loss scale "
            f"{mode.initial_scale:g}, and none at {mode.lowest_scale:g}."
        )
    return text


def share(value: float | None) -> str:
    """Return a ratio in percent with two significant digits: `0.41 %`, `0.000058 %`, `-`."""
    if value is None:
        return "-"
    percent = 100 * value
    if percent == 0:
        return "0 %"
    if percent < MIN_PERCENT:
        return f"<{MIN_PERCENT:.5f} %"
    digits = max(0, 1 - math.floor(math.log10(percent)))
    return f"{percent:,.{digits}f} %"


def _mode_table(checkpoint: CheckpointFigures, settings: YardstickSettings) -> str:
    rows = []
    for mode in checkpoint.modes:
        whole = mode.whole
        overflow = f"{mode.overflowed_batches} of {settings.batches}"
        rows.append(
            (
                f"{mode.mode}, {mode.execution}",
                share(whole.error_over_noise),
                share(whole.bias_over_noise) if whole.has_significant_bias else "not significant",
                share(whole.underflow),
                "-" if mode.initial_scale is None else f"{overflow} at {mode.initial_scale:g}",
            )
        )
    header = ("mode", "error / noise", "bias / noise", "underflow", "overflow")
    return terminal_table(Table(header=header, rows=rows), rule=True)


def _module_table(checkpoint: CheckpointFigures) -> str:
    modes, rows = checkpoint.modes, []
    for index, noise in enumerate(checkpoint.modules):
        errors = (share(mode.modules[index].error_over_noise) for mode in modes)
        name = inert(noise.name)
        if len(name) > MAX_MODULE_WIDTH:
            name = f"…{name[1 - MAX_MODULE_WIDTH :]}"
        rows.append((name, f"{noise.parameters:,}", _number(noise.noise), *errors))
    header = ("error / noise by module", "weights", "noise", *(mode.mode for mode in modes))
    return terminal_table(Table(header=header, rows=rows), rule=True)


def _bias_text(figures: GradientError) -> str:
    if not figures.has_significant_bias or not figures.bias_over_noise:
        return "It has no significant bias"
    steps = float(f"{figures.bias_over_noise**-2:.1e}")
    # Bias grows linearly with the number of steps, but noise only with its square root.
    return (
        f"The bias that all batches share, {share(figures.bias_over_noise)}, stays below the noise "
        f"for about {steps:,.0f} steps"
    )


def _number(value: float) -> str:
    return f"{value:.3g}"
