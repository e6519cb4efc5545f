"""Embedding tables whose dense gradient keeps its memory from step to step.

torch allocates the gradient of a table anew in every backward pass. glibc maps a block of 32 MiB or
more and gives it back each time (mallopt(3), `M_MMAP_THRESHOLD`), so that clearing it costs a page
fault for every 4 KiB: for 47 MB a seventh of a step on short texts, against a hundredth where the
memory is kept. The gradient is the same, bit for bit.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

MAPPED_BYTES = 32 * 2**20


def keep_gradient_memory(model: nn.Module) -> Callable[[], None]:
    """Let every large `nn.Embedding` below `model` keep the memory of its gradient.

    One gradient per table stays allocated during the next forward pass, where torch would have
    given it back; a forward pass without gradients gives it back too. Of several micro-batches the
    first one's gradient, to which the others are added, lies in that memory.

    Args:
        model: Tables on a CPU, in float32, of `MAPPED_BYTES` and more change; all others, on an
            accelerator for one, whose allocator keeps memory by itself, stay as they are.

    Returns:
        A function that undoes it.
    """
    changed = [layer for layer in model.modules() if type(layer) is nn.Embedding]
    for layer in changed:
        layer.gradient_memory = GradientMemory()  # type: ignore[assignment]
        layer.__class__ = KeptGradientEmbedding

    def undo() -> None:
        for layer in changed:
            layer.__class__ = nn.Embedding
            layer.__dict__.pop("gradient_memory", None)

    return undo


class GradientMemory:
    """Memory of one gradient, lent again once no tensor uses it any more."""

    def __init__(self) -> None:
        self._block: np.ndarray[Any, Any] | None = None
        self._borrower: Callable[[], object] = _nobody
        self._choosing = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return GradientMemory, ()  # a copy of the model has gradients of its own

    def zeros(self, shape: torch.Size) -> Tensor:
        """Return float32 zeros of the table's shape; in other memory while this is lent."""
        with self._choosing:
            if self._borrower() is not None:
                return torch.zeros(shape, dtype=torch.float32, device="cpu")
            if self._block is None or self._block.shape != shape:
                self._block = torch.empty(shape, dtype=torch.float32, device="cpu").numpy()
            # The storage of the tensor, and so every view of it, keeps this array alive.
            borrower = self._block[:]
            self._borrower = weakref.ref(borrower)
        return torch.from_numpy(borrower).zero_()

    def give_back(self) -> None:
        """Let the memory go; a gradient that lies in it keeps it for as long as it lives."""
        with self._choosing:
            self._block, self._borrower = None, _nobody


def _nobody() -> None:
    return None


class KeptGradientEmbedding(nn.Embedding):
    """An `nn.Embedding` that `keep_gradient_memory` has changed."""

    gradient_memory: GradientMemory

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of the table that `input` names, as `nn.Embedding` does."""
        if not (torch.is_grad_enabled() and self.weight.requires_grad):
            self.gradient_memory.give_back()
            return super().forward(input)
        if not self._lookup_is_plain():
            return super().forward(input)
        rows: Tensor = _Lookup.apply(self.weight, input, self.padding_idx, self.gradient_memory)
        return rows

    def _lookup_is_plain(self) -> bool:
        weight = self.weight
        return (
            type(weight) is nn.Parameter
            and weight.device.type == "cpu"
            and weight.dtype == torch.float32
            and weight.nbytes >= MAPPED_BYTES
            and not (self.sparse or self.scale_grad_by_freq or self.max_norm is not None)
            and not torch.compiler.is_compiling()
            and not torch.jit.is_tracing()  # type: ignore[attr-defined]
            and not torch._C._are_functorch_transforms_active()  # torch.func knows torch's lookup
            and torch.autograd.forward_ad._current_level < 0  # so does forward mode
        )


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, ids: Tensor, padding_idx: int | None, memory: GradientMemory
    ) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.padding_idx, ctx.memory = weight.shape, padding_idx, memory
        return functional.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (ids,) = ctx.saved_tensors
        result = ctx.memory.zeros(ctx.shape)
        result.index_add_(0, ids.flatten(), grad.reshape(-1, ctx.shape[1]))
        if ctx.padding_idx is not None:
            result[ctx.padding_idx] = 0
        return result, None, None, None
