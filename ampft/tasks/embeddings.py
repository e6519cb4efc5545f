"""Embedding tables whose dense gradient keeps its memory from step to step.

torch allocates the gradient of a table anew in every backward pass. glibc maps a block of 32 MiB or
more and gives it back each time (mallopt(3), `M_MMAP_THRESHOLD`), so that clearing it costs a page
fault for every 4 KiB: for 47 MB a seventh of a step on short texts, against a hundredth where the
memory is kept. The gradient is the same, bit for bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

MAPPED_BYTES = 32 * 2**20
# The gradient that adds up over micro-batches, and the next one that is added to it.
_GRADIENTS_AT_ONCE = 2


def keep_gradient_memory(model: nn.Module) -> Callable[[], None]:
    """Let every large `nn.Embedding` below `model` keep the memory of its gradient.

    The memory stays allocated during the next forward pass, where torch would have given it back.

    Args:
        model: Tables on a CPU, in float32, of `MAPPED_BYTES` and more change; all others, on an
            accelerator for one, whose allocator keeps memory by itself, stay as they are.

    Returns:
        A function that undoes it.
    """
    changed = [layer for layer in model.modules() if type(layer) is nn.Embedding]
    for layer in changed:
        layer.forward = partial(_forward, layer, GradientMemory())  # type: ignore[method-assign]

    def undo() -> None:
        for layer in changed:
            layer.__dict__.pop("forward", None)

    return undo


class GradientMemory:
    """Memory of a few gradients, lent again once no tensor uses it any more."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray[Any, Any]] = []
        self._borrowers: list[weakref.ref[np.ndarray[Any, Any]]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return GradientMemory, ()  # a copy of the model has gradients of its own

    def zeros(self, shape: torch.Size) -> Tensor:
        """Return float32 zeros of the table's shape."""
        if (
            self._blocks and self._blocks[0].shape != shape
        ):  # a table of another size took its place
            self._blocks, self._borrowers = [], []
        for index, borrower in enumerate(self._borrowers):
            if borrower() is None:
                return self._lend(index)
        if len(self._blocks) == _GRADIENTS_AT_ONCE:
            return torch.zeros(shape)
        self._blocks.append(torch.empty(shape).numpy())
        self._borrowers.append(weakref.ref(self._blocks[-1]))
        return self._lend(len(self._blocks) - 1)

    def _lend(self, index: int) -> Tensor:
        # The storage of the tensor, and so every view of it, keeps this array alive.
        borrower = self._blocks[index][:]
        self._borrowers[index] = weakref.ref(borrower)
        return torch.from_numpy(borrower).zero_()


def _forward(layer: nn.Embedding, memory: GradientMemory, ids: Tensor) -> Tensor:
    weight = layer.weight
    kept = (
        torch.is_grad_enabled()
        and weight.requires_grad
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.nbytes >= MAPPED_BYTES
        and not (layer.sparse or layer.scale_grad_by_freq or layer.max_norm is not None)
        and not torch.compiler.is_compiling()
    )
    if not kept:
        return nn.Embedding.forward(layer, ids)
    result: Tensor = _Lookup.apply(weight, ids, layer.padding_idx, memory)
    return result


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
        if torch.is_grad_enabled():  # create_graph: this gradient is to be differentiated
            padding = -1 if ctx.padding_idx is None else ctx.padding_idx
            dense = torch.ops.aten.embedding_dense_backward
            return dense(grad, ids, ctx.shape[0], padding, False), None, None, None
        result = ctx.memory.zeros(ctx.shape)
        result.index_add_(0, ids.flatten(), grad.reshape(-1, ctx.shape[1]))
        if ctx.padding_idx is not None:
            result[ctx.padding_idx] = 0
        return result, None, None, None
