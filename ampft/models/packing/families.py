"""The families of models that can run without padding, and the reasons why others cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ampft.models.packing.attention import PACKED_NAMES
from ampft.models.packing.custom_attention import Adapter, adapt_deberta, adapt_mpnet, adapt_t5
from ampft.models.packing.layout import PackedLayout

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
    """Return (1, N) position ids of RoBERTa, which count real tokens from after the padding id.

    A padding id within the text has the padding position. The model's own rule is therefore applied
    to the padded batch of ids, instead of deriving the positions from the lengths.
    """
    embeddings: Any = base.embeddings
    padded = embeddings.create_position_ids_from_input_ids(input_ids, embeddings.padding_idx)
    return layout.gather(padded)


def positions_of_mpnet(
    base: nn.Module, input_ids: torch.Tensor, layout: PackedLayout
) -> torch.Tensor:
    """Return (1, N) position ids of MPNet, which counts as RoBERTa does."""
    from transformers.models.mpnet.modeling_mpnet import create_position_ids_from_input_ids

    embeddings: Any = base.embeddings
    return layout.gather(create_position_ids_from_input_ids(input_ids, embeddings.padding_idx))


@dataclass(frozen=True)
class Trim:
    """Where the last layer can be trimmed to the first token of each sequence.

    Attributes:
        layers: Path of the list of layers, relative to the base model.
        attention: Path of the module that receives the keyword arguments, relative to a layer.
        cut: Path of the module whose inputs are trimmed, relative to a layer: the first one after
            attention that processes each token separately and receives all that the layer needs.
        heads: Names of the model classes whose head reads only the first token.
    """

    layers: str
    attention: str
    cut: str
    heads: frozenset[str]


@dataclass(frozen=True)
class Family:
    """How to pack the inputs and unpack the outputs of one family of models.

    Attributes:
        encoder: Path of the module whose output is scattered back, relative to the base model;
            empty for the base model itself.
        positions: Function that returns the position ids of the packed row; `None` if the family
            takes none.
        is_causal: Whether it is a decoder, which would otherwise cache keys and values.
        implementation: Attention implementation that is replaced: `sdpa`, or `eager` for a family
            that has only its own code.
        adapt: Function that adapts attention modules that need more than the packed row.
        trim: How to trim the last layer to first tokens; `None` if that is not possible.
    """

    encoder: str
    positions: Positions | None
    is_causal: bool = False
    implementation: str = "sdpa"
    adapt: Adapter | None = None
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
        positions=positions_of_mpnet,
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
    """Whether a model's encoder can run without padding.

    Attributes:
        supported: Whether it can.
        reason: Reason, as one clause.
    """

    supported: bool
    reason: str


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
