"""The range scan: the values of every module in float32, compared with smaller formats' ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ampft.lab.doctor.causes import floating_tensors
from ampft.lab.doctor.diagnosis import ModuleRange
from ampft.lab.doctor.places import BatchShape
from ampft.precision.modes import FORMATS

_FORMATS = {each.name: each for each in FORMATS}
BINARY16 = _FORMATS["float16"]
BFLOAT16 = _FORMATS["bfloat16"]
FP8 = {"forward": _FORMATS["float8_e4m3fn"], "backward": _FORMATS["float8_e5m2"]}

# Float32 has exponents -149 to 127. Position 0 counts zeros.
_FIRST, _LAST = -149, 127
SCALES = tuple(2.0**power for power in range(0, 33))  # a scaler has no upper limit
LEARNING_RATES = (1e-5, 1e-4, 1e-3)


@dataclass
class ExponentCounts:
    """Counts of values by exponent, and the largest one."""

    # (278,) int64: zeros, then the exponents -149 to 127.
    counts: Tensor = field(default_factory=lambda: torch.zeros(_LAST - _FIRST + 2).long())
    largest: float = 0.0  # Largest absolute value; infinity if one is not finite.
    # Ids of examples with a value above 65504.
    examples_above: set[int] = field(default_factory=set)

    def add(self, tensor: Tensor, shape: BatchShape | None = None) -> None:
        """Add the values of a tensor.

        Args:
            shape: Layout of the batch; None does not count examples.
        """
        size = tensor.detach().float().abs()
        if not size.numel():
            return
        # Of an infinity or a NaN, the exponent is not defined.
        exponents = torch.frexp(size).exponent - 1
        index = torch.where(size == 0, 0, exponents - _FIRST + 1).clamp_(0, len(self.counts) - 1)
        self.counts += torch.bincount(index.flatten(), minlength=len(self.counts)).cpu()
        largest = float(size.max())
        self.largest = max(self.largest, largest if math.isfinite(largest) else math.inf)
        if shape is not None and self.largest > BINARY16.largest:
            places = shape.places(~(size <= BINARY16.largest))
            if places is not None:
                self.examples_above |= {shape.ids[row] for row in places.rows}

    def merge(self, other: ExponentCounts) -> None:
        """Add the values that another process counted."""
        self.counts += other.counts
        self.largest = max(self.largest, other.largest)
        self.examples_above |= other.examples_above

    @property
    def zeros(self) -> int:
        return int(self.counts[0])

    @property
    def entries(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    @property
    def exponents(self) -> dict[int, int]:
        """Number of values by exponent, without zeros."""
        pairs = enumerate(self.counts[1:].tolist(), start=_FIRST)
        return {exponent: count for exponent, count in pairs if count}

    def share_below(self, exponent: float) -> float | None:
        """Return the share of the values below 2^exponent, without zeros; None if all are 0."""
        exponents = self.exponents
        total = sum(exponents.values())
        if not total:
            return None
        return sum(count for e, count in exponents.items() if e < exponent) / total


class RangeRecorder:
    """Context that records the values of every module, forward and backward.

    Modules must compute in float32. Hooks are removed on exit. Call `add_parameters` after the
    backward pass.

    Args:
        model: Model to record.
    """

    def __init__(self, model: nn.Module) -> None:
        # Values by module path and direction.
        self.values: dict[tuple[str, str], ExponentCounts] = {}
        # Values of the gradients of parameters and of outputs of modules without children.
        self.gradients = ExponentCounts()
        # Layout of the current batch, set by the caller; None does not count examples.
        self.shape: BatchShape | None = None
        self._model = model
        self._hooks = ExitStack()

    def __enter__(self) -> RangeRecorder:
        for name, module in self._model.named_modules():
            is_leaf = next(module.children(), None) is None
            handle = module.register_forward_hook(partial(self._record, name, is_leaf))
            self._hooks.callback(handle.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def add_parameters(self) -> None:
        """Add the gradients of the parameters, as they are now."""
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                self._of(name.rpartition(".")[0], "backward").add(parameter.grad)
                self.gradients.add(parameter.grad)

    def _record(
        self, name: str, is_leaf: bool, module: nn.Module, args: object, output: Any
    ) -> None:
        del module, args
        # A mapping, such as an output of transformers, is not a tuple.
        tensors = list(output.values()) if isinstance(output, Mapping) else output
        for tensor in floating_tensors(tensors):
            self._of(name, "forward").add(tensor, self.shape)
            if tensor.requires_grad:
                # The gradient of a view would come from the same values again.
                tensor.register_hook(partial(self._record_gradient, name, is_leaf))

    def _record_gradient(self, name: str, is_leaf: bool, gradient: Tensor) -> None:
        self._of(name, "backward").add(gradient, self.shape)
        if is_leaf:
            self.gradients.add(gradient)

    def _of(self, name: str, direction: str) -> ExponentCounts:
        return self.values.setdefault((name, direction), ExponentCounts())


def module_ranges(
    model: nn.Module, found: Mapping[tuple[str, str], ExponentCounts]
) -> tuple[ModuleRange, ...]:
    """Return the ranges of the modules that have values, in the order of the model."""
    ranges = []
    for direction, (name, module) in product(("forward", "backward"), model.named_modules()):
        values = found.get((name, direction))
        if values is None:
            continue
        largest, fp8 = values.largest, FP8[direction]
        below = values.share_below(math.log2(BINARY16.smallest_subnormal))
        normal = values.share_below(math.log2(BINARY16.smallest_normal))
        part = ModuleRange(
            module=name,
            kind=type(module).__name__,
            direction=direction,
            largest=largest if math.isfinite(largest) else None,
            entries=values.entries,
            zeros=values.zeros,
            exponents={str(exponent): count for exponent, count in values.exponents.items()},
            examples_above=len(values.examples_above),
            below_smallest=below,
            subnormal=None if below is None or normal is None else normal - below,
        )
        if 0 < largest < math.inf:
            fp8_smallest = fp8.smallest_subnormal * largest / fp8.largest
            part = replace(
                part,
                headroom=math.log2(BINARY16.largest / largest),
                bf16_step=BFLOAT16.epsilon * 2.0 ** math.floor(math.log2(largest)),
                fp8_lost=values.share_below(math.floor(math.log2(fp8_smallest))),
            )
        ranges.append(part)
    return tuple(ranges)


def largest_scale(values: Mapping[tuple[str, str], ExponentCounts]) -> float | None:
    """Return the largest power of two by which no gradient exceeds 65504; None if there is none."""
    largest = max((v.largest for (_, way), v in values.items() if way == "backward"), default=0.0)
    fitting = [scale for scale in SCALES if scale * largest <= BINARY16.largest]
    return max(fitting, default=None) if largest else None


def lost_share(gradients: ExponentCounts, scale: float) -> float:
    """Return the share of the gradient entries below 2^-24 at a loss scale, without zeros."""
    share = gradients.share_below(math.log2(BINARY16.smallest_subnormal) - math.log2(scale))
    return share or 0.0


def bf16_lost_updates(model: nn.Module) -> dict[str, float]:
    """Return the share of the weights in bfloat16 that an update does not change, by its size.

    AdamW changes every weight by about the learning rate. Rounding to the nearest number loses a
    change of less than half the distance to the next number.
    """
    values = ExponentCounts()
    for parameter in model.parameters():
        values.add(parameter)
    # Numbers in [2^e, 2^(e+1)) are 2^e * epsilon apart.
    lost = {
        rate: sum(n for e, n in values.exponents.items() if 2.0**e * BFLOAT16.epsilon / 2 > rate)
        for rate in LEARNING_RATES
    }
    return {f"{rate:g}": count / max(values.entries, 1) for rate, count in lost.items()}
