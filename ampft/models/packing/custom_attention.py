"""Families with their own attention code, or whose attention needs more than the packed row.

Their modules receive a `PackedLayout` in place of an attention mask: it then travels with the other
arguments, also where gradient checkpointing runs a layer again. Without a layout, every function
here does what transformers does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import MethodType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ampft.models.packing.attention import packed_attention_forward
from ampft.models.packing.layout import PackedLayout
from ampft.precision.compilation import uncompiled
from ampft.precision.float32_modules import Float32Forward

CurrentLayout: TypeAlias = Callable[[], PackedLayout | None]
"""Returns the layout of the forward pass that is running; None if it is padded."""
Adapter: TypeAlias = Callable[[nn.Module, CurrentLayout], list[Callable[[], None]]]
"""Changes a base model; returns the functions that revert it."""


def _replace(module: nn.Module, name: str, method: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method of one module; return a function that restores it."""
    former = module.__dict__.get(name)
    module.__dict__[name] = method

    def undo() -> None:
        module.__dict__.pop(name, None)
        if former is not None:
            module.__dict__[name] = former

    return undo


def _replace_forward(module: nn.Module, packed: Callable[..., Any]) -> Callable[[], None]:
    """Replace the forward pass of one attention module; return a function that restores it.

    A module that `keep_in_fp32` has changed still computes in float32.

    Args:
        module: Attention module, whose second argument is the mask.
        packed: Its forward pass with a layout in place of the mask.
    """

    @uncompiled
    def forward(attention: Any, hidden_states: Tensor, attention_mask: Any = None, *args: Any,
                **kwargs: Any) -> Any:  # fmt: skip
        is_packed = isinstance(attention_mask, PackedLayout)
        compute = packed if is_packed else type(attention).forward
        return compute(attention, hidden_states, attention_mask, *args, **kwargs)

    method = MethodType(forward, module)
    kept = module.__dict__.get("forward")
    if isinstance(kept, Float32Forward):
        return kept.around(method)
    return _replace(module, "forward", method)


