"""What models of the Wav2Vec2 kind do in training besides dropout: masks and dropped layers."""

from __future__ import annotations

from typing import Any

import torch

from ampft.precision.accelerator import world_size


def prepare_for_training(model: Any, shortest: int) -> tuple[str, ...]:
    """Turn off what the data or several processes make impossible, and return notes on it.

    - SpecAugment masks spans of `mask_time_length` frames, and fails on shorter sounds.
    - Layer drop skips whole layers. Several processes would wait for the gradients of a layer that
      one of them skipped.

    Args:
        model: Classifier of sounds.
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
    if world_size() > 1 and getattr(config, "layerdrop", 0) > 0:
        notes.append(
            f"layer drop is off (layerdrop was {config.layerdrop:g}): it needs one process"
        )
        config.layerdrop = 0.0
    return tuple(notes)
