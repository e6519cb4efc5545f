"""What differs between the encoder families that run without padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ampft.packing.layout import PackedLayout


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
class Family:
    """How one family of encoders is entered and left.

    Attributes:
        encoder: Path, below the base model, of the module whose output is scattered back; the base
            model itself when empty.
        positions: Gives the position ids of the packed row.
        masks: Attention mask that the base model is handed in place of the padded one.
        takes_token_types: Whether the model has token type ids.
    """

    encoder: str
    positions: Callable[[nn.Module, torch.Tensor, PackedLayout], torch.Tensor]
    takes_token_types: bool = True
    mask_kinds: tuple[str, ...] = ()


_BERT = Family(encoder="encoder", positions=positions_in_sequence)
_ROBERTA = Family(encoder="encoder", positions=positions_after_padding_id)

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "electra": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": Family(
        encoder="transformer", positions=positions_in_sequence, takes_token_types=False
    ),
    "modernbert": Family(
        encoder="",
        positions=positions_in_sequence,
        takes_token_types=False,
        mask_kinds=("full_attention", "sliding_attention"),
    ),
}


def family_of(model: PreTrainedModel) -> Family | None:
    """Return the family of `model`, or `None` when the padding-free path does not know it."""
    return FAMILIES.get(getattr(model.config, "model_type", ""))