def adapt_mpnet(base: nn.Module, current: CurrentLayout) -> list[Callable[[], None]]:
    """Compute MPNet's position bias for the longest sequence, and its attention without padding."""
    encoder: Any = base.get_submodule("encoder")

    @uncompiled
    def use_layout(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        del module
        layout = current()
        return args, kwargs if layout is None else {**kwargs, "attention_mask": layout}

    @uncompiled
    def bias_of_longest(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        bias: Tensor = compute_bias(_like_longest(hidden_states, current()), *args, **kwargs)
        return bias

    compute_bias = encoder.compute_position_bias
    hook = encoder.register_forward_pre_hook(use_layout, with_kwargs=True)
    undo = [hook.remove, _replace(encoder, "compute_position_bias", bias_of_longest)]
    for layer in encoder.layer:
        attention = layer.attention.attn
        undo.append(_replace_forward(attention, _mpnet))
    return undo


def _like_longest(hidden_states: Tensor, layout: PackedLayout | None) -> Tensor:
    """Return a tensor of the shape of one sequence, from which only the length is read."""
    return hidden_states if layout is None else hidden_states.new_empty(1, layout.longest, 1)


def _mpnet(
    attention: Any,
    hidden_states: Tensor,
    layout: PackedLayout,
    position_bias: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    del args, kwargs
    shape = (*hidden_states.shape[:-1], -1, attention.attention_head_size)
    rows = [
        project(hidden_states).view(shape).transpose(1, 2)
        for project in (attention.q, attention.k, attention.v)
    ]
    attended, _ = packed_attention_forward(
        attention,
        rows[0],
        rows[1],
        rows[2],
        None,
        dropout=attention.dropout.p if attention.training else 0.0,
        packing=layout,
        position_bias=position_bias,
    )
    return (attention.o(attended.flatten(2)),)


def adapt_t5(base: nn.Module, current: CurrentLayout) -> list[Callable[[], None]]:
    """Compute T5's position bias for the longest sequence, not for the whole row."""
    del current  # the layout is among the arguments
    return [
        module.register_forward_pre_hook(_bias_of_longest, with_kwargs=True).remove
        for module in base.modules()
        if hasattr(module, "has_relative_attention_bias")
    ]


@uncompiled
def _bias_of_longest(attention: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    layout = kwargs.get("packing")
    if layout is None or kwargs.get("position_bias") is not None:
        return args, kwargs
    if attention.has_relative_attention_bias:
        bias = attention.compute_bias(layout.longest, layout.longest)
    else:
        # One value for all pairs has no effect on softmax, and packed attention leaves it out.
        bias = torch.zeros(1, attention.n_heads, 1, 1, device=layout.device)
    return args, {**kwargs, "position_bias": bias}


def adapt_deberta(base: nn.Module, current: CurrentLayout) -> list[Callable[[], None]]:
    """Run DeBERTa's disentangled attention, its own code, on groups of similar length."""
    encoder: Any = base.get_submodule("encoder")

    @uncompiled
    def mask_or_layout(attention_mask: Tensor) -> Tensor | PackedLayout:
        layout = current()
        mask: Tensor | PackedLayout = make_mask(attention_mask) if layout is None else layout
        return mask

    @uncompiled
    def distances_of_longest(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        distances: Tensor | None = measure(_like_longest(hidden_states, current()), *args, **kwargs)
        return distances

    make_mask, measure = encoder.get_attention_mask, encoder.get_rel_pos
    undo = [
        _replace(encoder, "get_attention_mask", mask_or_layout),
        _replace(encoder, "get_rel_pos", distances_of_longest),
    ]
    for layer in encoder.layer:
        attention = layer.attention.self
        undo.append(_replace_forward(attention, _deberta))
    return undo


def _deberta(
    attention: Any,
    hidden_states: Tensor,
    layout: PackedLayout,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
) -> Any:
    """Project the whole row once, and let DeBERTa's own code attend within each group.

    A group of length L uses distances of at most L - 1, so that only 2L of the embeddings of
    distances take part.
    """
    del output_attentions, query_states  # packing leaves batches with them to the padded path
    span = getattr(attention, "pos_ebd_size", 0)
    if rel_embeddings is not None:
        nearest = min(span, layout.longest)
        rel_embeddings = attention.pos_dropout(_middle(rel_embeddings, nearest))
    projections = [attention.query_proj, attention.key_proj, attention.value_proj]
    cells = layout.cells([project(hidden_states).squeeze(0) for project in projections])
    of_distances = [
        getattr(attention, name)
        for name in ("pos_key_proj", "pos_query_proj")
        if hasattr(attention, name)
    ] or projections[:2]
    project_distances = cache(lambda layer: layer(rel_embeddings))
    attended = []
    for group, index, rows in zip(layout.groups, layout.group_indices, cells, strict=True):
        length = group.longest
        nearest = min(span, length)
        distances = None if relative_pos is None else relative_pos[:, :length, :length]
        outputs = {
            layer: _middle(project_distances(layer), nearest).unsqueeze(0)
            for layer in of_distances
            if rel_embeddings is not None
        }
        empty = hidden_states.new_empty(0)
        with _projected(attention, dict(zip(projections, rows, strict=True)), outputs):
            attention.pos_ebd_size = nearest
            try:
                result, _ = type(attention).forward(
                    attention,
                    empty,
                    hidden_states.new_ones(1, 1, 1, 1) if index is None else index.visible,
                    relative_pos=distances,
                    rel_embeddings=rel_embeddings,
                )
            finally:
                attention.pos_ebd_size = span
        attended.append(result)
    return layout.row_of(attended).unsqueeze(0), None


def _middle(embeddings: Tensor, nearest: int) -> Tensor:
    """Return the embeddings of the distances from -nearest to nearest - 1."""
    half = embeddings.shape[0] // 2
    return embeddings if nearest == half else embeddings.narrow(0, half - nearest, 2 * nearest)


@contextmanager
def _projected(
    attention: Any,
    rows: dict[nn.Module, Tensor],
    of_distances: dict[nn.Module, Tensor],
) -> Iterator[None]:
    """Make the linear layers of `attention` return what has been computed.

    Args:
        attention: DeBERTa's attention module.
        rows: Output of each layer for the hidden states, for which an empty tensor stands.
        of_distances: Output of each layer for the embeddings of distances.
    """

    def known(layer: nn.Module, inputs: Tensor) -> Tensor:
        return of_distances[layer] if inputs.numel() else rows[layer]

    undo: Sequence[Callable[[], None]] = [
        _replace(layer, "forward", partial(known, layer)) for layer in {**rows, **of_distances}
    ]
    if of_distances:
        undo = [*undo, _replace(attention.pos_dropout, "forward", lambda embeddings: embeddings)]
    try:
        yield
    finally:
        for restore in undo:
            restore()
