"""Int8 inference: linear layers with int8 weights and activations, and proof that they ran.

torch's dynamic quantization stores the weights of `nn.Linear` in int8, quantizes the activations of
each call, and multiplies in integers (FBGEMM, oneDNN or QNNPACK). Everything else stays in float32.
It exists only on CPUs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.errors import InputError
from ampft.precision.float32_modules import float32_forwards

INT8 = "int8"
FLAG = "--inference int8"
_PRODUCTS = ("linear_dynamic", "linear_relu_dynamic")  # of the namespace `quantized`


def quantize(model: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of a model on the CPU with int8 linear layers.

    Modules that are kept in float32 are not quantized.

    Args:
        model: Float32 model in evaluation mode; unchanged.
        device: Device on which it would predict.

    Raises:
        InputError: The device is not a CPU, this torch cannot quantize, or the model has no linear
            layers to quantize.
    """
    if device.type != "cpu":
        raise InputError(
            f"{FLAG}: torch's dynamic quantization runs only on CPUs, and this device is "
            f"{device.type}. Hide the device (ACCELERATE_USE_CPU=true), or leave int8 out."
        )
    try:
        from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic
    except ImportError as error:
        raise InputError(
            f"{FLAG}: torch {torch.__version__} has no torch.ao.quantization.quantize_dynamic. "
            "Use a version that has it, such as 2.13, or leave int8 out."
        ) from error
    with warnings.catch_warnings():
        # torch announces that torchao will replace it, and deprecates its own quantized tensors.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=UserWarning, message=".*quantized tensor")
        kept = float32_forwards(model)
        inside = [
            path
            for path, _ in model.named_modules()
            if any(path == name or path.startswith(f"{name}.") for name in kept)
        ]
        quantized: nn.Module = quantize_dynamic(
            # None means no quantization.
            model,
            {nn.Linear: per_channel_dynamic_qconfig, **dict.fromkeys(inside)},
        )
    if not quantized_layers(quantized):
        raise InputError(
            f"{FLAG}: {type(model).__name__} has no nn.Linear layers, which are those that torch "
            "quantizes. Leave int8 out."
        )
    return quantized


def quantized_layers(model: nn.Module) -> list[nn.Module]:
    """Return the linear layers whose weights are int8."""
    from torch.ao.nn.quantized.dynamic import Linear

    return [
        module
        for module in model.modules()
        if isinstance(module, Linear) and module.weight().dtype == torch.qint8
    ]


class Int8Recorder(TorchDispatchMode):
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
        if func.namespace == "quantized" and func.overloadpacket.__name__ in _PRODUCTS:
            self.products += 1
        return func(*args, **(kwargs or {}))
