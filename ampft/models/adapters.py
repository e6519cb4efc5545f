"""Low-rank adapters (LoRA) through PEFT: added to a model, saved, loaded and merged.

Source: Hu et al. (2022), "LoRA: Low-Rank Adaptation of Large Language Models". A linear layer W x
of the encoder becomes W x + (alpha / r) B A x, in which only A and B are trained. The head is
trained as a whole, and saved with the adapters as what PEFT calls `modules_to_save`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ampft.errors import InputError, listed
from ampft.models.four_bit import dequantize, has_4bit_layers, quantize_base_to_4bit, weight_counts
from ampft.models.freezing import (
    base_model_of,
    cache_frozen_casts,
    check_something_trains,
    clear_cached_casts,
    freeze_matching,
    head_names,
    is_inside_any,
    keep_frozen_in_evaluation,
    train_top_layers,
)
from ampft.models.model_settings import TrainedPartSettings
from ampft.models.weights import LoadedModel, tensors_hash
from ampft.precision.float32_modules import keep_paths_in_fp32, replaced_forwards
from ampft.text.json_io import json_text, read_json_object

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ALL_LINEAR = "all-linear"
ADAPTER = "default"  # PEFT's name of the only adapter
_PREFIX = "base_model.model."  # of the names in PEFT's files
_LORA_MARKS = (".lora_A.", ".lora_B.")
PEFT_TASKS = {"SequenceClassification": "SEQ_CLS", "TokenClassification": "TOKEN_CLS"}


def check_peft() -> None:
    """Check that PEFT is installed.

    Raises:
        InputError: It is not.
    """
    if importlib.util.find_spec("peft") is None:
        raise InputError(
            '--lora_r: the package peft is not installed. Run `pip install "ampft[lora]"`, or '
            "train the top layers with --train_layers."
        )


def add_lora(model: nn.Module, part: TrainedPartSettings) -> None:
    """Add adapters to a model in place; only they and the head are trained then.

    The adapters are float32, drawn with torch's current seed, and change nothing before the first
    step, because B is zero.

    Args:
        model: Model of transformers in float32.
        part: Rank, size and place of the adapters, and whether the base is stored in 4 bits.

    Raises:
        InputError: A package is not installed, or the model has no such layers.
    """
    check_peft()
    assert part.lora_r is not None, "adapters have a rank"
    from peft import LoraConfig, inject_adapter_in_model
    from transformers.pytorch_utils import Conv1D

    head = head_names(model)
    already_frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    targets = target_layers(model, part.lora_target_modules)
    config = LoraConfig(
        r=part.lora_r,
        lora_alpha=2 * part.lora_r if part.lora_alpha is None else part.lora_alpha,
        lora_dropout=part.lora_dropout,
        target_modules=targets,
        # Weights of `Conv1D`, as GPT-2 has them, are transposed; PEFT warns if it finds out itself.
        fan_in_fan_out=all(
            isinstance(module, Conv1D)
            for name, module in model.named_modules()
            if name.rpartition(".")[2] in targets and not is_inside_any(name, head)
        ),
        # Layers of the head may have the same names as layers of the encoder.
        exclude_modules=[name for name, _ in model.named_modules() if is_inside_any(name, head)],
    )
    if part.load_in_4bit:
        quantize_base_to_4bit(model)
    inject_adapter_in_model(config, model, ADAPTER)
    for name, parameter in model.named_parameters():
        in_head = is_inside_any(name, head) and name not in already_frozen
        parameter.requires_grad_(_is_adapter(name) or in_head)
    for layer in _adapted(model).values():
        # Autocast casts; PEFT would cast the inputs to float32 first.
        layer.cast_input_dtype_enabled = False
    model.lora_config = config


def target_layers(model: nn.Module, requested: str | None) -> list[str]:
    """Return the last parts of the names of the layers that get adapters, sorted.

    Args:
        model: Model without adapters.
        requested: The user's choice, as in `TrainedPartSettings.lora_target_modules`.

    Raises:
        InputError: The encoder has no linear layer of such a name.
    """
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL
    from transformers.pytorch_utils import Conv1D

    head, inside = head_names(model), set(base_model_of(model).modules())
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module in inside
        and not is_inside_any(name, head)
    }
    if not linear:
        raise InputError(
            f"--lora_r: {type(model).__name__} has no linear layers below its head, to which "
            "adapters are added. Train the whole model, or a part of it with --freeze."
        )
    if requested is None:
        usual = USUAL.get(getattr(getattr(model, "config", None), "model_type", ""), [])
        chosen = sorted(set(usual) & set(linear))
        return chosen or sorted(linear)
    if requested == ALL_LINEAR:
        return sorted(linear)
    names = [part.strip() for part in requested.split(",")]
    for name in names:
        if name not in linear:
            raise InputError(
                f"--lora_target_modules {requested}: the encoder of {type(model).__name__} has no "
                f"linear layer {name!r}. Choose from {listed(sorted(linear))}, or use {ALL_LINEAR}."
            )
    return sorted(set(names))


def lora_config(model: nn.Module) -> Any:
    """Return PEFT's configuration of the adapters of a model; None without adapters."""
    return model.__dict__.get("lora_config")


