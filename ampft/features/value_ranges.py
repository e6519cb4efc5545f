"""Values out of range: steps that are not finite, and the ranges of every N-th step.

A watched step gives headroom, underflow and gradient norm per block. Its hooks are registered for
the step and removed after it, so they do not affect other steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ampft.engine.saved_step import StepRandomState, save_step
from ampft.engine.step import StepOutcome
from ampft.features.feature import Feature, SavedFeature, StepRecord, Write
from ampft.models.blocks import module_blocks
from ampft.models.weights import local_shard
from ampft.precision.accelerator import is_sharded
from ampft.precision.resolve import Precision
from ampft.text.json_io import read_json_lines
from ampft.text.numbers import counted
from ampft.text.terminal import labelled

# A run with `--on_nonfinite skip` stops at the next such step.
MAX_SKIPPED = 10
MAX_SAVED = 3  # each has a copy of the weights
# A scaler that finds its scale falls a few times at the start, and later about once in 2000 steps,
# after which it rises again.
MAX_FALLS = 10

SKIPPED_NONFINITE = "skipped_nonfinite"
FALLING_SCALE = "falling_loss_scale"


@dataclass
class NonfiniteSkips:
    """Counts of steps skipped so far, and of falls of the loss scale."""

    # Steps skipped because their loss or gradient was not finite, without a scaler.
    skipped: int = 0
    scale: float | None = None  # Loss scale after the last step; None without a scaler.
    falls: int = 0  # Number of times that the loss scale fell since it last rose.
    # First step at which it had fallen `MAX_FALLS` times; None if it never has.
    alarm_step: int | None = None
    alarm_scale: float | None = None  # Loss scale after that step.

    @property
    def may_skip(self) -> bool:
        """Whether another step that is not finite may be skipped."""
        return self.skipped < MAX_SKIPPED

    def add(self, step: int, outcome: StepOutcome) -> bool:
        """Add a step, from 1; return whether the loss scale has now fallen `MAX_FALLS` times."""
        if outcome.loss_scale is None:
            self.skipped += outcome.skipped
            return False
        if self.scale is not None and outcome.loss_scale > self.scale:
            self.falls = 0
        self.falls += outcome.skipped
        self.scale = outcome.loss_scale
        is_alarm = outcome.skipped and self.falls == MAX_FALLS
        if is_alarm and self.alarm_step is None:
            self.alarm_step, self.alarm_scale = step, self.scale
        return is_alarm

    def warnings(self) -> dict[str, str]:
        """Return reasons not to trust the run, by name."""
        warnings = {}
        if self.skipped:
            warnings[SKIPPED_NONFINITE] = (
                f"--on_nonfinite skip: the loss or gradient was not finite in "
                f"{counted(self.skipped, 'step')}, which had no effect on the weights; nonfinite/ "
                "has the first."
            )
        if self.alarm_step is not None:
            warnings[FALLING_SCALE] = (
                f"the loss scale fell {MAX_FALLS} times without rising in between, to "
                f"{self.alarm_scale:g} at step {self.alarm_step}: fp16 overflows again and again, "
                "and at a small scale small gradients become 0. Use --mixed_precision bf16, or "
                "lower --learning_rate."
            )
        return warnings


@dataclass
class NonfiniteStepMonitor(Feature):
    """Counts, prints and saves the steps of a run whose loss or gradient is not finite."""

    name = "nonfinite"

    folder: Path  # Folder for saved steps, in the output folder of the run.
    accelerator: Accelerator  # Accelerator that prepared the model.
    model: nn.Module  # Prepared model.
    mode: str  # Precision of the run.
    skips: bool  # Whether steps are skipped that are not finite, without a scaler.
    write: Write  # Function that prints a line.
    saves: bool = True  # Whether such steps are saved, for `ampft doctor`.
    # Counts of what went wrong so far.
    watch: NonfiniteSkips = field(default_factory=NonfiniteSkips)
    _start: StepRandomState | None = None

    @property
    def may_skip(self) -> bool:
        """Whether to skip the next step that is not finite, without a scaler."""
        return self.skips and self.watch.may_skip

    @contextmanager
    def around_gradient(self, step: int) -> Iterator[None]:
        """Remember the random state before a step."""
        self._start = StepRandomState.now(self.accelerator.device)
        yield

    def after_step(self, record: StepRecord) -> Mapping[str, float]:
        """Save and print a step that was not finite and that no scaler skipped.

        Returns:
            The column `alarm`: whether the loss scale has now fallen too often.
        """
        if record.ends_run:
            self._save(record)
            return {"alarm": False}
        earlier = self.watch.skipped
        is_alarm = self.watch.add(record.number, record.outcome)
        if is_alarm:
            self.write(labelled("alarm", self.watch.warnings()[FALLING_SCALE]))
        if self.watch.skipped > earlier:
            loss, norm = record.outcome.loss, record.outcome.grad_norm
            text = (
                f"step {record.number}, whose loss ({loss:g}) or gradient (norm {norm:g}) is not "
                f"finite; {self.watch.skipped} of at most {MAX_SKIPPED} such steps"
            )
            self.write(labelled("skipped", text))
            if self.watch.skipped <= MAX_SAVED:
                self._save(record)
        return {"alarm": is_alarm}

    def _save(self, record: StepRecord) -> None:
        if not self.saves:
            return
        assert self._start is not None
        folder = self.folder / f"step-{record.number}"
        try:
            save_step(
                folder,
                self.accelerator,
                self.model,
                record.batch,
                step=record.number,
                mode=self.mode,
                loss_scale=self.watch.scale,
                start=self._start,
                losses=record.losses,
            )
        except OSError as error:  # the run goes on, or says why it stops
            self.write(labelled("saved", f"nothing of step {record.number}: {error}"))
        else:
            self.write(labelled("saved", f"{folder}: weights, examples and random state"))
            self.write(labelled("diagnose", f"ampft doctor {self.folder.parent}"))

    def warnings(self) -> Mapping[str, str]:
        return self.watch.warnings()

    def state(self) -> NonfiniteSkips:
        return self.watch

    def restore(self, saved: SavedFeature) -> None:
        """Continue counting."""
        self.watch = saved.state


LOW_HEADROOM = "low_headroom"
MIN_HEADROOM = 1.0  # bits: the next doubling overflows
LARGEST, SUBNORMAL, NONZERO, SQUARES = range(4)  # columns of the table


@dataclass
class ValueRangeMonitor(Feature):
    """Measures the ranges of every N-th step.

    Per block of the model it gives

    - `headroom/BLOCK`: bits between the largest absolute value of its activations in the dtype of
      the mode, forward, and the largest number of that dtype;
    - `underflow/BLOCK`: of the entries of its gradient that are not zero, the share that is
      subnormal in that dtype, at the loss scale of the step: these have lost bits, and smaller ones
      are zero (1 if all are). Only weights that are multiplied in that dtype count;
    - `grad_norm/BLOCK`: L2 norm of its gradient, without the loss scale.
    """

    name = "range_watch"

    every: int  # Number N of steps.
    accelerator: Accelerator  # Accelerator that prepared the model.
    model: nn.Module  # Model as loaded.
    precision: Precision  # Precision of the training.
    write: Write  # Function that prints a line on the main process.
    # Headroom, block and step of the smallest headroom below `MIN_HEADROOM`.
    lowest: tuple[float, str, int] | None = None
    _warned: set[str] = field(default_factory=set)
    _figures: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def around_gradient(self, step: int) -> Iterator[None]:
        """Return a context that measures the gradient of step `step`, from 1, if it is watched.

        Args:
            step: Number of the step whose forward and backward passes are inside.
        """
        if step % self.every:
            yield
            return
        measured = _Ranges(self.model, self.precision.compute_dtype)
        with measured.hooked():
            yield
        scaler = self.accelerator.scaler
        table = measured.table()
        if self.accelerator.num_processes > 1:
            tables = self.accelerator.gather(table[None])
            if is_sharded(self.accelerator):
                table = tables.sum(0)
            table[:, LARGEST] = tables[:, :, LARGEST].amax(0)
        self._figures = measured.figures(table, 1.0 if scaler is None else scaler.get_scale())
        self._warn(step)

    def after_step(self, record: StepRecord) -> Mapping[str, float]:
        """Return the figures of the step; empty if it was not watched."""
        figures, self._figures = self._figures, {}
        return figures

    def warnings(self) -> dict[str, str]:
        """Return reasons not to trust the run, by name."""
        if self.lowest is None:
            return {}
        bits, block, step = self.lowest
        return {LOW_HEADROOM: f"step {step}: {self._describe(block, bits)}"}

    def restore(self, saved: SavedFeature) -> None:
        """Continue after the steps in the history, which has all figures."""
        for row in read_json_lines(saved.history, "history.jsonl"):
            figures = {name: value for name, value in row.items() if name.startswith("headroom/")}
            self._figures = {name: float(value) for name, value in figures.items()}
            self._warn(row["step"], quiet=True)
        self._figures = {}

    def _warn(self, step: int, *, quiet: bool = False) -> None:
        for name, bits in self._figures.items():
            kind, _, block = name.partition("/")
            if kind != "headroom" or not bits < MIN_HEADROOM:
                continue
            if self.lowest is None or bits < self.lowest[0]:
                self.lowest = (bits, block, step)
            if block not in self._warned:
                self._warned.add(block)
                if not quiet:
                    self.write(labelled("headroom", f"step {step}: {self._describe(block, bits)}"))

    def _describe(self, block: str, bits: float) -> str:
        mode, limit = self.precision.mode, torch.finfo(self.precision.compute_dtype).max
        cure = (
            f"To find the module and a cure, run ampft doctor --mixed_precision {mode} -- with the "
            "flags of this run."
        )
        if bits <= 0:
            return f"{block} exceeds the largest number of {mode}, {limit:,.0f}. {cure}"
        return (
            f"{block} reaches {limit / 2**bits:,.0f}, {bits:.1f} bits below the largest number of "
            f"{mode}, {limit:,.0f}. {cure}"
        )


def _strided(values: Any) -> list[Tensor]:
    """Return the tensors in arguments or results, without sparse ones, which have no extremes."""
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    return [tensor for tensor in tensors if tensor.layout is torch.strided]


class _Ranges:
    """The ranges of one step.

    Args:
        model: Model.
        dtype: Dtype of the mode's products.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._model, self._format = model, torch.finfo(dtype)
        self._dtype = dtype
        paths = module_blocks(model)
        names = {module: paths.get(path, "model") for path, module in model.named_modules()}
        weighted = {name for m, name in names.items() if list(m.parameters(recurse=False))}
        self.blocks = [name for name in dict.fromkeys(names.values()) if name in weighted]
        self._modules = {module: name for module, name in names.items() if name in weighted}
        self._largest: dict[str, list[Tensor]] = {block: [] for block in self.blocks}
        self._rounded: set[nn.Module] = set()

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Return a context in which the activations are measured."""
        hooks = [
            module.register_forward_hook(partial(self._measure, block))
            for module, block in self._modules.items()
            if not list(module.children())
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def _measure(self, block: str, module: nn.Module, inputs: Any, output: Any) -> None:
        rounded = [t for t in _strided(output) if t.dtype == self._dtype]
        if not rounded:
            return
        self._rounded.add(module)
        # Autocast has rounded the inputs too.
        for tensor in (*rounded, *(t for t in _strided(inputs) if t.is_floating_point())):
            if tensor.numel():
                low, high = torch.aminmax(tensor)
                self._largest[block].append(torch.maximum(-low, high).float())

    @torch.no_grad()
    def table(self) -> Tensor:
        """Return (blocks, 4): the largest activation, and sums over the gradient."""
        zero = torch.zeros((), dtype=torch.float64, device=next(self._model.parameters()).device)
        rows = {block: [zero] * 4 for block in self.blocks}
        for block, values in self._largest.items():
            if values:
                rows[block][LARGEST] = torch.stack(values).amax().double()
        seen: set[nn.Parameter] = set()
        for module, block in self._modules.items():
            for parameter in set(module.parameters(recurse=False)) - seen:
                seen.add(parameter)
                if parameter.grad is not None:
                    self._add(rows[block], local_shard(parameter.grad), module in self._rounded)
        return torch.stack([torch.stack(row) for row in rows.values()])

    def _add(self, row: list[Tensor], gradient: Tensor, is_rounded: bool) -> None:
        row[SQUARES] = row[SQUARES] + gradient.float().square().sum(dtype=torch.float64)
        if is_rounded:
            nonzero = gradient != 0
            small = gradient.abs() < self._format.smallest_normal
            row[NONZERO] = row[NONZERO] + nonzero.sum()
            row[SUBNORMAL] = row[SUBNORMAL] + small.logical_and_(nonzero).sum()

    def figures(self, table: Tensor, scale: float) -> dict[str, float]:
        """Return the figures of all blocks by name.

        Args:
            table: Result of `table`, of all processes.
            scale: Loss scale, by which the gradient is multiplied.
        """
        found = {}
        for block, row in zip(self.blocks, table.tolist(), strict=True):
            largest, subnormal, nonzero, squares = row
            if self._largest[block]:
                found[f"headroom/{block}"] = _headroom(largest, self._format.max)
            trained = [
                module
                for module, name in self._modules.items()
                if name == block and any(p.requires_grad for p in module.parameters(recurse=False))
            ]
            if self._rounded.intersection(trained):
                found[f"underflow/{block}"] = subnormal / nonzero if nonzero else 1.0
            if trained:
                found[f"grad_norm/{block}"] = math.sqrt(squares) / scale
        return found


def _headroom(largest: float, limit: float) -> float:
    """Return the bits below the limit; negative infinity for NaN."""
    if not math.isfinite(largest):
        return -math.inf
    return math.log2(limit / largest) if largest else math.inf
