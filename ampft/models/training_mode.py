"""What a model does only in training: attention dropout, batch norms, masks, dropped layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ampft.errors import InputError
from ampft.precision.accelerator import world_size
from ampft.text.numbers import counted

# Flash attention 3 and 4, as packages or as kernels of the hub, have no argument for dropout, and
# transformers (`_process_flash_attention_kwargs`) passes on only the arguments that a kernel has.
_WITHOUT_DROPOUT = re.compile(r"flash[-_](attention_|attn)[34]")
_DROPOUT = re.compile(r".*att.*drop.*")  # attention_dropout, attention_probs_dropout_prob, ...


def check_kernel_supports_dropout(model: nn.Module) -> None:
    """Check that a model's attention drops the weights that its configuration says.

    Args:
        model: Model to be trained, of transformers or any other.

    Raises:
        InputError: A part of it has attention dropout above 0, and a kernel that ignores it.
    """
    from transformers import PreTrainedModel  # other functions here serve any model

    for part in model.modules():
        config = part.config if isinstance(part, PreTrainedModel) else None
        kernel = str(getattr(config, "_attn_implementation", None))
        if config is None or not _WITHOUT_DROPOUT.search(kernel):
            continue
        for name, value in config.to_dict().items():
            is_probability = isinstance(value, int | float) and not isinstance(value, bool)
            if _DROPOUT.fullmatch(name) and is_probability and value > 0:
                raise InputError(
                    f"model: attn_implementation={kernel!r} ignores dropout, so the model would "
                    f"train without its {name} of {value:g}. Load it with "
                    f"attn_implementation='sdpa' or 'flash_attention_2', or set {name} to 0."
                )


def batch_norm_note(model: nn.Module, *, micro_batches: int, processes: int) -> str | None:
    """Return what batch normalisation does to the gradient of a split batch; None if nothing.

    In training, it normalises by the mean and variance of the examples that go through the model
    together. These are a micro-batch, so the gradient depends on how a batch is split, and no
    weighting of the losses corrects this. `SyncBatchNorm` uses the examples of all processes.

    Args:
        processes: Number of processes.
    """
    was_training = model.training
    # Frozen ones stay in evaluation, and use no statistics of a batch.
    norms = [m for m in model.train().modules() if isinstance(m, _BatchNorm) and m.training]
    model.train(was_training)
    synchronized = all(isinstance(module, nn.SyncBatchNorm) for module in norms)
    parts = micro_batches * (1 if synchronized else processes)
    if not norms or parts == 1:
        return None
    return (
        f"batch normalisation ({counted(len(norms), 'layer')}) uses the statistics of each of the "
        f"{parts} parts of a batch, so the gradient is not the whole batch's gradient. To avoid "
        "this, use one process and --gradient_accumulation_steps 1"
    )


def disable_layer_drop(model: Any) -> str | None:
    """Turn layer drop off in several processes, and return a note on it; None if nothing changed.

    It skips whole layers at random, and the other processes would wait for the gradients of a layer
    that one of them skipped. Models read it from their configuration or keep a copy of it.
    """
    config, names = getattr(model, "config", None), ("encoder_layerdrop", "decoder_layerdrop")
    places = [(config, name) for name in ("layerdrop", *names)]
    places += [(module, "layerdrop") for module in model.modules()]
    dropped = [
        (place, name)
        for place, name in places
        if isinstance(value := getattr(place, name, None), float) and value > 0
    ]
    if world_size() == 1 or not dropped:
        return None
    largest = max(getattr(place, name) for place, name in dropped)
    for place, name in dropped:
        setattr(place, name, 0.0)
    return f"layer drop is off (layerdrop was {largest:g}): it needs one process"


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout and gradients off."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def checkpoints_gradients(model: nn.Module) -> bool:
    """Return whether layers of a model run again in the backward pass."""
    renamed = getattr(model, "is_activation_checkpointing", None)  # by transformers 5.23
    return bool(getattr(model, "is_gradient_checkpointing", False) if renamed is None else renamed)
