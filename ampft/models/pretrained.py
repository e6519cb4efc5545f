"""Loads pretrained models in float32, with a head that matches the labels."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, PreTrainedConfig

from ampft.errors import InputError, listed
from ampft.files import is_safe_relative_path
from ampft.hub import go_offline_if_unreachable
from ampft.machine import available_memory_bytes
from ampft.models.adapters import ADAPTER_CONFIG, SavedAdapter, merge_adapters, read_adapter
from ampft.models.freezing import POOLER, base_model_of, has_weights, head_names, is_inside_any
from ampft.models.minilm import HUB_ID, default_model
from ampft.models.training_mode import check_kernel_supports_dropout
from ampft.models.weights import weights_size
from ampft.precision.float32_modules import apply_patterns
from ampft.text.escaping import inert
from ampft.text.json_io import read_json_object
from ampft.text.numbers import byte_sizes, counted

MODEL_NAME_FLAG = "--model_name_or_path"
SAVED_MODEL_FLAG = "--model"
CHECKPOINTS_FLAG = "--checkpoints"
INDEX_NAMES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")  # as safetensors names them
MISSING = "missing"
NAMED = 4  # weights that a message names
_FINISHED_RUN = "Pass the --output_dir of a finished run, with all its files."
REMEDIES = {
    MODEL_NAME_FLAG: "Pass a folder written by save_pretrained, or a hub id that is available.",
    SAVED_MODEL_FLAG: _FINISHED_RUN,
    CHECKPOINTS_FLAG: _FINISHED_RUN,
    "--processor_name": "Pass a folder written by save_pretrained, or a hub id.",
}


def load_pretrained(
    auto_class: Any,
    path: str,
    label_arguments: Mapping[str, Any],
    *,
    trust_remote_code: bool,
    as_it_is: bool = False,
) -> tuple[Any, tuple[str, ...]]:
    """Return a model of transformers in float32, and notes on its head for the user.

    The head is new if the checkpoint has none, or if its head was trained for other labels. A
    pooler is new if it is missing, as in checkpoints of other tasks; a note names it.

    Args:
        auto_class: Class of transformers that loads the model, such as
            `AutoModelForSequenceClassification`.
        path: Folder or hub id.
        label_arguments: Arguments of the configuration that describe the labels of the data:
            `id2label` with their names in order, `num_labels` and so on.
        trust_remote_code: Whether code from the model's repository may run.
        as_it_is: Whether no weight may be new, because nothing is trained.

    Raises:
        InputError: The model cannot be loaded, its weights are not finite, a weight below the head
            is missing or has another shape than the configuration says, or its attention ignores
            dropout.
    """
    if as_it_is:
        return _load_as_it_is(auto_class, path, label_arguments, trust_remote_code)
    if _holds_only_adapters(path):
        raise InputError(
            f"{MODEL_NAME_FLAG} {path}: this folder holds adapters without their base model. Give "
            "the folder of the run that merged them, train with --merge_lora, or give the base "
            "model."
        )
    source = WeightsSource(path)
    config = load_config(path, trust_remote_code=trust_remote_code)
    arguments = {"trust_remote_code": trust_remote_code, **label_arguments}
    model, loading = _load(auto_class, source, config, arguments)
    differences = _differences(loading)
    source.check_weights(_in_encoder(model, differences))
    labels = tuple(label_arguments["id2label"].values())
    old_labels = _mismatched_labels(config, labels)
    unexpected, is_reordered = loading["unexpected_keys"], False
    if old_labels is not None:
        is_reordered = not differences and reorder_head(model, old_labels, labels)
        if not is_reordered:
            _reinitialize_head(model)
    check_weights_finite(model, source)
    check_kernel_supports_dropout(model)
    if is_reordered:
        note = "head kept: its rows are put in the order of these labels"
        return model, (note, *_head_notes(None, (), unexpected))
    return model, _head_notes(old_labels, differences, unexpected)


def _load_as_it_is(
    auto_class: Any, path: str, label_arguments: Mapping[str, Any], trust_remote_code: bool
) -> tuple[Any, tuple[str, ...]]:
    """Return a model with the head that it has, and notes; see `load_pretrained`.

    Adapters in a folder without their base model are merged into it.
    """
    notes: tuple[str, ...] = ("as it is: nothing is trained",)
    adapter = read_adapter(Path(path)) if _holds_only_adapters(path) else None
    if adapter is None:
        source = WeightsSource(path)
        config = load_config(path, trust_remote_code=trust_remote_code)
        arguments = {"trust_remote_code": trust_remote_code}
        model, loading = _load(auto_class, source, config, arguments)
        if differences := _differences(loading):
            raise InputError(
                f"{MODEL_NAME_FLAG} {path}: these weights of {type(model).__name__} would be new, "
                f"so there is no trained model to evaluate: {_listed(sorted(differences))}. Give a "
                "model that was trained for this task, or add --do_train."
            )
        check_weights_finite(model, source)
        notes += _head_notes(None, (), loading["unexpected_keys"])
    else:
        model = _load_with_adapter(auto_class, adapter, MODEL_NAME_FLAG)
        merge_adapters(model)
        notes += (f"adapters merged into {adapter.base}",)
    needed, found = label_arguments["num_labels"], model.config.num_labels
    kind, trained_for = label_arguments.get("problem_type"), model.config.problem_type
    problem = ""
    if found != needed:
        problem = f"has {counted(found, 'output')}, and the task needs {needed}"
    elif None not in (kind, trained_for) and kind != trained_for:
        problem = f"was trained for {trained_for}, and the task is {kind}"
    if problem:
        raise InputError(
            f"{MODEL_NAME_FLAG} {path}: the model {problem}. Choose the --task of the model, give "
            "another model, or add --do_train."
        )
    return model, notes


def load_config(path: str, *, trust_remote_code: bool, flag: str = MODEL_NAME_FLAG) -> Any:
    """Return the configuration of a model.

    Args:
        path: Folder or hub id.
        trust_remote_code: Whether code from the model's repository may run.
        flag: Flag that received the path, for the error message.

    Raises:
        InputError: The configuration cannot be loaded, or a size in it is out of range.
    """
    check_model_name(path, flag=flag)
    if _holds_only_adapters(path) and (adapter := read_adapter(Path(path))) is not None:
        return _config_with_adapter(adapter, flag)
    try:
        values, _ = PreTrainedConfig.get_config_dict(path)
        check_config_sizes(values, f"{flag} {path}", REMEDIES[flag])
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except InputError:
        raise
    except Exception as error:  # a damaged config.json can raise any error
        raise loading_error(path, error, flag=flag) from error


def _holds_only_adapters(path: str) -> bool:
    """Return whether a folder holds adapters without their base model."""
    folder = Path(path)
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").exists()


def _config_with_adapter(adapter: SavedAdapter, flag: str) -> Any:
    """Return the configuration of a base model with the labels of its adapters."""
    config = load_config(_base_of(adapter), trust_remote_code=False, flag=flag)
    return type(config).from_dict(dict(adapter.config))


def _base_of(adapter: SavedAdapter) -> str:
    return default_model(None)[0] if adapter.base == HUB_ID else adapter.base


def check_model_name(path: str, *, flag: str = MODEL_NAME_FLAG) -> None:
    """Check that a model is a folder, is in the cache of the hub, or can be on the hub.

    Args:
        path: Folder or hub id.
        flag: Flag that received the path, for the error message.

    Raises:
        InputError: It is neither, or the hub cannot be reached.
    """
    if Path(path).exists():
        return
    try:
        cached = try_to_load_from_cache(path, "config.json")
    except HFValidationError:
        raise InputError(
            f"{flag} {path}: no such folder, and not the id of a model on the hub. Check the path,"
            " or pass an id such as distilbert/distilroberta-base."
        ) from None
    problem = go_offline_if_unreachable()
    if problem is not None and not isinstance(cached, str):
        raise InputError(f"{flag} {path}: no such folder, not in the cache, and {problem}")


def load_saved(
    auto_class: Any, path: str, *, flag: str = SAVED_MODEL_FLAG, trust_remote_code: bool = False
) -> Any:
    """Return the saved model of a run, in float32.

    Modules that the run kept in float32 are kept in float32 in any precision.

    Args:
        auto_class: Class of transformers that loads the model.
        flag: Flag that received the path, for the error message.
        trust_remote_code: Whether code in the folder may run.

    Raises:
        InputError: The model cannot be loaded, its weights are not finite, or one is missing,
            unexpected or has another shape than the configuration says.
    """
    adapter = read_adapter(Path(path))
    if adapter is not None:
        return _load_with_adapter(auto_class, adapter, flag)
    source = WeightsSource(path, flag)
    values: dict[str, Any] = {}
    with contextlib.suppress(OSError):  # `load_config` says that it is damaged
        values = PreTrainedConfig.get_config_dict(path)[0]
    if not trust_remote_code and "auto_map" in values:
        raise InputError(
            f"{flag} {path}: the model runs code from its folder, as it did in training. Read the "
            "code, and add --trust_remote_code to ampft predict."
        )
    config = load_config(path, trust_remote_code=trust_remote_code, flag=flag)
    model, loading = _load(auto_class, source, config, {"trust_remote_code": trust_remote_code})
    unexpected = dict.fromkeys(loading["unexpected_keys"], "unexpected")
    source.check_weights(_differences(loading) | unexpected)
    check_weights_finite(model, source)
    apply_patterns(model)
    return model


def _load_with_adapter(auto_class: Any, adapter: SavedAdapter, flag: str) -> Any:
    """Return the base of saved adapters with these and their head, in float32."""
    source, config = WeightsSource(_base_of(adapter), flag), _config_with_adapter(adapter, flag)
    with torch.random.fork_rng(devices=[]):  # for the head and the adapters, which are replaced
        model, loading = _load(auto_class, source, config, {"config": config})
        head = head_names(model)
        differences = _differences(loading).items()
        source.check_weights(
            {name: text for name, text in differences if not is_inside_any(name, head)}
        )
        adapter.load_into(model)
    check_weights_finite(model, WeightsSource(str(adapter.folder), flag))
    apply_patterns(model)
    return model


def _load(
    auto_class: Any, source: WeightsSource, config: Any, arguments: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return a model in float32, and how its weights differ from its configuration."""
    source.check_files(config)
    check_weights_fit_memory(auto_class, config, source.name)
    try:
        model, loading = auto_class.from_pretrained(
            source.path,
            dtype=torch.float32,  # transformers 5 would use the dtype of the checkpoint
            use_safetensors=True,  # opening a pickle can run code
            ignore_mismatched_sizes=True,  # such weights are reported with the missing ones
            output_loading_info=True,
            **arguments,
        )
    except Exception as error:  # damaged weights: SafetensorError, KeyError, ...
        source.refuse_pickles(error)
        raise loading_error(source.path, error, flag=source.flag) from error
    source.check_dtypes(model)
    return model, loading


