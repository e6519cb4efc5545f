"""The families of models that can run without padding, and the reasons why others cannot.

The attention modules of some families receive a `PackedLayout` in place of a mask: it then travels
with the other arguments, also where gradient checkpointing runs a layer again. Without a layout,
every adapted function does what transformers does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import MethodType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ampft.fast.packing.layout import PackedLayout
from ampft.fast.packing.packed_attention import PACKED_NAMES, packed_attention_forward
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
        return compute_bias(_like_longest(hidden_states, current()), *args, **kwargs)

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
    """Run DeBERTa's own disentangled attention on groups of sequences of similar length.

    Returns:
        Functions that undo the changes.
    """
    encoder: Any = base.get_submodule("encoder")

    @uncompiled
    def mask_or_layout(attention_mask: Tensor) -> Tensor | PackedLayout:
        layout = current()
        return make_mask(attention_mask) if layout is None else layout

    @uncompiled
    def distances_of_longest(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        return measure(_like_longest(hidden_states, current()), *args, **kwargs)

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
    attention: Any, rows: dict[nn.Module, Tensor], of_distances: dict[nn.Module, Tensor]
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


Positions = Callable[[nn.Module, torch.Tensor, PackedLayout], torch.Tensor]


def positions_in_sequence(
    base: nn.Module, input_ids: torch.Tensor, layout: PackedLayout
) -> torch.Tensor:
    """Return (1, N) position ids that count from 0 in each sequence."""
    del base, input_ids
    return layout.columns.unsqueeze(0)


def positions_after_padding_id(
    base: nn.Module, input_ids: torch.Tensor, layout: PackedLayout
) -> torch.Tensor:
    """Return (1, N) position ids of RoBERTa and MPNet, which count from after the padding id.

    A padding id within the text has the padding position. The model's own rule is therefore applied
    to the padded batch of ids, instead of deriving the positions from the lengths.
    """
    model: Any = base
    embeddings = model.embeddings
    if model.config.model_type == "mpnet":
        from transformers.models.mpnet.modeling_mpnet import create_position_ids_from_input_ids
    else:
        create_position_ids_from_input_ids = embeddings.create_position_ids_from_input_ids
    return layout.gather(create_position_ids_from_input_ids(input_ids, embeddings.padding_idx))


@dataclass(frozen=True)
class Trim:
    """Where the last layer can be trimmed to the first token of each sequence."""

    layers: str  # Path of the list of layers, relative to the base model.
    attention: str  # Path of the module that receives the keyword arguments, relative to a layer.
    # Path of the module whose inputs are trimmed, relative to a layer: the first one after
    # attention that processes each token separately and receives all that the layer needs.
    cut: str
    heads: frozenset[str]  # Names of the model classes whose head reads only the first token.


@dataclass(frozen=True)
class Family:
    """How to pack the inputs and unpack the outputs of one family of models."""

    # Path of the module whose output is scattered back, relative to the base model; empty for the
    # base model itself.
    encoder: str
    # Function that returns the position ids of the packed row; `None` if the family takes none.
    positions: Positions | None
    is_causal: bool = False  # Whether it is a decoder, which would otherwise cache keys and values.
    # Attention implementation that is replaced: `sdpa`, or `eager` for a family that has only its
    # own code.
    implementation: str = "sdpa"
    # Function that adapts attention modules that need more than the packed row.
    adapt: Adapter | None = None
    # How to trim the last layer to first tokens; `None` if that is not possible.
    trim: Trim | None = None


def _like_bert(prefix: str, positions: Positions) -> Family:
    heads = frozenset({f"{prefix}ForSequenceClassification"})
    trim = Trim("encoder.layer", attention="attention", cut="attention.output", heads=heads)
    return Family(encoder="encoder", positions=positions, trim=trim)


FAMILIES: dict[str, Family] = {
    "bert": _like_bert("Bert", positions_in_sequence),
    "electra": _like_bert("Electra", positions_in_sequence),
    "ernie": _like_bert("Ernie", positions_in_sequence),
    "roberta": _like_bert("Roberta", positions_after_padding_id),
    "xlm-roberta": _like_bert("XLMRoberta", positions_after_padding_id),
    "camembert": _like_bert("Camembert", positions_after_padding_id),
    "data2vec-text": _like_bert("Data2VecText", positions_after_padding_id),
    "distilbert": Family(
        encoder="transformer",
        positions=positions_in_sequence,
        trim=Trim(
            "transformer.layer",
            attention="attention",
            cut="sa_layer_norm",
            heads=frozenset({"DistilBertForSequenceClassification"}),
        ),
    ),
    # A layer of ModernBERT adds its residuals between its modules, where no hook can trim them.
    "modernbert": Family(encoder="", positions=positions_in_sequence),
    # All layers of ALBERT are the same module, so that the last one cannot be trimmed.
    "albert": Family(encoder="encoder", positions=positions_in_sequence),
    "mpnet": Family(
        encoder="encoder",
        positions=positions_after_padding_id,
        implementation="eager",
        adapt=adapt_mpnet,
    ),
    "deberta-v2": Family(
        encoder="encoder",
        positions=positions_in_sequence,
        implementation="eager",
        adapt=adapt_deberta,
        trim=Trim(
            "encoder.layer",
            attention="attention.self",
            cut="attention.output",
            heads=frozenset({"DebertaV2ForSequenceClassification"}),
        ),
    ),
    "eurobert": Family(encoder="", positions=positions_in_sequence),
    "t5": Family(encoder="decoder", positions=None, is_causal=True, adapt=adapt_t5),
    "mt5": Family(encoder="decoder", positions=None, is_causal=True, adapt=adapt_t5),
    **{
        kind: Family(encoder="", positions=positions_in_sequence, is_causal=True)
        for kind in ("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma", "phi")
    },
}


def family_of(model: PreTrainedModel) -> Family | None:
    """Return the family of `model`, or `None` if it cannot run without padding."""
    return FAMILIES.get(getattr(model.config, "model_type", ""))


@dataclass(frozen=True)
class PackingSupport:
    """Whether a model's encoder can run without padding."""

    supported: bool  # Whether it can.
    reason: str  # Reason, as one clause.


def packing_support(model: PreTrainedModel) -> PackingSupport:
    """Return whether `model` can run without padding.

    Args:
        model: A model of transformers, with or without a head.

    Returns:
        The answer and its reason. `verify_packing` confirms it with a batch.
    """
    reason = _unsupported_reason(model)
    if reason is not None:
        return PackingSupport(supported=False, reason=reason)
    kind = model.config.model_type
    part = "model" if FAMILIES[kind].is_causal else "encoder"
    return PackingSupport(supported=True, reason=f"the {kind} {part} runs only on real tokens")


def _unsupported_reason(model: PreTrainedModel) -> str | None:
    config = model.config
    kind = getattr(config, "model_type", "")
    family = family_of(model)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        return f"the model family {kind!r} is not supported (supported: {known})"
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return "the causal and cross attention of an encoder used as a decoder are not supported"
    if family.encoder and not hasattr(model.base_model, family.encoder):
        return f"{type(model).__name__} does not have the {family.encoder} of its family"
    implementation, expected = config._attn_implementation, family.implementation
    if implementation not in (expected, PACKED_NAMES[expected]):
        return f"the model was loaded with attn_implementation={implementation!r}, not {expected!r}"
    if getattr(config, "conv_kernel_size", 0):
        return "its convolution mixes neighbouring tokens, which a packed row does not allow"
    if getattr(config, "chunk_size_feed_forward", 0):
        return "chunk_size_feed_forward splits the sequence, which a packed row does not allow"
    return None
