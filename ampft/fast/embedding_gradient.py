"""Embedding tables whose dense gradient reuses its memory in every step.

torch allocates the gradient of a table in every backward pass. glibc maps blocks of 32 MiB or more
and unmaps them each time (mallopt(3), `M_MMAP_THRESHOLD`), so that clearing the gradient costs a
page fault for every 4 KiB. For 47 MB that is a seventh of a step on short texts, compared with a
hundredth if the memory is reused. The gradient is the same, bit for bit.
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

from ampft.precision.compilation import uncompiled

MMAP_THRESHOLD = 32 * 2**20  # bytes


def reuse_embedding_gradient_memory(model: nn.Module) -> Callable[[], None]:
    """Make every large `nn.Embedding` in `model` reuse the memory of its gradient.

    One gradient per table stays allocated during the next forward pass, where torch would have
    freed it. A forward pass without gradients frees it. If a step has several micro-batches, the
    gradient of the first, to which the others are added, uses that memory.

    Args:
        model: Model to change. Only float32 tables on a CPU of at least `MMAP_THRESHOLD` bytes are
            affected; on accelerators, for example, torch's allocator already reuses memory.

    Returns:
        A function that reverts the change.
    """
    changed = [layer for layer in model.modules() if type(layer) is nn.Embedding]
    for layer in changed:
        layer.gradient_memory = ReusableGradientBuffer()  # type: ignore[assignment]
        layer.__class__ = ReusedGradientEmbedding

    def undo() -> None:
        for layer in changed:
            layer.__class__ = nn.Embedding
            layer.__dict__.pop("gradient_memory", None)

    return undo


class ReusableGradientBuffer:
    """Memory for one gradient, which is lent again as soon as no tensor uses it."""

    def __init__(self) -> None:
        self._block: np.ndarray[Any, Any] | None = None
        self._borrower: Callable[[], object] = _no_borrower
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ReusableGradientBuffer, ()  # a copy of the model has its own gradients

    def zeros(self, shape: torch.Size) -> Tensor:
        """Return float32 zeros of the table's shape, in newly allocated memory if this is lent."""
        with self._lock:
            if self._borrower() is not None:
                return torch.zeros(shape, dtype=torch.float32, device="cpu")
            if self._block is None or self._block.shape != shape:
                self._block = torch.empty(shape, dtype=torch.float32, device="cpu").numpy()
            # The storage of the tensor, and so every view of it, keeps this array alive.
            borrower = self._block[:]
            self._borrower = weakref.ref(borrower)
        return torch.from_numpy(borrower).zero_()

    def release(self) -> None:
        """Free the memory, or let the gradient that uses it free it."""
        with self._lock:
            self._block, self._borrower = None, _no_borrower


def _no_borrower() -> None:
    return None


class ReusedGradientEmbedding(nn.Embedding):
    """An `nn.Embedding` as changed by `reuse_embedding_gradient_memory`."""

    gradient_memory: ReusableGradientBuffer

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of the table with the indices `input`, as `nn.Embedding` does."""
        weight = self.weight
        is_large = (
            type(weight) is nn.Parameter
            and weight.device.type == "cpu"
            and weight.dtype == torch.float32
            and weight.nbytes >= MMAP_THRESHOLD
        )
        return self._rows(input) if is_large else super().forward(input)

    @uncompiled  # compiled code would allocate the gradient in every step
    def _rows(self, input: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and self.weight.requires_grad):
            self.gradient_memory.release()
            return super().forward(input)
        is_supported = (
            not (self.sparse or self.scale_grad_by_freq or self.max_norm is not None)
            and not torch.jit.is_tracing()  # type: ignore[attr-defined]
            # torch.func and forward-mode differentiation support only torch's own lookup.
            and not torch._C._are_functorch_transforms_active()
            and torch.autograd.forward_ad._current_level < 0
        )
        if not is_supported:
            return super().forward(input)
        return _Lookup.apply(self.weight, input, self.padding_idx, self.gradient_memory)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        ids: Tensor,
        padding_idx: int | None,
        memory: ReusableGradientBuffer,
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