@dataclass(frozen=True)
class WeightsSource:
    """Where the weights of a model are read from. The checks raise InputError."""

    path: str  # Folder or hub id.
    flag: str = MODEL_NAME_FLAG  # Flag that received it, for the messages.

    @property
    def name(self) -> str:
        """Flag and path, with which a message starts."""
        return f"{self.flag} {self.path}"

    def refuse_pickles(self, error: Exception) -> None:
        """Reject a model that has weights, but not in safetensors, from which loading failed."""
        folder = Path(self.path)
        names = sorted(file.name for file in folder.glob("*")) if folder.is_dir() else []
        pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
        has_safetensors = any(name.endswith(".safetensors") for name in names)
        if (pickles and not has_safetensors) or "use_safetensors" in str(error):
            first = f" ({inert(pickles[0])})" if pickles else ""
            raise InputError(
                f"{self.name}: its weights are not in safetensors{first}, and other formats are "
                "never opened because they can run code. Use a model with a model.safetensors, or "
                "convert one that you trust: load it with transformers and call save_pretrained."
            ) from error

    def check_files(self, config: Any) -> None:
        """Check that the files of weights are safetensors in the folder of the model."""
        named = getattr(config, "transformers_weights", None)
        if named is not None and not re.fullmatch(r"[\w.-]+\.safetensors", str(named)):
            raise InputError(
                f"{self.name}: its config.json names {inert(str(named))!r} as transformers_weights,"
                " which must be a safetensors file in its folder. Remove the entry, or use another "
                "model."
            )
        for index in self.indexes():
            try:
                names = set(read_json_object(index)["weight_map"].values())
                outside = sorted(name for name in names if not is_safe_relative_path(name))
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                raise loading_error(str(index), error, flag=self.flag) from error
            if outside:
                raise InputError(
                    f"{self.name}: {index.name} lists {inert(outside[0])!r}, which is not a file "
                    "in this folder, so no weights were loaded. Use a model whose files are all in "
                    "its folder."
                )

    def indexes(self) -> list[Path]:
        """Return the indexes of weights in the folder, or in the cache of a model of the hub."""
        if Path(self.path).is_dir():
            return sorted(Path(self.path).glob("*.index.json"))
        found: list[Path] = []
        for name in INDEX_NAMES:
            with contextlib.suppress(ValueError):  # not a hub id, which loading reports
                index = try_to_load_from_cache(self.path, name)
                found += [Path(index)] if isinstance(index, str) else []
        return found

    def weight_files(self, config: Any) -> list[Path]:
        """Return the safetensors files in the folder, or in the cache of a model of the hub."""
        names = [getattr(config, "transformers_weights", None) or "model.safetensors"]
        for index in self.indexes():
            names += read_json_object(index)["weight_map"].values()
        folder = Path(self.path)
        found: list[Path] = []
        for name in dict.fromkeys(names):
            cached = folder / name if folder.is_dir() else try_to_load_from_cache(self.path, name)
            if isinstance(cached, str | Path) and Path(cached).is_file():
                found.append(Path(cached))
        return found

    def check_dtypes(self, model: Any) -> None:
        """Check that the parameters of a model were floating-point numbers of 16 bits or more.

        Loading would convert others as if they were plain numbers, without their scales.
        """
        names = [name for name, weight in model.named_parameters() if weight.is_floating_point()]
        for file in self.weight_files(model.config):
            with safe_open(file, "pt") as tensors:
                dtypes = {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
            others = {name: dtype for name, dtype in dtypes.items() if dtype not in FLOAT_DTYPES}
            for stored, dtype in others.items():
                if any(f".{n}".endswith(f".{stored}") or stored.endswith(f".{n}") for n in names):
                    raise InputError(
                        f"{self.name}: its weight {inert(stored)} has the dtype {dtype}, as after "
                        "quantization, and cannot be trained. Weights must be F64, F32, F16 or "
                        "BF16. Use the model from before the quantization."
                    )

    def check_weights(self, differences: Mapping[str, str]) -> None:
        """Check that no weight differs from the configuration, by the problem of each weight."""
        if differences:
            which = _listed([f"{name}: {text}" for name, text in sorted(differences.items())])
            raise InputError(
                f"{self.name}: its weights do not match its config.json ({which}). "
                f"{REMEDIES[self.flag]}"
            )


def _differences(loading: Mapping[str, Any]) -> dict[str, str]:
    """Return the problem of each weight that was initialized instead of loaded."""
    mismatched = {
        name: f"shape {list(found)} instead of {list(expected)}"
        for name, found, expected in loading["mismatched_keys"]
    }
    return dict.fromkeys(loading["missing_keys"], MISSING) | mismatched


def _in_encoder(model: nn.Module, differences: Mapping[str, str]) -> dict[str, str]:
    """Return the differences below the head, including a pooler that has another shape.

    A model without one encoder, such as UperNet, has a backbone, or its largest child counts.
    """
    base = base_model_of(model)
    if base is model:
        children = {name: child for name, child in model.named_children() if has_weights(child)}
        largest = max(children.values(), key=weights_size) if len(children) > 1 else model
        base = children.get("backbone", largest)
    prefix = next(name for name, module in model.named_modules() if module is base)
    return {
        name: problem
        for name, problem in differences.items()
        if prefix and is_inside_any(name, [prefix]) and (problem != MISSING or not _is_pooler(name))
    }


def _is_pooler(name: str) -> bool:
    return POOLER in name.split(".")


def _head_notes(
    old_labels: Sequence[str] | None, missing: Iterable[str], unexpected: Iterable[str]
) -> tuple[str, ...]:
    notes = []
    poolers = sorted(name for name in missing if _is_pooler(name))
    head = sorted(set(missing) - set(poolers))
    if old_labels is not None:
        names = ", ".join(old_labels[:NAMED]) + (", ..." if len(old_labels) > NAMED else "")
        notes.append(f"new head: the old one was trained for {names}")
    elif head:
        notes.append(f"new head, which the file does not have: {_listed(head)}")
    if poolers:
        notes.append(f"new pooler, which the file does not have: {_listed(poolers)}")
    unused = sorted(unexpected)
    if unused:
        notes.append(f"not used, though in the file: {_listed(unused)}")
    return tuple(notes)


def _listed(names: Sequence[str]) -> str:
    return inert(listed(names, limit=NAMED))


def check_weights_finite(model: nn.Module, source: WeightsSource) -> None:
    """Check that all weights are finite.

    Raises:
        InputError: A weight is NaN or infinite; the message names the parameter.
    """
    for name, parameter in model.named_parameters():
        # A sum takes a thirtieth of the time. It is not finite if a weight is not; it may overflow.
        if not torch.isfinite(parameter.sum()) and not torch.isfinite(parameter).all():
            raise InputError(
                f"{source.name}: its parameter {name} contains NaN or infinite values. The model "
                "is damaged, or its training diverged. Use another model."
            )


def loading_error(path: str, error: Exception, *, flag: str = MODEL_NAME_FLAG) -> InputError:
    """Return the error for a model, tokenizer or processor that cannot be loaded."""
    reason = next(iter(str(error).strip().splitlines()), "").rstrip(".")
    # The message of other errors, such as KeyError, is meaningless without their type.
    if not isinstance(error, OSError | ValueError | ImportError) or not reason:
        reason = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    return InputError(f"{flag} {path}: cannot be loaded ({reason}). {REMEDIES[flag]}")


def _mismatched_labels(config: Any, label_names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the labels that the head was trained for, or None if it has none or they match."""
    architectures = getattr(config, "architectures", None) or []
    if not any(name.endswith(("Classification", "Segmentation")) for name in architectures):
        return None
    old_labels = tuple(config.id2label[index] for index in sorted(config.id2label))
    return None if old_labels == label_names else old_labels


def _reinitialize_head(model: nn.Module) -> None:
    """Reinitialize all weights outside the encoder, from torch's current random state.

    The model family's own initialization is used where it has one: `reset_parameters` draws from
    another distribution, and draws the biases too.
    """
    init_weights: Any = getattr(model, "_init_weights", None)
    for module in head_modules(model):
        if not list(module.parameters(recurse=False)):
            continue
        if callable(getattr(module, "reset_parameters", None)):
            module.reset_parameters()  # type: ignore[operator]
        if init_weights is not None:
            for parameter in module.parameters(recurse=False):
                # transformers skips parameters that were loaded from the checkpoint.
                parameter.__dict__.pop("_is_hf_initialized", None)
            init_weights(module)


def enable_gradient_checkpointing(model: Any) -> None:
    """Make `model` store only the inputs of its layers, and recompute other activations.

    Raises:
        InputError: The model does not support it.
    """
    if not model.supports_gradient_checkpointing:
        raise InputError(
            f"--gradient_checkpointing: {type(model).__name__} does not support it. Remove the "
            "flag."
        )
    # transformers 5.23 renamed the method, and warns about the old name.
    renamed = getattr(model, "activation_checkpointing_enable", None)
    (renamed or model.gradient_checkpointing_enable)({"use_reentrant": False})


def reorder_head(model: nn.Module, trained: Sequence[str], wanted: Sequence[str]) -> bool:
    """Put the outputs of a head in the order of other labels; return whether that is possible.

    It is if the labels are the same, and each output comes from a linear layer or a convolution
    whose outputs no other layer of the head reads.

    Args:
        wanted: Labels in the wanted order.
    """
    count = len(wanted)
    if sorted(trained) != sorted(wanted) or len({*wanted}) < count:
        return False
    layers = [layer for layer in head_modules(model) if list(layer.parameters(recurse=False))]
    outputs = [layer for layer in layers if _sizes(layer)[1] == count]
    is_read = any(_sizes(layer)[0] in (None, count) for layer in layers)
    if not outputs or is_read:
        return False
    rows = torch.tensor([trained.index(name) for name in wanted])
    with torch.no_grad():
        for layer in outputs:
            for parameter in layer.parameters(recurse=False):
                parameter.copy_(parameter[rows.to(parameter.device)])
    return True


def head_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules outside the encoder."""
    encoder = getattr(model, str(getattr(model, "base_model_prefix", "")), None)
    inside = set(encoder.modules()) if isinstance(encoder, nn.Module) else set()
    yield from (module for module in model.modules() if module not in inside)


def _sizes(layer: nn.Module) -> tuple[int | None, int | None]:
    """Return the number of inputs and outputs of a layer; None for an unknown kind of layer."""
    match layer:
        case nn.Linear():
            return layer.in_features, layer.out_features
        case nn.Conv1d() | nn.Conv2d():
            return layer.in_channels, layer.out_channels
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return layer.num_features, layer.num_features
        case nn.LayerNorm():
            return layer.normalized_shape[-1], layer.normalized_shape[-1]
    return None, None


MOST_LAYERS = 2000  # each layer takes time and memory to build, even without weights
_SIZE = re.compile(
    r"(num|n)_(hidden_|attention_|key_value_)?(layers?|heads?)|encoder_(layers|attention_heads)"
    r"|(hidden|intermediate|embedding|vocab)_size|d_model|d_ff|dim|hidden_dim|n_embd"
)
_LAYERS = re.compile(r"(.*_)?layers?")


def check_config_sizes(values: Mapping[str, Any], where: str, remedy: str) -> None:
    """Check that the sizes in a configuration are positive, and its layers not too many.

    Args:
        where: Flag and path of the model, for the error message.

    Raises:
        InputError: A size is out of range.
    """
    for name, value in _integers(values):
        most = MOST_LAYERS if _LAYERS.fullmatch(name) else None
        if (_SIZE.fullmatch(name) and value < 1) or (most is not None and value > most):
            allowed = "at least 1" if most is None else f"from 1 to {most}"
            raise InputError(
                f"{where}: its config.json states {name} {value}, which must be {allowed}. {remedy}"
            )


def check_weights_fit_memory(auto_class: Any, config: Any, where: str) -> None:
    """Check that the weights of a model fit into memory.

    Args:
        auto_class: Class of transformers that loads the model.
        where: Flag and path of the model, for the error message.

    Raises:
        InputError: They do not.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            # False, because None asks the user on the terminal.
            model = auto_class.from_config(config, trust_remote_code=False)
    except Exception:  # loading fails for the same reason and says so, or needs remote code
        return
    weights = sum(parameter.numel() for parameter in model.parameters())
    available = available_memory_bytes()
    if 4 * weights > available:  # bytes in float32
        takes, has = byte_sizes(4 * weights, available)
        raise InputError(
            f"{where}: its config.json describes {weights:,} weights, which take "
            f"{takes} in float32, and {has} of memory are available. "
            "Use a smaller model, or a machine with more memory."
        )


def _integers(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the integers in a configuration and in those nested in it, with their names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _integers(value)
        elif isinstance(value, int):
            yield name, value