def _is_adapter(name: str) -> bool:
    return any(mark in f".{name}." for mark in _LORA_MARKS)


def _adapted(model: nn.Module) -> dict[str, Any]:
    """Return the layers with adapters, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def check_whole_layers(model: nn.Module, names: Iterable[str]) -> None:
    """Check that modules kept in float32 are whole layers, where these have adapters.

    Merging the adapters removes the parts of a layer.

    Args:
        model: Model, with or without adapters.

    Raises:
        InputError: A module is a part of a layer with adapters.
    """
    for layer, name in product(_adapted(model), names):
        if name.startswith(f"{layer}."):
            raise InputError(
                f"--fp32_modules: {name} is a part of a layer with adapters. Give the whole layer: "
                f"{layer}."
            )


def base_sha256(model: nn.Module) -> str:
    """Return the SHA-256 of the weights below the head, by their names without adapters.

    A model with adapters has the same hash as its base model.
    """
    head = head_names(model)
    return tensors_hash(
        {
            name.replace(".base_layer.", "."): tensor
            for name, tensor in model.state_dict().items()
            if not _is_adapter(name) and not is_inside_any(name, head)
        }
    )


def adapter_files(
    model: nn.Module, *, base: str, base_hash: str, state: Mapping[str, Tensor] | None = None
) -> dict[str, bytes]:
    """Return adapters and head as files, by name, which `PeftModel.from_pretrained` loads.

    The metadata of the weights also hold the model's configuration, which has the labels, and the
    hash of the base.

    Args:
        base: Folder or hub id of the model to which the adapters were added.
        base_hash: `base_sha256` of that model in float32.
        state: State of a model that is sharded over processes, gathered; None for its own.
    """
    head, adapters = head_names(model), lora_config(model)
    state = model.state_dict() if state is None else state
    tensors = {
        saved: state[name].detach().cpu().contiguous()
        for saved, name in _saved_names(model).items()
    }
    tasks = (task for name, task in PEFT_TASKS.items() if type(model).__name__.endswith(name))
    values = {
        "peft_type": "LORA",
        "task_type": next(tasks, None),
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": adapters.r,
        "lora_alpha": adapters.lora_alpha,
        "lora_dropout": adapters.lora_dropout,
        "fan_in_fan_out": adapters.fan_in_fan_out,
        "target_modules": sorted(adapters.target_modules),
        "exclude_modules": sorted(adapters.exclude_modules),
        "modules_to_save": list(head),
    }
    config: Any = model.config
    metadata = {"format": "pt", "config": config.to_json_string(), "base_sha256": base_hash}
    if has_4bit_layers(model):
        metadata["base_storage"] = "nf4"
    return {
        ADAPTER_CONFIG: json_text(values).encode(),
        ADAPTER_WEIGHTS: _reproducible(save(tensors, metadata)),
    }


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files, by name, into a folder, which is created if it does not exist."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _reproducible(content: bytes) -> bytes:
    """Return a safetensors file with sorted metadata, whose order is random otherwise."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the data begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _saved_names(model: nn.Module) -> dict[str, str]:
    """Return the model's names of the saved tensors, by their names in PEFT's files."""
    head = head_names(model)
    return {
        f"{_PREFIX}{name.replace(f'.{ADAPTER}.', '.')}": name
        for name in model.state_dict()
        if _is_adapter(name) or is_inside_any(name, head)
    }


