"""A check at start-up that packing leaves a model's answers as they are."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from ampft.models.packing.install import install_packing


def verify_packing(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> float:
    """Return how far packed logits are from padded ones, dropout off.

    Args:
        model: A supported model without packing installed; left as it was.
        batch: What the model is called with: `input_ids` (B, T), `attention_mask` and so on.

    Returns:
        The largest absolute difference of the first output (logits, or hidden states at real
        tokens) over the largest absolute padded value; infinity when packing did not run.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            padded = model(**batch)[0]
            handle = install_packing(model)
            try:
                packed = model(**batch)[0]
            finally:
                handle.remove()
    finally:
        model.train(was_training)
    if handle.paths["packed"] != 1:
        return float("inf")
    if padded.shape[:2] == batch["input_ids"].shape:
        real = batch["attention_mask"] != 0
        padded, packed = padded[real], packed[real]
    return float((padded - packed).abs().max() / padded.abs().max())
