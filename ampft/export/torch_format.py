"""Weights for PyTorch: model.safetensors, as `from_pretrained` reads it; in int8 with torchao."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ampft.errors import InputError
from ampft.export.artifact import ArtifactManifest
from ampft.export.formats import BF16, FP16, FP32, INT8, Write
from ampft.export.int8 import quantize
from ampft.export.source import ExportSource
from ampft.models.freezing import last_layers
from ampft.models.pretrained import load_saved
from ampft.models.weights import cast_in_place
from ampft.tasks.table import TASKS

DTYPES = {FP32: torch.float32, FP16: torch.float16, BF16: torch.bfloat16}


@contextmanager
def model_writer(source: ExportSource) -> Iterator[Write]:
    """Return what writes the weights of a model, `model.safetensors`, with modules in float32.

    Raises:
        InputError: Nothing can be quantized.
    """

    def write(path: Path, kept: Sequence[str]) -> None:
        if source.request.precision == INT8:
            from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

            quantized = quantize(source.model, flag="--precision int8", kept=kept)
            tensors, metadata = flatten_tensor_state_dict(quantized.state_dict())
            # Tied weights are stored twice, because safetensors refuses shared memory.
            save_file({name: t.clone() for name, t in tensors.items()}, path, metadata=metadata)
            return
        model: Any = copy.deepcopy(source.model)
        cast_in_place(model, DTYPES[source.request.precision], kept)
        model.save_pretrained(path.parent)

    yield write


def load(folder: Path, manifest: ArtifactManifest, config: Any) -> nn.Module:
    """Return the model on the CPU, in evaluation mode.

    Raises:
        InputError: The weights do not fit the configuration.
    """
    auto_class = getattr(transformers, TASKS[manifest.task].model_class)
    if manifest.precision != INT8:
        model: nn.Module = load_saved(auto_class, str(folder))
        dtype = DTYPES[manifest.precision]
        cast_in_place(model, dtype, manifest.keep_float)
        last = last_layers(model, config.num_labels)
        for path_of_module in manifest.keep_float if dtype != torch.float32 else ():
            # Nothing in 16 bits reads what the last layer returns, such as 1,990.4.
            around = torch.float32 if path_of_module in last else dtype
            keep_float(model.get_submodule(path_of_module), around)
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


def keep_float(module: nn.Module, dtype: torch.dtype) -> None:
    """Make a module with float32 weights compute in float32 inside a 16-bit model.

    Args:
        dtype: Dtype of the model around it, to which its outputs are cast.
    """

    def cast(values: Any, target: torch.dtype) -> Any:
        def one(value: Any) -> Any:
            is_float = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(target) if is_float else value

        return tree_map(one, values)

    module.register_forward_pre_hook(
        lambda module, args, kwargs: (cast(args, torch.float32), cast(kwargs, torch.float32)),
        with_kwargs=True,
    )
    module.register_forward_hook(lambda module, args, output: cast(output, dtype))
