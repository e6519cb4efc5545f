"""The yardstick on a terminal: a table of modes, one of modules, a sentence for each mode."""

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

WIDEST_MODULE = 30  # columns; longer names lose their beginning, which they share
LEAST_PERCENT = 1e-5  # below it there is nothing to see


def format_yardstick(yardstick: Yardstick) -> str:
    """Return the yardstick in lines of at most 100 columns, for up to five modes."""
    parts = [_heading(yardstick.settings)]
    parts += [
        format_checkpoint(checkpoint, yardstick.settings) for checkpoint in yardstick.checkpoints
    ]
    return "\n\n".join(parts)


def format_checkpoint(checkpoint: CheckpointFigures, settings: YardstickSettings) -> str:
    """Return the tables and sentences for one set of weights."""
    whole = checkpoint.whole
    title = (
        f"{inert(checkpoint.name)}: mean gradient {_number(whole.gradient_norm)} (expected one "
        f"{_number(whole.signal)}), noise of a batch {_number(whole.noise)}"
    )
    sentences = (labelled(mode.mode, sentence(mode, settings)) for mode in checkpoint.modes)
    tables = [_modes(checkpoint, settings), _modules(checkpoint)]
    return "\n\n".join([title, *tables, "\n".join(sentences)])


def sentence(mode: ModeFigures, settings: YardstickSettings) -> str:
    """Return what the figures of a mode say, in a sentence or two."""
    whole, n = mode.whole, settings.batches
    if mode.failed_batches:
        scale = "" if mode.initial_scale is None else " at any scale of the loss"
        failed = f"{mode.failed_batches} of {counted(n, 'batch')}"
        return f"no figures: in {failed} the gradient is not finite{scale}."
    if whole.error_over_noise is None:
        return "no figures: the batches have the same gradient, so there is no noise."
    words = (
        f"the error of {mode.mode}'s gradient is {share(whole.error_over_noise)} of the batch "
        f"noise; {_bias_in_words(whole)}."
    )
    if mode.overflowed_batches:
        words += (
            f" {mode.overflowed_batches} of {counted(n, 'batch')} overflowed at scale "
            f"{mode.initial_scale:g}, none at {mode.lowest_scale:g}."
        )
    return words


def share(value: float | None) -> str:
    """Return a ratio in percent with two digits that count: `0.41 %`, `0.000058 %`, `-`."""
    if value is None:
        return "-"
    percent = 100 * value
    if percent == 0:
        return "0 %"
    if percent < LEAST_PERCENT:
        return f"<{LEAST_PERCENT:.5f} %"
    digits = max(0, 1 - math.floor(math.log10(percent)))
    return f"{percent:,.{digits}f} %"


def _heading(settings: YardstickSettings) -> str:
    path = "without padding" if settings.padding_free else "padded"
    lines = {
        "yardstick": "gradient errors against float64, beside the noise of the batches",
        "model": f"{inert(settings.model)}, {path}",
        "data": inert(settings.data),
        "batches": f"{settings.batches} step batches of {settings.effective_batch_size}, dropout "
        f"off; {settings.device}, {counted(settings.cpu_threads, 'thread')}",
    }
    return "\n".join(labelled(name, text) for name, text in lines.items())


def _modes(checkpoint: CheckpointFigures, settings: YardstickSettings) -> str:
    rows = []
    for mode in checkpoint.modes:
        whole = mode.whole
        overflow = f"{mode.overflowed_batches} of {settings.batches}"
        rows.append(
            (
                f"{mode.mode}, {mode.execution}",
                share(whole.error_over_noise),
                _bias(whole),
                share(whole.underflow),
                "-" if mode.initial_scale is None else f"{overflow} at {mode.initial_scale:g}",
            )
        )
    header = ("mode", "error / noise", "bias / noise", "underflow", "overflow")
    return terminal_table(Table(header=header, rows=rows), rule=True)


def _modules(checkpoint: CheckpointFigures) -> str:
    modes = checkpoint.modes
    rows = []
    for index, noise in enumerate(checkpoint.modules):
        errors = (share(mode.modules[index].error_over_noise) for mode in modes)
        size = f"{noise.parameters:,}"
        rows.append((_module(noise.name), size, _number(noise.noise), *errors))
    header = ("error / noise by module", "weights", "noise", *(mode.mode for mode in modes))
    return terminal_table(Table(header=header, rows=rows), rule=True)


def _bias(figures: GradientError) -> str:
    return "none found" if not figures.bias_is_found else share(figures.bias_over_noise)


def _bias_in_words(figures: GradientError) -> str:
    if not figures.bias_is_found or not figures.bias_over_noise:
        return "no part of it is found to be the same in all batches"
    steps = float(f"{figures.bias_over_noise**-2:.1e}")
    # It adds up over steps, while noise adds up as their root.
    return (
        f"the part that all batches share, {share(figures.bias_over_noise)}, stays below the noise "
        f"for about {steps:,.0f} steps"
    )


def _module(name: str) -> str:
    shown = inert(name)
    return shown if len(shown) <= WIDEST_MODULE else f"…{shown[1 - WIDEST_MODULE :]}"


def _number(value: float) -> str:
    return f"{value:.3g}"
