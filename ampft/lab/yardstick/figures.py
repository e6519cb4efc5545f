"""The results of the yardstick, the running sums over step batches behind them, and their text.

The sums keep no gradients, with Welford's algorithm for the noise. Sums are float64. Besides the
current gradients, the noise and each mode keep one float32 vector of the length of the gradient.
Rounding these vectors changes no figure by more than 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import torch
from torch import Tensor

from ampft.checks.blocks import ParameterBlocks
from ampft.machine import versions
from ampft.text.escaping import inert
from ampft.text.numbers import counted
from ampft.text.page import Table, terminal_table
from ampft.text.terminal import labelled

SCHEMA = 1
WHOLE_GRADIENT = "whole gradient"
INITIAL_WEIGHTS = "initial weights"
MIN_BIAS_Z = 2.0  # exceeded by 2.3 % of modes without a bias, by the normal distribution
# Noise below this share of the gradient is only rounding of the float32 mean.
MIN_RELATIVE_NOISE = 1e-6
CHUNK_SIZE = 2**20  # entries; a few chunks nearly fit into a processor's cache
MAX_MODULE_WIDTH = 30  # columns; longer names are cut at the start, which they have in common
MIN_PERCENT = 1e-5  # smaller values are shown as "<"
Gradient = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class GradientNoise:
    """The float64 gradients of the step batches, over all entries or the entries of a module."""

    name: str  # `WHOLE_GRADIENT` or the name of the module.
    parameters: int  # Number of trainable entries.
    gradient_norm: float  # Norm of the mean over the batches.
    signal: float  # Estimated norm of the expected gradient; 0 if the noise hides it.
    noise: float  # Square root of the trace of the covariance of a batch's gradient.


@dataclass(frozen=True, kw_only=True)
class GradientError:
    """The errors of a mode relative to the noise; see `ampft.lab.yardstick` for formulas."""

    name: str  # Name as in `GradientNoise`.
    # Root mean square error of a batch's gradient divided by the noise; None if there is no noise,
    # or the mode has no finite gradient.
    error_over_noise: float | None = None
    # Error that all batches share, divided by the noise; None likewise.
    bias_over_noise: float | None = None
    bias_z: float | None = None  # z-score of the bias; None likewise.
    underflow: float | None = None  # Share of the entries that became zero, 0 to 1; None likewise.

    @property
    def has_significant_bias(self) -> bool:
        """Whether the bias exceeds what chance explains."""
        return self.bias_z is not None and self.bias_z > MIN_BIAS_Z


@dataclass(frozen=True, kw_only=True)
class ModeFigures:
    """The results of one mode."""

    mode: str  # One of `ampft.MODES`.
    execution: str  # `native` or `emulated`.
    executed: str  # Measured dtypes of its products, in one clause.
    initial_scale: float | None  # Loss scale at which every batch started; None without a scaler.
    lowest_scale: float | None  # Lowest loss scale that a finite gradient needed.
    overflowed_batches: int  # Number of batches whose gradient overflowed at the initial scale.
    failed_batches: int  # Number of batches without a finite gradient at any scale.
    whole: GradientError  # Errors over all entries.
    modules: Sequence[GradientError]  # Errors by module, in the order of the model.


@dataclass(frozen=True, kw_only=True)
class CheckpointFigures:
    """The yardstick for one set of weights."""

    name: str  # `INITIAL_WEIGHTS`, or the folder of the run as the user named it.
    whole: GradientNoise  # Noise over all entries.
    modules: Sequence[GradientNoise]  # Noise by module.
    modes: Sequence[ModeFigures]  # Results by mode, in the requested order.


@dataclass(frozen=True, kw_only=True)
class YardstickSettings:
    """The settings of the measurement."""

    modes: Sequence[str]  # Requested modes, in order.
    batches: int  # Number n of step batches.
    effective_batch_size: int  # Examples per step batch.
    micro_batches: int  # Micro-batches per step batch.
    model: str  # Name of the model.
    data: str  # Name of the data.
    seed: int  # Seed of classification head and data order.
    device: str  # Device type, such as `cpu`.
    cpu_threads: int  # CPU threads of the process.
    padding_free: bool  # Whether the modes ran without padding.


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """The gradient errors of modes relative to batch noise, for one or more sets of weights."""

    settings: YardstickSettings  # Settings of the measurement.
    # Results by set of weights, the initial weights first.
    checkpoints: Sequence[CheckpointFigures]
    versions: Mapping[str, str] = field(default_factory=versions)  # Package versions.
    # Start time, ISO 8601, UTC.
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA  # Version of this layout.


@dataclass(frozen=True)
class StepGradient:
    """The gradient of a step batch, as the optimizer would receive it."""

    # Parameter -> float32 tensor, unscaled; None if not finite at any loss scale.
    gradient: Gradient | None
    overflowed: bool = False  # Whether it overflowed at the initial loss scale.
    scale: float | None = None  # Loss scale at which it was finite; None without a scaler.


class NoiseSums:
    """Sums of the float64 gradients of the batches so far.

    Args:
        blocks: Blocks of the model.
    """

    def __init__(self, blocks: ParameterBlocks) -> None:
        self.batches = 0
        self._blocks = blocks
        self._mean: dict[str, Tensor] = {}
        self._squares = [0.0] * len(blocks.names)

    def add(self, exact: Gradient) -> None:
        """Add a batch.

        Args:
            exact: Parameter -> float64 gradient, for every trainable parameter.
        """
        self.batches += 1
        for name, block in self._blocks.of_parameter.items():
            if name not in self._mean:
                self._mean[name] = torch.zeros(exact[name].shape, device=exact[name].device)
            total = torch.zeros((), dtype=torch.float64, device=exact[name].device)
            for gradient, mean in _chunks(exact[name], self._mean[name]):
                change = gradient - mean
                total += change @ change
                mean += (change / self.batches).float()
            self._squares[block] += float(total) * (self.batches - 1) / self.batches

    def figures(self) -> tuple[GradientNoise, tuple[GradientNoise, ...]]:
        """Return the noise of the whole gradient, and of each block."""
        squared_means = [0.0] * len(self._blocks.names)
        for name, block in self._blocks.of_parameter.items():
            squared_means[block] += sum(
                float(chunk.double().square().sum()) for (chunk,) in _chunks(self._mean[name])
            )
        parts = list(zip(self._blocks.sizes, squared_means, self._squares, strict=True))
        sizes, means, squares = (sum(column) for column in zip(*parts, strict=True))
        whole = self._figures(WHOLE_GRADIENT, int(sizes), means, squares)
        named = zip(self._blocks.names, parts, strict=True)
        return whole, tuple(self._figures(name, *part) for name, part in named)

    def _figures(self, name: str, size: int, squared_mean: float, squares: float) -> GradientNoise:
        variance = squares / (self.batches - 1)
        return GradientNoise(
            name=name,
            parameters=size,
            gradient_norm=math.sqrt(squared_mean),
            signal=math.sqrt(max(0.0, squared_mean - variance / self.batches)),
            noise=math.sqrt(variance),
        )


class ErrorSums:
    """Sums of the errors of a mode in the batches so far.

    Args:
        blocks: Blocks of the model.
    """

    def __init__(self, blocks: ParameterBlocks) -> None:
        self.batches = 0
        self.overflowed = 0
        self.failed = 0
        self.lowest_scale: float | None = None
        self._blocks = blocks
        self._sum: dict[str, Tensor] = {}
        # Per block, with all blocks last: |e|^2, h, h^2, underflowed entries, nonzero entries.
        self._totals = torch.zeros(len(blocks.names) + 1, 5, dtype=torch.float64)

    def add(self, step_gradient: StepGradient, exact: Gradient) -> None:
        """Add a batch.

        Args:
            exact: Parameter -> float64 gradient.
        """
        self.batches += 1
        self.overflowed += step_gradient.overflowed
        if step_gradient.gradient is None:
            self.failed += 1
            return
        scale = step_gradient.scale
        if scale is not None:
            self.lowest_scale = min(scale, self.lowest_scale or scale)
        batch = torch.zeros_like(self._totals)
        for name, block in self._blocks.of_parameter.items():
            gradient = step_gradient.gradient[name].to(exact[name].device)
            if name not in self._sum:
                self._sum[name] = torch.zeros(gradient.shape, device=gradient.device)
            batch[block] += _error_totals(gradient, exact[name], self._sum[name]).cpu()
        batch[-1] = batch[:-1].sum(dim=0)
        batch[:, 2] = batch[:, 1].square()
        self._totals += batch

    def figures(
        self, whole: GradientNoise, modules: tuple[GradientNoise, ...]
    ) -> tuple[GradientError, tuple[GradientError, ...]]:
        """Return the errors relative to the noise from `NoiseSums.figures`."""
        rows = self._totals.tolist()
        named = zip(modules, rows[:-1], strict=True)
        return self._figures(whole, rows[-1]), tuple(self._figures(n, row) for n, row in named)

    def _figures(self, noise: GradientNoise, row: list[float]) -> GradientError:
        squares, products, squared_products, underflowed, nonzero = row
        if self.failed or noise.noise <= MIN_RELATIVE_NOISE * noise.gradient_norm:
            return GradientError(name=noise.name)
        n = self.batches
        bias = math.sqrt(max(0.0, 2 * products / (n * (n - 1))))
        return GradientError(
            name=noise.name,
            error_over_noise=math.sqrt(squares / n) / noise.noise,
            bias_over_noise=bias / noise.noise,
            bias_z=products / math.sqrt(squared_products) if squared_products else 0.0,
            underflow=underflowed / nonzero if nonzero else 0.0,
        )


def _error_totals(computed: Tensor, exact: Tensor, error_sum: Tensor) -> Tensor:
    """Return the (5,) totals of one parameter, and add its error to `error_sum`."""
    totals = torch.zeros(5, dtype=torch.float64, device=exact.device)
    for gradient, reference, previous in _chunks(computed, exact, error_sum):
        error = gradient.double() - reference
        nonzero = reference != 0
        totals[0] += error @ error
        totals[1] += error @ previous.double()
        totals[3] += (nonzero & (gradient == 0)).sum()
        totals[4] += nonzero.sum()
        previous += error.float()
    return totals


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield corresponding chunks of the tensors, writable views if they are contiguous."""
    flat = [tensor.reshape(-1).split(CHUNK_SIZE) for tensor in tensors]
    yield from zip(*flat, strict=True)


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
        f"The gradient error is {two_digit_percent(whole.error_over_noise)} of the batch noise. "
        f"{_bias_text(whole)}."
    )
    if mode.overflowed_batches:
        text += (
            f" {mode.overflowed_batches} of {counted(n, 'batch')} overflowed at loss scale "
            f"{mode.initial_scale:g}, and none at {mode.lowest_scale:g}."
        )
    return text


def two_digit_percent(value: float | None) -> str:
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
                two_digit_percent(whole.error_over_noise),
                two_digit_percent(whole.bias_over_noise)
                if whole.has_significant_bias
                else "not significant",
                two_digit_percent(whole.underflow),
                "-" if mode.initial_scale is None else f"{overflow} at {mode.initial_scale:g}",
            )
        )
    header = ("mode", "error / noise", "bias / noise", "underflow", "overflow")
    return terminal_table(Table(header=header, rows=rows), rule=True)


def _module_table(checkpoint: CheckpointFigures) -> str:
    modes, rows = checkpoint.modes, []
    for index, noise in enumerate(checkpoint.modules):
        errors = (two_digit_percent(mode.modules[index].error_over_noise) for mode in modes)
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
        f"The bias that all batches share, {two_digit_percent(figures.bias_over_noise)}, stays "
        f"below the noise for about {steps:,.0f} steps"
    )


def _number(value: float) -> str:
    return f"{value:.3g}"
