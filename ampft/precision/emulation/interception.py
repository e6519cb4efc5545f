"""Replaces the kernels of operators temporarily.

C++ composites, autograd formulas and `inference_mode` all call kernels through torch's dispatcher.
A kernel replaced there is therefore replaced everywhere, and every `TorchDispatchMode` still sees
the operator with the operands and the result that it has on a GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.library import Library, get_kernel

Kernel = Callable[..., Any]
"""Called by the dispatcher with an operator's arguments; returns its results."""
Replacement = Callable[..., Any]
"""Called as `replacement(native, *args, **kwargs)`; `native` is the kernel that it replaces."""


def autocast_excluded() -> AbstractContextManager[None]:
    """Return a context in which CPU autocast is off, so that kernels can compute in float32."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)


def all_have(dtype: torch.dtype, args: tuple[object, ...]) -> bool:
    """Return whether all floating tensors have a dtype; for mixed dtypes torch raises its error."""
    dtypes = {arg.dtype for arg in args if isinstance(arg, Tensor) and arg.dtype.is_floating_point}
    return dtypes == {dtype}


def replacing_kernel(
    replacement: Replacement, native: Kernel, dtype: torch.dtype, *, operands: int | None = None
) -> Kernel:
    """Return a kernel that calls `replacement` for tensors of `dtype`, `native` for all others.

    Args:
        replacement: Kernel for tensors of `dtype`.
        native: Kernel for all others.
        dtype: Dtype of the operands.
        operands: How many of the first arguments are operands; None for all of them.
    """

    def kernel(*args: object, **kwargs: object) -> object:
        if not all_have(dtype, args[:operands]):
            return native(*args, **kwargs)
        with autocast_excluded():
            return replacement(native, *args, **kwargs)

    return kernel


def native_kernel(operator: str, dispatch_key: str) -> Kernel:
    """Return the kernel currently registered for an operator, such as `mm` on `CPU`."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, dispatch_key))
    return partial(get_kernel(f"aten::{operator}", dispatch_key).call_boxed, keys)


def is_operator(operator: str) -> bool:
    """Return whether this version of torch has an operator, written as for `operator_overload`."""
    name, _, overload_name = operator.partition(".")
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and (overload_name or "default") in packet.overloads()


def operator_overload(operator: str) -> OpOverload:
    """Return torch's object for an operator written as `pow.Tensor_Scalar` or `mm`."""
    name, _, overload_name = operator.partition(".")
    overload: OpOverload = getattr(getattr(torch.ops.aten, name), overload_name or "default")
    return overload


@contextmanager
def kernels_replaced(
    kernels: Mapping[str, Kernel], dispatch_key: str, *, with_keyset: bool = False
) -> Iterator[None]:
    """Register `kernels` for one dispatch key, in all threads, until the context exits.

    Args:
        kernels: Kernel by operator, such as `mm` or `pow.Tensor_Scalar`.
        dispatch_key: `CPU`, `AutogradCPU` or `AutocastCPU`.
        with_keyset: Whether the kernels take the dispatcher's key set as their first argument.
    """
    library = Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # torch warns once per process that a kernel is overridden, which is intended here.
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            for operator, kernel in kernels.items():
                library.impl(operator, kernel, dispatch_key, with_keyset=with_keyset)
        yield
    finally:
        library._destroy()
