"""Int8 inference: linear layers with int8 weights and activations, and proof that they ran.

torchao stores the weights of `nn.Linear` in int8 with a scale per output, quantizes the activations
of each call with a scale per row, and multiplies in integers. Everything else stays in float32.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.errors import InputError
from ampft.precision.float32_modules import replaced_forwards

INT8 = "int8"
FLAG = "--inference int8"
_PRODUCT = "_int_mm"  # of the namespace `aten`: int8 x int8 with int32 sums


def quantize(model: nn.Module, *, flag: str = FLAG, kept: Iterable[str] = ()) -> nn.Module:
    """Return a copy of a model with int8 linear layers.

    Modules that are kept in float32 are not quantized.

    Args:
        model: Float32 model in evaluation mode, on the CPU; unchanged.
        kept: Paths of further modules that are not quantized.

    Raises:
        InputError: torchao is not installed, or the model has no linear layers to quantize.
    """
    for name in ("torchao.kernel.intmm", "torchao.quantization"):
        logging.getLogger(name).setLevel(logging.ERROR)  # what they say concerns GPUs
    try:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
    except ImportError as error:
        raise InputError(
            f"{flag}: the package torchao is missing ({error}). Run: pip install 'ampft[int8]'"
        ) from error
    names = {*replaced_forwards(model), *kept}

    def is_quantized(module: nn.Module, path: str) -> bool:
        inside = any(path == name or path.startswith(f"{name}.") for name in names)
        # Not a subclass, such as the output projection of `nn.MultiheadAttention`, whose weight
        # other code reads.
        return type(module) is nn.Linear and not inside

    quantized = copy.deepcopy(model)
    quantize_(quantized, Int8DynamicActivationInt8WeightConfig(), filter_fn=is_quantized)
    if not quantized_layers(quantized) and not names:
        raise InputError(
            f"{flag}: {type(model).__name__} has no nn.Linear layers, and torchao quantizes "
            "only those. Use another precision."
        )
    return quantized


def quantized_layers(model: nn.Module) -> list[nn.Module]:
    """Return the linear layers whose weights are int8."""
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        # A quantized weight claims to be float32.
        and getattr(module.weight, "qdata", module.weight).dtype == torch.int8
    ]


class Int8ProductCounter(TorchDispatchMode):
    """Counts the int8 products of the code inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operator, and count it if it multiplies in int8."""
        if func.namespace == "aten" and func.overloadpacket.__name__ == _PRODUCT:
            self.products += 1
        return func(*args, **(kwargs or {}))
