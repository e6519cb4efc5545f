"""`--watch`: the ranges of every N-th step.

A watched step gives headroom, underflow and gradient norm per block. Its hooks are registered for
the step and removed after it, so they do not affect other steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ampft.checks.blocks import module_blocks
from ampft.features.feature import Feature, SavedFeature, StepRecord, Write
from ampft.models.weights import local_shard
from ampft.precision.accelerator import is_sharded
from ampft.precision.resolve import Precision
from ampft.text.json_io import read_json_lines
from ampft.text.terminal import labelled

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
