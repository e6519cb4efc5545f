"""What rounding to 8 bits does to the logits of a model: the yardstick for int8 artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ampft.runs.predictor import Predictor

LARGEST = 127.0  # of a signed byte
MIN_SCALE = 1e-30  # of a row of zeros


@torch.no_grad()
def round_products(predictor: Predictor, kept: Sequence[str]) -> Predictor:
    """Round the operands of a predictor's products to 8 bits, in place, and return it.

    Weights have a scale per output, and the inputs of linear layers a scale per row, which is what
    dynamic quantization with the least rounding does. Sums stay in float32.

    Args:
        predictor: A predictor that nothing else uses.
        kept: Paths of modules that are not rounded.
    """
    for path, module in predictor.model.named_modules():
        if any(f"{path}.".startswith(f"{name}.") for name in kept):
            continue
        if isinstance(module, nn.Linear | nn.Embedding | _ConvNd):
            weight = module.weight
            weight.copy_(_rounded(weight.flatten(1)).view_as(weight))
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(_round_input)
    return predictor


def _round_input(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    del module
    return (_rounded(inputs[0]), *inputs[1:])


def _rounded(values: Tensor) -> Tensor:
    """Return values that 8 bits can hold, with a scale for each vector of the last axis."""
    scale = values.abs().amax(-1, keepdim=True).clamp_min(MIN_SCALE) / LARGEST
    return (values / scale).round() * scale
