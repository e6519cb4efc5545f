"""What a checkpoint says of a run: written, checked before anything is loaded, and restored."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from accelerate.utils import gather_object
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from ampft.engine.checkpoints.store import (
    MODEL_NAME,
    OPTIMIZER_NAME,
    STATE_NAME,
    CheckpointManifest,
    DamagedCheckpoint,
)
from ampft.engine.checkpoints.training_state import (
    add_groups,
    as_python_state,
    check_random_state,
    load_optimizer,
    optimizer_tensors,
    optimizer_values,
    random_state,
    restore_random_state,
)
from ampft.engine.checkpoints.writing import DTYPES, without_prefix
from ampft.engine.optimizer import expected_optimizer_state, has_known_state
from ampft.features.feature import Feature, SavedFeature, tensors_of
from ampft.models.weights import gather_sharded_weights, gather_tensors, load_into_sharded_model
from ampft.precision.accelerator import is_sharded
from ampft.precision.executed import ExecutedDtypes
from ampft.runs.history import parse_rows
from ampft.runs.loop_state import LoopState
from ampft.runs.record import ResumePart
from ampft.text.json_io import Count, ValueRule, from_json, parse_json_object

STATE_SCHEMA = 2
Sha256 = Annotated[
    str,
    ValueRule(
        lambda text: len(text) == 64 and not set(text) - set("0123456789abcdef"), "a SHA-256"
    ),
]
StateSchema = Annotated[int, ValueRule(lambda schema: schema == STATE_SCHEMA, f"{STATE_SCHEMA}")]
Header = dict[str, tuple[list[int], str]]  # shape and dtype by name


@dataclass(frozen=True, kw_only=True)
class OptimizerValues:
    """Groups of parameters by name, and state that is not a tensor, as `optimizer_values` gives."""

    groups: Sequence[Mapping[str, Any]]
    state: Mapping[str, Count]


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """Bytes by purpose, see `PeakMemory.split`."""

    weights: Count
    gradients: Count
    optimizer_state: Count
    activations: Count


@dataclass(frozen=True, kw_only=True)
class FirstStepValues:
    """Measurements of the first step, see `FirstStepMonitor.state`."""

    executed: ExecutedDtypes | None
    memory: MemoryParts | None
    random_state: Sha256 | None
    draws: Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """Contents of state.json; `state_values` returns them."""

    optimizer: OptimizerValues  # Groups and counters of the optimizer.
    features: Mapping[str, Any]  # State of each feature that has one, by its name.
    schedule: Mapping[str, Any]  # State of the schedule.
    scaler: Mapping[str, Any] | None  # State of the gradient scaler; None without one.
    # Random state of each process.
    random: Annotated[Sequence[Mapping[str, Any]], ValueRule(bool, "at least one process")]
    step_ids: Sha256  # Hash of the example ids of each step.
    first_step: FirstStepValues  # Measurements of the first step.
    resumes: Sequence[ResumePart]  # Continuations from checkpoints.
    started: str  # Start of the run, ISO 8601 in UTC.
    schema: StateSchema  # Version of this layout.


def model_tensors(state: LoopState[Any]) -> dict[str, Tensor]:
    """Return weights and buffers by name. All processes must call it together."""
    whole = gather_sharded_weights(state.prepared.model)
    return dict(state.plain_model().state_dict()) if whole is None else whole


def state_tensors(state: LoopState[Any]) -> dict[str, Tensor]:
    """Return the tensors of the optimizer and of the features by name, on all processes."""
    tensors = optimizer_tensors(state.plain_model(), state.prepared.optimizer.optimizer)
    return {**tensors, **gather_tensors(tensors_of(state.features))}


def state_values(state: LoopState[Any]) -> dict[str, Any]:
    """Return everything else as JSON values. All processes must call it together."""
    prepared = state.prepared
    accelerator = prepared.accelerator
    return {
        "optimizer": optimizer_values(state.plain_model(), prepared.optimizer.optimizer),
        "features": {name: asdict(values) for name, values in _states(state.features).items()},
        "schedule": prepared.schedule.state_dict(),
        "scaler": None if accelerator.scaler is None else accelerator.scaler.state_dict(),
        "random": gather_object([random_state(accelerator.device)]),
        "step_ids": state.step_ids.hexdigest(),
        "first_step": state.first_step.state(),
        "resumes": [asdict(part) for part in state.initial.resumes],
        "started": state.initial.started,
        "schema": STATE_SCHEMA,
    }


def _states(features: Iterable[Feature]) -> dict[str, Any]:
    """Return the states of the features that have one, as dataclasses by name."""
    states = {feature.name: feature.state() for feature in features}
    return {name: values for name, values in states.items() if values is not None}


def restore(
    state: LoopState[Any],
    checkpoint: Path,
    manifest: CheckpointManifest,
    saved: SavedState,
    history: bytes,
) -> None:
    """Restore a verified checkpoint. The run has not made a step.

    Args:
        saved: Contents of its state.json, which fit this run.
        history: The part of history.jsonl that belongs to it.
    """
    prepared = state.prepared
    tensors = load_file(checkpoint / OPTIMIZER_NAME)
    for feature in state.features:
        feature.restore(
            SavedFeature(
                state=saved.features.get(feature.name),
                tensors=without_prefix(tensors, f"{feature.name}/"),
                step=manifest.cursor.step,
                history=history,
                folder=checkpoint,
                files=manifest.files,
            )
        )
    state.history.restore(history)
    state.step_ids.restore(saved.step_ids)
    first = saved.first_step
    memory = None if first.memory is None else asdict(first.memory)
    state.first_step.restore(first.executed, memory, first.random_state, first.draws)
    restore_training(state, checkpoint, saved)
    if prepared.groups_may_change:
        state.restore_again = partial(restore_training, state, checkpoint, saved)


def restore_training(state: LoopState[Any], checkpoint: Path, saved: SavedState) -> None:
    """Restore weights, optimizer, schedule, loss scale and random states."""
    prepared, model = state.prepared, state.plain_model()
    optimizer = prepared.optimizer.optimizer
    if is_sharded(prepared.accelerator):
        load_into_sharded_model(model, load_file(checkpoint / MODEL_NAME))
    else:
        model.load_state_dict(load_file(checkpoint / MODEL_NAME))
    prefixes = tuple(f"{feature.name}/" for feature in state.features)
    tensors = load_file(checkpoint / OPTIMIZER_NAME)
    tensors = {n: t for n, t in tensors.items() if not n.startswith(prefixes)}
    if prepared.groups_may_change:
        add_groups(model, optimizer, saved.optimizer.groups)
    load_optimizer(model, optimizer, tensors, asdict(saved.optimizer))
    prepared.schedule.load_state_dict(dict(saved.schedule))
    if prepared.accelerator.scaler is not None:
        prepared.accelerator.scaler.load_state_dict(dict(saved.scaler or {}))
    # A process that did not exist before draws as the one whose number it has modulo theirs.
    own_random = saved.random[prepared.accelerator.process_index % len(saved.random)]
    restore_random_state(own_random, prepared.accelerator.device)  # last: nothing draws after it


def read_saved_state(checkpoint: Path, run: LoopState[Any], history: bytes) -> SavedState:
    """Read state.json, and check that it and all tensors of a checkpoint fit a run.

    Args:
        run: The run that continues, which is not changed.
        history: The part of history.jsonl that belongs to the checkpoint.

    Raises:
        DamagedCheckpoint: Something is missing or has another type, shape or dtype; the message
            names file and field.
    """
    path = checkpoint / STATE_NAME
    try:
        values = parse_json_object(path.read_bytes(), finite=False)
        saved = from_json(SavedState, values, STATE_NAME)
        saved = replace(saved, features=_feature_states(saved.features, run.features))
        _check_values(saved, run)
    except (OSError, ValueError) as error:
        raise DamagedCheckpoint(f"{path}: the file is damaged ({error}).") from error
    try:
        rows = parse_rows(history, "history.jsonl")
        if [row.step for row in rows] != list(range(1, len(rows) + 1)):
            raise ValueError("its steps are not 1, 2, 3, ...")
    except ValueError as error:
        raise DamagedCheckpoint(f"{checkpoint}: its history is damaged ({error}).") from error
    _check_tensors(checkpoint, saved, run)
    return saved


def _feature_states(values: Mapping[str, Any], features: Iterable[Feature]) -> dict[str, Any]:
    """Return the saved states of features as their dataclasses.

    Raises:
        ValueError: A state is missing, unknown, or not of its type; the message names it.
    """
    forms, where = _states(features), f"{STATE_NAME}.features"
    if invalid := sorted(forms.keys() ^ values.keys()):
        raise ValueError(
            f"{where}.{invalid[0]} is {'missing' if invalid[0] in forms else 'unknown'}"
        )
    return {
        name: from_json(type(form), values[name], f"{where}.{name}") for name, form in forms.items()
    }


def _check_values(saved: SavedState, run: LoopState[Any]) -> None:
    """Check the parts that belong to torch: they must have the form that a new run has."""
    prepared = run.prepared
    model, optimizer = run.plain_model(), prepared.optimizer.optimizer
    if prepared.groups_may_change:
        add_groups(model, optimizer, saved.optimizer.groups)
    else:
        form = optimizer_values(model, optimizer)["groups"]
        _check_form(form, saved.optimizer.groups, f"{STATE_NAME}.optimizer.groups")
    _check_form(prepared.schedule.state_dict(), saved.schedule, f"{STATE_NAME}.schedule")
    scaler = prepared.accelerator.scaler
    form = None if scaler is None else scaler.state_dict()
    _check_form(form, saved.scaler, f"{STATE_NAME}.scaler")
    for index, values in enumerate(saved.random):
        where = f"{STATE_NAME}.random[{index}]"
        _check_generators(partial(check_random_state, values), where)
    draws = list(saved.first_step.draws)
    where = f"{STATE_NAME}.first_step.draws"
    _check_generators(lambda: random.Random().setstate(as_python_state(draws)), where)


def _check_generators(restore: Callable[[], object], where: str) -> None:
    try:
        restore()
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{where} is not the state of a random generator ({error})") from None


def _check_form(form: Any, value: Any, where: str) -> None:
    """Check that a value has the keys, lengths and types of another one.

    Raises:
        ValueError: It has not; the message names the place.
    """
    if isinstance(form, Mapping) and isinstance(value, Mapping):
        if invalid := sorted(form.keys() ^ value.keys(), key=str):
            state = "is missing" if invalid[0] in form else "is unknown"
            raise ValueError(f"{where}.{invalid[0]} {state}")
        for name, part in form.items():
            _check_form(part, value[name], f"{where}.{name}")
        return
    if isinstance(form, list | tuple) and isinstance(value, list | tuple):
        if len(form) != len(value):
            raise ValueError(f"{where} has {len(value)} entries, not {len(form)}")
        for index, (part, item) in enumerate(zip(form, value, strict=True)):
            _check_form(part, item, f"{where}[{index}]")
        return
    if isinstance(form, bool | str | None) and value != form:  # switches, not measurements
        raise ValueError(f"{where} is {str(value)[:30]}, and in this run {form}")
    is_number = isinstance(form, float) and type(value) in (int, float)
    if type(value) is not type(form) and not is_number:
        raise ValueError(f"{where} is a {type(value).__name__}, not a {type(form).__name__}")
    if isinstance(form, int | float) and not abs(value) < 2**63 and value != form:
        raise ValueError(f"{where} is {str(value)[:30]}, which is out of range")


def _check_tensors(checkpoint: Path, saved: SavedState, run: LoopState[Any]) -> None:
    plain, optimizer = run.plain_model(), run.prepared.optimizer.optimizer
    model = {name: _form(tensor) for name, tensor in plain.state_dict().items()}
    path = checkpoint / MODEL_NAME
    found = _header(path)
    _check_header(path, found, model)
    path = checkpoint / OPTIMIZER_NAME
    found = _header(path)
    expected: dict[str, tuple[list[int], str] | None]
    expected = {name: _form(tensor) for name, tensor in tensors_of(run.features).items()}
    if not has_known_state(optimizer):  # of an own loop: the entries must belong to parameters
        names = {*(name for name, _ in plain.named_parameters())}
        states = {name for name in found if name.rpartition("/")[0] in names}
        _check_header(path, {n: p for n, p in found.items() if n not in states}, expected)  # type: ignore[arg-type]
        return
    stored = {*found, *saved.optimizer.state}
    for name, parts in expected_optimizer_state(plain, optimizer).items():
        # A parameter without a gradient so far has no state.
        if any(f"{name}/{key}" in stored for key in parts):
            expected |= {f"{name}/{key}": part for key, part in parts.items()}
    counters = {name for name, part in expected.items() if part is None}
    header = {name: part for name, part in expected.items() if part is not None}
    if unknown := sorted(saved.optimizer.state.keys() ^ counters):
        raise DamagedCheckpoint(
            f"{checkpoint / STATE_NAME}: the file is damaged (optimizer.state.{unknown[0]} does "
            "not belong to the optimizer of the run, or is missing)."
        )
    _check_header(path, found, header)


def _form(tensor: Tensor) -> tuple[list[int], str]:
    return list(tensor.shape), DTYPES[tensor.dtype]


def _header(path: Path) -> Header:
    try:
        with safe_open(path, "pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (part.get_shape(), part.get_dtype()) for name, part in parts.items()}
    except (OSError, SafetensorError) as error:
        raise DamagedCheckpoint(f"{path}: the file is damaged ({error}).") from error


def _check_header(path: Path, found: Header, expected: Header) -> None:
    for name in sorted(found.keys() | expected.keys()):
        kinds = [
            "missing" if name not in header else "{1} {0}".format(*header[name])
            for header in (found, expected)
        ]
        if kinds[0] != kinds[1]:
            raise DamagedCheckpoint(
                f"{path}: the file is damaged ({name} is {kinds[0]}, and in this run {kinds[1]})."
            )
