"""The encoder families that run without padding, and why others do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ampft.models.packing.attention import ATTENTION_NAME
from ampft.models.packing.layout import PackedLayout


def positions_in_sequence(
    base: nn.Module, input_ids: torch.Tensor, layout: PackedLayout
) -> torch.Tensor:
    """Return (1, N) position ids that count from 0 in each sequence."""
    del base, input_ids
    return layout.columns.unsqueeze(0)


def positions_after_padding_id(
    base: nn.Module, input_ids: torch.Tensor, layout: PackedLayout
) -> torch.Tensor:
    """Return (1, N) position ids as RoBERTa counts them: from the padding id on, over its ids.

    A padding id within the text keeps the padding position, so the model's own rule is applied to
    the padded batch (integers alone) rather than derived from the lengths.
    """
    embeddings: Any = base.embeddings
    padded = embeddings.create_position_ids_from_input_ids(input_ids, embeddings.padding_idx)
    return layout.gather(padded)


@dataclass(frozen=True)
class Trim:
    """Where the last layer can go on with the first token of each sequence alone.

    Attributes:
        layers: Path, below the base model, of the list of layers.
        attention: Path, below a layer, of the module that is handed the keyword arguments.
        cut: Path, below a layer, of the first module after attention that works token by token on
            everything the layer still needs; its inputs are cut.
        heads: Names of the model classes whose head reads the first token and nothing else.
    """

    layers: str
    attention: str
    cut: str
    heads: frozenset[str]


@dataclass(frozen=True)
class Family:
    """How one family of encoders is entered and left.

    Attributes:
        encoder: Path, below the base model, of the module whose output is scattered back; the base
            model itself when empty.
        positions: Gives the position ids of the packed row.
        mask_kinds: Kinds of attention mask that the base model wants to be handed; it makes its own
            when there are none.
        trim: How the last layer is cut down to first tokens; `None` where it cannot be.
    """

    encoder: str
    positions: Callable[[nn.Module, torch.Tensor, PackedLayout], torch.Tensor]
    mask_kinds: tuple[str, ...] = ()
    trim: Trim | None = None


def _like_bert(
    prefix: str, positions: Callable[[nn.Module, torch.Tensor, PackedLayout], torch.Tensor]
) -> Family:
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
    # A layer of ModernBERT adds its residuals between its modules, where no hook can cut.
    "modernbert": Family(
        encoder="",
        positions=positions_in_sequence,
        mask_kinds=("full_attention", "sliding_attention"),
    ),
}


def family_of(model: PreTrainedModel) -> Family | None:
    """Return the family of `model`, or `None` when the padding-free path does not know it."""
    return FAMILIES.get(getattr(model.config, "model_type", ""))


@dataclass(frozen=True)
class PackingSupport:
    """Whether a model's encoder can run on real tokens alone.

    Attributes:
        supported: Whether it can.
        reason: One clause: what runs, or what stands in the way.
    """

    supported: bool
    reason: str


def packing_support(model: PreTrainedModel) -> PackingSupport:
    """Say whether `model` can run without padding.

    Args:
        model: A model of transformers, with or without a head.

    Returns:
        The answer and its reason. `verify_packing` proves it on a batch.
    """
    obstacle = _obstacle(model)
    if obstacle is not None:
        return PackingSupport(supported=False, reason=obstacle)
    kind = model.config.model_type
    return PackingSupport(supported=True, reason=f"the {kind} encoder runs on real tokens alone")


def _obstacle(model: PreTrainedModel) -> str | None:
    config = model.config
    kind = getattr(config, "model_type", "")
    family = family_of(model)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        return f"the family {kind!r} is not among those verified ({known})"
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return "a decoder's causal and cross attention are not packed"
    implementation = config._attn_implementation
    if implementation not in ("sdpa", ATTENTION_NAME):
        return f"the model was loaded with attn_implementation={implementation!r}, not 'sdpa'"
    if getattr(config, "chunk_size_feed_forward", 0):
        return "chunk_size_feed_forward cuts the sequence, which a packed row cannot bear"
    return None
