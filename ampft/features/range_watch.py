"""The ranges of a training, every N steps: headroom, underflow and gradient norm per block.

Hooks are registered for a watched step and removed after it, so they do not affect other steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ampft.features.feature import Feature, SavedFeature, StepRecord, Write
from ampft.models.blocks import module_blocks
from ampft.models.weights import local_part
from ampft.precision.resolve import Precision
from ampft.precision.sharding import is_sharded
from ampft.text.json_io import read_json_lines
from ampft.text.terminal import labelled

if TYPE_CHECKING:
    from accelerate import Accelerator

LOW_HEADROOM = "low_headroom"
MIN_HEADROOM = 1.0  # bits: the next doubling overflows
LARGEST, SUBNORMAL, NONZERO, SQUARES = range(4)  # columns of the table


@dataclass
class RangeWatch(Feature):
    """Measures the ranges of every N-th step.

    Per block of the model it gives

    - `headroom/BLOCK`: bits between the largest absolute value of its activations in the dtype of
      the mode, forward, and the largest number of that dtype;
    - `underflow/BLOCK`: of the entries of its gradient that are not zero, the share that is
      subnormal in that dtype, at the loss scale of the step: these have lost bits, and smaller ones
      are zero (1 if all are). Only weights that are multiplied in that dtype count;
    - `grad_norm/BLOCK`: L2 norm of its gradient, without the loss scale.

    Attributes:
        every: Number N of steps.
        accelerator: Accelerator that prepared the model.
        model: Model as loaded.
        precision: Precision of the training.
        write: Function that prints a line on the main process.
        lowest: Headroom, block and step of the smallest headroom below `MIN_HEADROOM`.
    """

    name = "range_watch"

    every: int
    accelerator: Accelerator
    model: nn.Module
    precision: Precision
    write: Write
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
        table = self._over_processes(measured.table())
        self._figures = measured.figures(table, 1.0 if scaler is None else scaler.get_scale())
        self._warn(step)

    def after_step(self, record: StepRecord) -> Mapping[str, float]:
        """Return the figures of the step; empty if it was not watched."""
        del record
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

    def _over_processes(self, table: Tensor) -> Tensor:
        if self.accelerator.num_processes == 1:
            return table
        tables = self.accelerator.gather(table[None])
        merged = tables.sum(0) if is_sharded(self.accelerator) else table.clone()
        merged[:, LARGEST] = tables[:, :, LARGEST].amax(0)
        return merged

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
        rounded = [t for t in tree_leaves(output) if _has_dtype(t, self._dtype)]
        if not rounded:
            return
        self._rounded.add(module)
        # Autocast has rounded the inputs too.
        floating = [t for t in tree_leaves(inputs) if isinstance(t, Tensor)]
        for tensor in (*rounded, *(t for t in floating if t.is_floating_point())):
            if tensor.numel():
                low, high = torch.aminmax(tensor)
                self._largest[block].append(torch.maximum(-low, high).float())

    @torch.no_grad()
    def table(self) -> Tensor:
        """Return (blocks, 4): the largest activation, and sums over the gradient."""
        rows = {block: [self._zero() for _ in range(4)] for block in self.blocks}
        for block, values in self._largest.items():
            if values:
                rows[block][LARGEST] = torch.stack(values).amax().double()
        seen: set[nn.Parameter] = set()
        for module, block in self._modules.items():
            for parameter in set(module.parameters(recurse=False)) - seen:
                seen.add(parameter)
                if parameter.grad is not None:
                    self._add(rows[block], local_part(parameter.grad), module in self._rounded)
        return torch.stack([torch.stack(row) for row in rows.values()])

    def _zero(self) -> Tensor:
        device = next(self._model.parameters()).device
        return torch.zeros((), dtype=torch.float64, device=device)

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


def _has_dtype(value: Any, dtype: torch.dtype) -> bool:
    return isinstance(value, Tensor) and value.dtype == dtype