@dataclass(frozen=True)
class SavedAdapter:
    """Adapters and head in a folder, to be loaded into their base."""

    folder: Path  # Folder with the files of `adapter_files`.
    base: str  # Folder or hub id of the base.
    part: TrainedPartSettings  # Rank, size and place of the adapters.
    config: Mapping[str, Any]  # Values of the model's configuration.
    base_sha256: str  # Hash of the base.

    def load_into(self, model: nn.Module) -> None:
        """Add the adapters to their base, and load them and the head.

        Raises:
            InputError: The model is not the base, or a weight is missing or has another shape.
        """
        if base_sha256(model) != self.base_sha256:
            raise InputError(
                f"{self.folder}: its adapters were trained on other weights of {self.base}. "
                "Restore the weights of that model, or repeat the run."
            )
        add_lora(model, self.part)
        own, expected = model.state_dict(), _saved_names(model)
        with safe_open(self.folder / ADAPTER_WEIGHTS, "pt") as file:
            names = set(file.keys())
            loaded = {expected[n]: file.get_tensor(n).float() for n in names & expected.keys()}
        wrong = sorted(names ^ expected.keys()) + sorted(
            name for name, tensor in loaded.items() if tensor.shape != own[name].shape
        )
        if wrong:
            raise InputError(
                f"{self.folder / ADAPTER_WEIGHTS}: {wrong[0]} does not fit the model. Restore the "
                "folder from a copy, or repeat the run."
            )
        model.load_state_dict(loaded, strict=False)


def read_adapter(folder: Path) -> SavedAdapter | None:
    """Return the adapters in a folder; None if it holds none.

    Raises:
        InputError: A file is missing or not one of `adapter_files`.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    check_peft()
    try:
        values = read_json_object(folder / ADAPTER_CONFIG)
        with safe_open(folder / ADAPTER_WEIGHTS, "pt") as file:
            metadata = file.metadata()
        part = TrainedPartSettings(
            lora_r=int(values["r"]),
            lora_alpha=int(values["lora_alpha"]),
            lora_dropout=float(values["lora_dropout"]),
            lora_target_modules=",".join(values["target_modules"]),
            load_in_4bit="base_storage" in metadata,
        )
        base = str(values["base_model_name_or_path"])
        config = json.loads(metadata["config"])
        return SavedAdapter(folder, base, part, config, metadata["base_sha256"])
    except Exception as error:  # a damaged file: SafetensorError, KeyError, TypeError, ...
        raise InputError(
            f"{folder}: its adapters cannot be read ({type(error).__name__}: {error}). Restore the "
            "folder from a copy, or repeat the run."
        ) from error


def merge_adapters(model: nn.Module) -> None:
    """Add the adapters of a model to the weights of its layers, in place; without any, do nothing.

    The model is then one without adapters, all of it in float32. Its logits change by rounding.
    """
    dequantize(model)
    kept = {name: forward.pattern for name, forward in replaced_forwards(model).items()}
    for name, layer in _adapted(model).items():
        layer.merge()
        clear_cached_casts(layer.get_base_layer())
        model.set_submodule(name, layer.get_base_layer())
    present = dict(model.named_modules())
    keep_paths_in_fp32(model, {name: pattern for name, pattern in kept.items() if name in present})
    model.__dict__.pop("lora_config", None)


def restrict_training(loaded: LoadedModel, part: TrainedPartSettings) -> LoadedModel:
    """Return the model with only a part of it to be trained; it is changed in place.

    Args:
        loaded: Model in float32.

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
        lora = lora_config(model)
        targets = ", ".join(sorted(lora.target_modules))
        base = ", over a base in 4 bits (NF4)" if has_4bit_layers(model) else ""
        what = f"LoRA of rank {lora.r} (alpha {lora.lora_alpha}) on {targets}, and the head{base}"
    else:
        if part.train_layers is not None:
            train_top_layers(model, part.train_layers)
        if part.freeze is not None:
            freeze_matching(model, part.freeze)
        check_something_trains(model)
        keep_frozen_in_evaluation(model)
        what = "the rest is frozen"
    cache_frozen_casts(model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(weight_counts(model).values())
    share = f"{trained:,} of {total:,} weights ({trained / total:.1%})"
    return replace(loaded, notes=(*loaded.notes, f"trained: {share}; {what}"))


def save_model_or_adapters(
    model: Any, folder: Path, loaded: LoadedModel, weights: Mapping[str, Tensor] | None
) -> None:
    """Save a trained model, or its adapters and head if it has adapters.

    Args:
        weights: State of the model by name, if it is sharded over processes; None otherwise.
    """
    if lora_config(model) is None:
        if hasattr(model.base_model, "attention_type"):  # a short text changes BigBird's for good
            model.config.attention_type = model.base_model.attention_type
        model.save_pretrained(folder, state_dict=weights)
    else:
        base, base_hash = loaded.name, loaded.base_sha256
        write_files(folder, adapter_files(model, base=base, base_hash=base_hash, state=weights))
