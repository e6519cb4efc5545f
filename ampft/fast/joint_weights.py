"""Weights of linear layers, cast by one operator, and queries, keys and values in one product.

Autocast casts each weight and each bias with an operator of its own, and its gradient back with
another. On short texts these casts are a third of all operators, and each of them costs a GPU as
much as a product. Here one operator casts all weights, and one casts all gradients back. The values
are autocast's, bit for bit.

Layers that project the same tensor to queries, keys and values are one product of their weights,
one below the other. The parameters stay what they are, in the model, the optimizer and files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional

from ampft.precision.float32_modules import Float32Forward

# Names of the projections of self-attention, of the same tensor. T5 and MPNet have others, because
# the same class also attends to another sequence, or runs its own code.
PROJECTIONS = (
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("q_proj", "k_proj", "v_proj"),
)

Block: TypeAlias = tuple[tuple[nn.Linear, str], ...]
"""Parameters, by layer and name, that are one below the other in a tensor."""


def joint_layers(model: nn.Module) -> tuple[list[nn.Linear], list[tuple[nn.Linear, ...]]]:
    """Return the linear layers that are trained as a whole, and which of them are one product.

    Layers whose forward pass has been replaced and layers inside modules that are kept in float32
    are not among them.
    """
    modules = list(model.modules())
    in_float32 = [m for m in modules if isinstance(m.__dict__.get("forward"), Float32Forward)]
    kept = {part for module in in_float32 for part in module.modules()}
    others = [module for module in modules if module not in kept]
    layers = [module for module in others if _is_plain(module)]
    groups = []
    for module in others:
        for names in PROJECTIONS:
            parts: Any = tuple(getattr(module, name, None) for name in names)
            if all(_is_plain(part) for part in parts):
                kinds = {(p.in_features, p.bias is None, p.weight.dtype) for p in parts}
                groups += [parts] if len(kinds) == 1 else []
    return layers, groups  # type: ignore[return-value] # they are plain layers


def _is_plain(module: object) -> bool:
    return (
        type(module) is nn.Linear
        and "forward" not in module.__dict__
        and all(p.requires_grad and isinstance(p, nn.Parameter) for p in module.parameters())
    )


@contextmanager
def joint_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Return a context in which linear layers use joint weights in `dtype`.

    Forward passes inside it do not see updated weights. Their backward passes may run inside it or
    after it, several times.

    Args:
        model: Model whose attention calls each projection of `PROJECTIONS` once per forward pass.
        dtype: Dtype of the products: autocast's, or without autocast the weights'.
    """
    layers, groups = joint_layers(model)
    blocks = _blocks(layers, groups, dtype)
    if not blocks:
        yield
        return
    slots = [slot for block in blocks for slot in block]
    parameters = [layer._parameters[name] for layer, name in slots]
    tensors = dict(zip(blocks, _Cast.apply(blocks, dtype, *parameters), strict=True))
    try:
        for (slot, *others), tensor in tensors.items():
            if not others:
                layer, name = slot
                layer._parameters[name] = tensor  # as torch.func does
        for group in groups:
            weight = tensors[tuple((layer, "weight") for layer in group)]
            bias = tensors.get(tuple((layer, "bias") for layer in group))
            product = _Product(weight, bias, [layer.out_features for layer in group])
            for index, layer in enumerate(group):
                layer.__dict__["forward"] = partial(product, index)
        yield
    finally:
        for (layer, name), parameter in zip(slots, parameters, strict=True):
            layer._parameters[name] = parameter
            layer.__dict__.pop("forward", None)


def _blocks(
    layers: Sequence[nn.Linear], groups: Sequence[tuple[nn.Linear, ...]], dtype: torch.dtype
) -> tuple[Block, ...]:
    """Return the parameters that are cast, those of one product together."""
    joined = {layer for group in groups for layer in group}
    units = [*groups, *((layer,) for layer in layers if layer not in joined)]
    return tuple(
        tuple((layer, name) for layer in unit)
        for unit in units
        for name in ("weight", "bias")
        # Single weights in their own dtype stay as they are.
        if getattr(unit[0], name) is not None and (len(unit) > 1 or unit[0].weight.dtype != dtype)
    )


@dataclass
class _Product:
    """One product for several layers, computed when the first of them is called."""

    weight: Tensor  # (sum of sizes, in_features).
    bias: Tensor | None  # (sum of sizes,); None without a bias.
    sizes: list[int]  # Outputs of each layer.
    _inputs: Tensor | None = field(default=None, repr=False)
    _outputs: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __call__(self, index: int, inputs: Tensor) -> Tensor:
        if self._inputs is not inputs or index not in self._outputs:
            outputs = functional.linear(inputs, self.weight, self.bias).split(self.sizes, -1)
            self._inputs, self._outputs = inputs, dict(enumerate(outputs))
        output = self._outputs.pop(index)
        if not self._outputs:
            self._inputs = None  # otherwise it would be kept in memory
        return output


class _Cast(torch.autograd.Function):
    """Casts parameters into blocks, and their gradients back."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, layout: Sequence[Block], dtype: torch.dtype, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        remaining = iter(parameters)
        blocks = [[next(remaining) for _ in block] for block in layout]
        tensors = tuple(
            block[0].new_empty(
                (sum(part.shape[0] for part in block), *block[0].shape[1:]), dtype=dtype
            )
            for block in blocks
        )
        torch._foreach_copy_(_parts(tensors, blocks), list(parameters))
        ctx.set_materialize_grads(False)
        ctx.blocks = blocks  # type: ignore[attr-defined] # shapes; the parameters live anyway
        return tensors

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        blocks: list[list[Tensor]] = ctx.blocks  # type: ignore[attr-defined]
        reached = [(grad, b) for grad, b in zip(grads, blocks, strict=True) if grad is not None]
        parts = _parts([grad for grad, _ in reached], [block for _, block in reached])
        results = [torch.empty_like(part) for _, block in reached for part in block]
        if results:
            torch._foreach_copy_(results, parts)
        remaining = iter(results)
        return (
            None,
            None,
            *(
                None if grad is None else next(remaining)
                for grad, block in zip(grads, blocks, strict=True)
                for _ in block
            ),
        )


def _parts(tensors: Sequence[Tensor], blocks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [
        part
        for tensor, block in zip(tensors, blocks, strict=True)
        for part in tensor.split([parameter.shape[0] for parameter in block])
    ]
