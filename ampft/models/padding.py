"""Measures whether a model's results depend on the padding of a batch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import PreTrainedModel

from ampft.errors import InputError
from ampft.models.packing.install import evaluation_mode


def padding_difference(model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> float:
    """Return the difference between the logits of a padded batch and of each example by itself.

    It is far above rounding where a model mixes tokens without regard to the mask, by Fourier
    transforms (FNet) or convolutions (ConvBERT), or attends to the padding.

    Args:
        model: Classifier of texts or of tokens; it is not changed.
        batch: Arguments of the model: `input_ids` (B, T), `attention_mask` and so on.

    Returns:
        The largest absolute difference, divided by the largest absolute logit.

    Raises:
        InputError: The model cannot process texts of these lengths.
    """
    ids = batch["input_ids"]
    real = batch.get("attention_mask", ids != model.config.pad_token_id) != 0
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    try:
        with evaluation_mode(model):
            padded = model(**inputs)[0]
            alone = [
                model(**{name: value[row : row + 1, real[row]] for name, value in inputs.items()})[
                    0
                ]
                for row in range(len(ids))
            ]
    except (RuntimeError, ValueError, AssertionError) as error:
        raise InputError(
            f"model: {type(model).__name__} cannot process texts of these lengths ({error}). Use "
            "another model."
        ) from error
    if padded.dim() == 3:  # logits of each token
        padded, alone = padded[real], [logits.flatten(0, 1) for logits in alone]
    return float((padded - torch.cat(alone)).abs().max() / padded.abs().max())
