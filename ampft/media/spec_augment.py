"""SpecAugment, which masks spans of sounds in training."""

from __future__ import annotations

from typing import Any

import torch


def disable_unsafe_regularization(model: Any, shortest: int) -> tuple[str, ...]:
    """Turn off SpecAugment where it would fail, and return notes on it.

    It masks spans of `mask_time_length` frames, and fails on shorter sounds.

    Args:
        shortest: Number of samples of the shortest sound.
    """
    config, notes = model.config, []
    count_frames = getattr(model, "_get_feat_extract_output_lengths", None)
    masks = (
        getattr(config, "apply_spec_augment", False) and getattr(config, "mask_time_prob", 0) > 0
    )
    if masks and count_frames is not None:
        frames = int(count_frames(torch.tensor(shortest)))
        if frames < config.mask_time_length:
            config.apply_spec_augment = masks = False
            notes.append(
                f"SpecAugment is off: the shortest sound has {frames} frames, and its masks "
                f"{config.mask_time_length} (mask_time_length of the configuration)"
            )
    if not masks:
        for name, parameter in model.named_parameters():
            if name.endswith("masked_spec_embed"):  # without masks it has no gradient
                parameter.requires_grad_(False)
    return tuple(notes)
