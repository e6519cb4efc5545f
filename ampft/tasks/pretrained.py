"""Pretrained models: loaded in float32, with a head that fits the labels, or one clear message."""

from __future__ import annotations

from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig

from ampft.errors import InputError


def load_pretrained(
    auto_class: Any, path: str, label_names: tuple[str, ...], *, trust_remote_code: bool
) -> tuple[Any, tuple[str, ...]]:
    """Return a model of transformers in float32, and what to say of its head.

    The head is new when the checkpoint has none, or was trained for other labels.

    Args:
        auto_class: The class of transformers that loads it, such as
            `AutoModelForSequenceClassification`.
        path: Folder or hub id.
        label_names: The labels of the data, in order.
        trust_remote_code: Whether code from the model's repository may run.

    Raises:
        InputError: It cannot be loaded.
    """
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        model = auto_class.from_pretrained(
            path,
            dtype=torch.float32,  # transformers 5 would take the dtype of the checkpoint
            ignore_mismatched_sizes=True,
            trust_remote_code=trust_remote_code,
            **label_arguments(label_names),
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise cannot_load(path, error) from error
    stale = _stale_labels(config, label_names)
    if stale is None:
        return model, ()
    _renew_head(model)
    return model, (f"new head: the model's own was trained for {stale}",)


def label_arguments(label_names: tuple[str, ...]) -> dict[str, Any]:
    """Return `num_labels`, `id2label` and `label2id` as transformers' configurations take them."""
    return {
        "num_labels": len(label_names),
        "id2label": dict(enumerate(label_names)),
        "label2id": {name: index for index, name in enumerate(label_names)},
    }


def cannot_load(path: str, error: Exception) -> InputError:
    """Return the one message for a model, tokenizer or processor that cannot be loaded."""
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return InputError(
        f"--model_name_or_path {path}: cannot be loaded ({reason}). Give a folder that "
        "save_pretrained wrote, or a hub id with the hub in reach."
    )


def _stale_labels(config: Any, label_names: tuple[str, ...]) -> str | None:
    """Return the labels that a head was trained for, or None when there is none or it fits."""
    architectures = getattr(config, "architectures", None) or []
    if not any(name.endswith("Classification") for name in architectures):
        return None
    own = tuple(config.id2label[index] for index in sorted(config.id2label))
    if own == label_names:
        return None
    return ", ".join(own[:4]) + (", ..." if len(own) > 4 else "")


def _renew_head(model: nn.Module) -> None:
    """Draw all weights outside the encoder again, from torch's current seed.

    As the family draws a new head: plain `reset_parameters` has another spread, and biases.
    """
    encoder = getattr(model, str(getattr(model, "base_model_prefix", "")), None)
    inside = set(encoder.modules()) if isinstance(encoder, nn.Module) else set()
    draw: Any = getattr(model, "_init_weights", None)
    for module in model.modules():
        if module in inside or not list(module.parameters(recurse=False)):
            continue
        if callable(getattr(module, "reset_parameters", None)):
            module.reset_parameters()  # type: ignore[operator]
        if draw is not None:
            for parameter in module.parameters(recurse=False):
                # transformers passes over what was loaded from the checkpoint.
                parameter.__dict__.pop("_is_hf_initialized", None)
            draw(module)
