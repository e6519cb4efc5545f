"""Which part of a model is trained: all of it, the part that is not frozen, or adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ampft.models.adapters import (
    add_lora,
    base_sha256,
    described_lora,
    lora_config,
    save_adapter,
)
from ampft.models.freezing import (
    cast_frozen_once,
    check_something_trains,
    freeze_matching,
    keep_frozen_in_evaluation,
    train_top_layers,
)
from ampft.models.settings import TrainedPart
from ampft.models.weights import LoadedModel


def restrict_training(loaded: LoadedModel, part: TrainedPart) -> LoadedModel:
    """Return the model with only a part of it to be trained; it is changed in place.

    Args:
        loaded: Model in float32.
        part: Part to be trained.

    Raises:
        InputError: The part does not fit the model.
    """
    if part.trains_all:
        return loaded
    model = loaded.model
    # Checkpointing of activations made the embeddings require gradients, for its reentrant form.
    if hasattr(model, "disable_input_require_grads"):
        model.disable_input_require_grads()  # type: ignore[operator]
    if part.lora_r is not None:
        loaded = replace(loaded, base_sha256=base_sha256(model))
        add_lora(model, part)
        # Adapters do not save the statistics of batch norms, so the base model's must not change.
        keep_frozen_in_evaluation(model, _BatchNorm)
        what = described_lora(model)
    else:
        if part.train_layers is not None:
            train_top_layers(model, part.train_layers)
        if part.freeze is not None:
            freeze_matching(model, part.freeze)
        check_something_trains(model)
        keep_frozen_in_evaluation(model)
        what = "the rest is frozen"
    cast_frozen_once(model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    share = f"{trained:,} of {total:,} weights ({trained / total:.1%})"
    return replace(loaded, notes=(*loaded.notes, f"trained: {share}; {what}"))


def save_trained(
    model: Any, folder: Path, loaded: LoadedModel, weights: Mapping[str, Tensor] | None
) -> None:
    """Save a trained model, or its adapters and head if it has adapters.

    Args:
        model: Model, not prepared.
        folder: Folder for the files.
        loaded: Model as it was loaded.
        weights: State of the model by name, if it is sharded over processes; None otherwise.
    """
    if lora_config(model) is None:
        model.save_pretrained(folder, state_dict=weights)
    else:
        save_adapter(model, folder, base=loaded.name, base_hash=loaded.base_sha256)
