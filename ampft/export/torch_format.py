"""Weights for PyTorch: model.safetensors, as `from_pretrained` reads it; in int8 with torchao."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from ampft.errors import InputError
from ampft.export.formats import BF16, FP16, FP32, INT8
from ampft.export.manifest import Manifest
from ampft.export.source import ModelSource
from ampft.models.pretrained import load_saved
from ampft.models.weights import cast_in_place
from ampft.precision.int8 import quantize
from ampft.tasks import TASKS

DTYPES = {FP32: torch.float32, FP16: torch.float16, BF16: torch.bfloat16}


def write(source: ModelSource, path: Path) -> None:
    """Write the weights of a model.

    Args:
        source: Model and precision.
        path: File to write, model.safetensors, in the folder of the artifact.

    Raises:
        InputError: Nothing can be quantized, or the run keeps modules in float32.
    """
    if source.precision == INT8:
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

        quantized = quantize(source.model, flag="--precision int8")
        tensors, metadata = flatten_tensor_state_dict(quantized.state_dict())
        # Tied weights are stored twice, because safetensors refuses shared memory.
        save_file({name: t.clone() for name, t in tensors.items()}, path, metadata=metadata)
        return
    dtype = DTYPES[source.precision]
    model: Any = source.model if dtype == torch.float32 else source.cast(dtype)
    model.save_pretrained(path.parent)


def load(folder: Path, manifest: Manifest, config: Any) -> nn.Module:
    """Return the model on the CPU, in evaluation mode.

    Args:
        folder: Folder of the artifact.
        manifest: Its manifest.
        config: Configuration of the model.

    Raises:
        InputError: The weights do not fit the configuration.
    """
    auto_class = getattr(transformers, TASKS[manifest.task].model_class)
    if manifest.precision != INT8:
        model: nn.Module = load_saved(auto_class, str(folder))
        cast_in_place(model, DTYPES[manifest.precision])
        return model.eval()
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    with torch.random.fork_rng(devices=[]):  # for weights that are replaced
        model = auto_class.from_config(config)
    path = folder / manifest.model
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        weights, _ = unflatten_tensor_state_dict(load_file(path), metadata)
        model.load_state_dict(weights, assign=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(
            f"--model {folder}: its weights cannot be loaded ({str(error).splitlines()[0]}). "
            "Export the run again with the installed version of torchao."
        ) from error
    return model.eval()
