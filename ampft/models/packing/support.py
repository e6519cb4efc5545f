"""Which models the padding-free path knows, and why it leaves others alone."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from ampft.models.packing.attention import ATTENTION_NAME
from ampft.models.packing.families import FAMILIES, family_of


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
