"""`--load_in_4bit`: frozen linear layers whose weights are stored in 4 bits (NF4).

Source: Dettmers et al. (2023), "QLoRA: Efficient Finetuning of Quantized LLMs". bitsandbytes
quantizes and dequantizes, and PyTorch multiplies, in the dtype of the mode. The layers of
bitsandbytes multiply in the dtype of the first input that they see, which is float32 under autocast
to bfloat16 where a norm comes before, and in evaluation on some CPUs always in bfloat16.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ampft.errors import InputError
from ampft.models.freezing import base_model_of, head_names, is_inside_any

FLAG = "--load_in_4bit"
BLOCK = 64  # weights that share a float32 scale, as in bitsandbytes without double quantization


class FourBitLinear(nn.Linear):
    """An `nn.Linear` as changed by `quantize_base_to_4bit`."""

    packed: nn.Parameter  # (N / 2, 1) uint8, two weights each, for N weights.
    absmax: nn.Parameter  # (N / 64) float32, the largest absolute weight of each block.

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The dequantized weight, (out_features, in_features) in float32."""
        return self._dequantized(torch.float32)

    def forward(self, input: Tensor) -> Tensor:
        """Return what `nn.Linear` returns for the dequantized weight."""
        device = self.packed.device.type
        dtype = input.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        bias = None if self.bias is None else self.bias.to(dtype)
        return _Product.apply(input.to(dtype), bias, self)

    def _dequantized(self, dtype: torch.dtype) -> Tensor:
        from bitsandbytes.functional import QuantState, dequantize_4bit

        # Rounded from float32, as a cast of the float32 weight is.
        stored = torch.float32 if dtype == torch.float64 else dtype
        shape = (self.out_features, self.in_features)
        scales = QuantState(
            self.absmax.detach(), shape=shape, dtype=stored, blocksize=BLOCK, quant_type="nf4"
        )
        weight: Tensor = dequantize_4bit(self.packed.detach(), scales)
        return weight.to(dtype)


class _Product(torch.autograd.Function):
    """`functional.linear`, whose backward pass dequantizes again instead of keeping the weight."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, bias: Tensor | None, layer: FourBitLinear) -> Tensor:
        ctx.layer = layer
        return functional.linear(input, layer._dequantized(input.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient @ ctx.layer._dequantized(gradient.dtype), None, None


def quantize_base_to_4bit(model: nn.Module) -> None:
    """Store the weights of the linear layers below the head in 4 bits, in place.

    Args:
        model: Model in float32 on a CPU, which is then trained only through adapters.

    Raises:
        InputError: bitsandbytes is not installed, or there is no such layer.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise InputError(
            f"{FLAG}: the package bitsandbytes is not installed. Run "
            '`pip install "ampft[4bit]"`, or train without the flag.'
        )
    from bitsandbytes.functional import quantize_4bit

    head, inside = head_names(model), set(base_model_of(model).modules())
    layers: list[Any] = [
        module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module in inside and not is_inside_any(name, head)
    ]
    if not layers:
        raise InputError(
            f"{FLAG}: {type(model).__name__} has no nn.Linear layers below its head "
            "to quantize. Remove the flag."
        )
    for layer in layers:
        packed, scales = quantize_4bit(layer.weight.detach(), blocksize=BLOCK, quant_type="nf4")
        del layer.weight
        layer.packed = nn.Parameter(packed, requires_grad=False)
        layer.absmax = nn.Parameter(scales.absmax, requires_grad=False)
        layer.requires_grad_(False)
        layer.__class__ = FourBitLinear


def dequantize(model: nn.Module) -> None:
    """Make the layers of 4 bits layers of their dequantized float32 weights, in place."""
    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, FourBitLinear)]
    for layer in layers:
        weight = nn.Parameter(layer.weight, requires_grad=False)
        del layer.packed, layer.absmax
        layer.__class__ = nn.Linear
        layer.weight = weight


def has_4bit_layers(model: nn.Module) -> bool:
    """Return whether a model has layers of 4 bits."""
    return any(isinstance(module, FourBitLinear) for module in model.modules())


def weight_counts(model: nn.Module) -> dict[nn.Parameter, int]:
    """Return the parameters of a model with the number of weights that each stands for."""
    counts = {parameter: parameter.numel() for parameter in model.parameters()}
    for layer in model.modules():
        if isinstance(layer, FourBitLinear):
            counts[layer.packed] = layer.in_features * layer.out_features
            counts[layer.absmax] = 0
    return counts
