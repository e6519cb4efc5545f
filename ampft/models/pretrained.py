"""Pretrained models: loaded in float32, with a head that fits the labels, or one clear message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from ampft.errors import InputError

NAMED_MODEL, SAVED_MODEL, CHECKPOINT = "--model_name_or_path", "--model", "--checkpoints"
_FINISHED_RUN = "Give the --output_dir of a finished run, with all its files."
CURES = {
    NAMED_MODEL: "Give a folder that save_pretrained wrote, or a hub id with the hub in reach.",
    SAVED_MODEL: _FINISHED_RUN,
    CHECKPOINT: _FINISHED_RUN,
}


def load_pretrained(
    auto_class: Any, path: str, label_arguments: Mapping[str, Any], *, trust_remote_code: bool
) -> tuple[Any, tuple[str, ...]]:
    """Return a model of transformers in float32, and what to say of its head.

    The head is new when the checkpoint has none, or was trained for other labels.

    Args:
        auto_class: The class of transformers that loads it, such as
            `AutoModelForSequenceClassification`.
        path: Folder or hub id.
        label_arguments: What the configuration needs to know of the labels of the data:
            `id2label` with their names in order, `num_labels` and so on.
        trust_remote_code: Whether code from the model's repository may run.

    Raises:
        InputError: It cannot be loaded, or its weights are not finite.
    """
    config = load_config(path, trust_remote_code=trust_remote_code)
    try:
        model = auto_class.from_pretrained(
            path,
            dtype=torch.float32,  # transformers 5 would take the dtype of the checkpoint
            ignore_mismatched_sizes=True,
            trust_remote_code=trust_remote_code,
            **label_arguments,
        )
    except Exception as error:  # damaged weights: SafetensorError, UnpicklingError, KeyError, ...
        raise cannot_load(path, error) from error
    stale = _stale_labels(config, tuple(label_arguments["id2label"].values()))
    if stale is not None:
        _renew_head(model)
    refuse_not_finite(model, path)
    return model, () if stale is None else (f"new head: the model's own was trained for {stale}",)


def load_config(path: str, *, trust_remote_code: bool) -> Any:
    """Return the configuration of a model, a folder's or a hub id's.

    Raises:
        InputError: It cannot be loaded.
    """
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # a damaged config.json raises whatever the family trips over
        raise cannot_load(path, error) from error


def load_saved(auto_class: Any, path: str, *, flag: str = SAVED_MODEL) -> Any:
    """Return the model in the folder of a run, in float32, as it was saved.

    Raises:
        InputError: It cannot be loaded, or its weights are not finite.
    """
    try:
        model = auto_class.from_pretrained(path, dtype=torch.float32)
    except Exception as error:  # as in `load_pretrained`
        raise cannot_load(path, error, flag=flag) from error
    refuse_not_finite(model, path, flag=flag)
    return model


def refuse_not_finite(model: nn.Module, path: str, *, flag: str = NAMED_MODEL) -> None:
    """Raise InputError, naming the parameter, where a weight is NaN or infinite."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise InputError(
                f"{flag} {path}: its parameter {name} has values that are not finite. The model "
                "is damaged, or its training diverged. Take another one."
            )


def cannot_load(path: str, error: Exception, *, flag: str = NAMED_MODEL) -> InputError:
    """Return the one message for a model, tokenizer or processor that cannot be loaded."""
    reason = next(iter(str(error).strip().splitlines()), "").rstrip(".")
    # Such as KeyError, whose message alone says nothing.
    if not isinstance(error, OSError | ValueError | ImportError) or not reason:
        reason = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    return InputError(f"{flag} {path}: cannot be loaded ({reason}). {CURES[flag]}")


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


def enable_gradient_checkpointing(model: Any) -> None:
    """Let `model` keep what its layers are given, and compute the rest again when it is needed."""
    # transformers 5.23 renamed it, and warns of the old name.
    renamed = getattr(model, "activation_checkpointing_enable", None)
    (renamed or model.gradient_checkpointing_enable)({"use_reentrant": False})
