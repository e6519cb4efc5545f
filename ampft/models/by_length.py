"""Models whose results depend on padding: inputs of the same length run together, unpadded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ampft.errors import InputError
from ampft.models.packing.install import evaluation_mode
from ampft.models.sound_features import SoundFeatures, varied_noise

MASK = "attention_mask"
# Difference of float32 logits, relative to the largest: rounding is at most 1e-6.
TOLERANCE = 1e-4
_FLAG = "runs_by_length"


def choose_batches(model: Any, features: SoundFeatures) -> tuple[str, ...]:
    """Make a model run sounds by length if its results depend on padding, and return a note.

    Args:
        model: Classifier of sounds, in float32 on the CPU.
        features: What its feature extractor gives.

    Raises:
        InputError: The model cannot run on half a second of sound.
    """
    if features.shape is not None:
        return ()
    difference = _padding_difference(model, features)
    if features.gives_mask and difference <= TOLERANCE:
        return (f"padding is masked: its logits do not depend on it (within {difference:.0e})",)
    what = f"its results depend on padding (logits differ by {difference:.1%})"
    if os.environ.get("ACCELERATE_USE_FSDP") == "true" or any(True for _ in model.buffers()):
        return (f"{what}, so that gradients and predictions depend on how sounds are batched",)
    setattr(model, _FLAG, True)
    return (f"{what}, so sounds run without it: those of the same length together",)


def _padding_difference(model: Any, features: SoundFeatures) -> float:
    """Return the difference between padded logits and those of each sound by itself."""
    inputs = varied_noise(features)
    parts = _equal_lengths(inputs)
    if not features.gives_mask:
        inputs = {name: value for name, value in inputs.items() if name != MASK}
    try:
        with evaluation_mode(model):
            padded = model(**inputs).logits
            alone = torch.empty_like(padded)
            for rows, part in parts:
                alone[rows] = model(**part).logits
    except (RuntimeError, ValueError, IndexError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"model: {type(model).__name__} cannot run on sounds of 0.4 to 1 seconds ({reason}). "
            "Use another model."
        ) from error
    return float((padded - alone).abs().max() / alone.abs().max())


def parts_by_length(
    model: nn.Module, inputs: Mapping[str, Tensor]
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Return the parts of a batch that run together: rows, and their inputs without padding.

    Args:
        model: Any model, prepared by Accelerate or not.
        inputs: Arguments of the model, on the CPU.

    Returns:
        Empty if the batch runs as it is.
    """
    if not getattr(getattr(model, "module", model), _FLAG, False):
        return []
    return _equal_lengths(inputs)


def _equal_lengths(inputs: Mapping[str, Tensor]) -> list[tuple[Tensor, dict[str, Tensor]]]:
    lengths = inputs[MASK].sum(dim=1)
    parts = []
    for length in lengths.unique().tolist():
        rows = (lengths == length).nonzero()[:, 0]
        values = {n: v[rows, :length] for n, v in inputs.items() if n.startswith("input_")}
        parts.append((rows, values))
    return parts
