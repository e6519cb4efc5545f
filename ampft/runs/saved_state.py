"""What state.json of a checkpoint says, and whether its tensors fit, before anything is loaded."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from safetensors import SafetensorError, safe_open

from ampft.features.feature import Feature, tensors_of
from ampft.features.memory import PeakMemory
from ampft.features.nonfinite import NonfiniteWatch
from ampft.precision.executed import ExecutedDtypes
from ampft.runs.history import parse_rows
from ampft.runs.record import ResumePart, ValidationPart
from ampft.text.json_io import (
    Count,
    NotNegative,
    Positive,
    Rule,
    from_json,
    parse_json_object,
)
from ampft.training.checkpoints.manifest import (
    MODEL_NAME,
    OPTIMIZER_NAME,
    STATE_NAME,
    DamagedCheckpoint,
)
from ampft.training.checkpoints.optimizer_state import optimizer_values
from ampft.training.checkpoints.random_state import as_python_state, check_random_state
from ampft.training.checkpoints.tensors import DTYPES
from ampft.training.optimizer import expected_state

if TYPE_CHECKING:
    from torch import nn

    from ampft.runs.prepared import Prepared

Sha256 = Annotated[
    str, Rule(lambda text: len(text) == 64 and not set(text) - set("0123456789abcdef"), "a SHA-256")
]
Header = dict[str, tuple[list[int], str]]  # shape and dtype by name


@dataclass(frozen=True, kw_only=True)
class OptimizerValues:
    """Groups of parameters by name, and state that is not a tensor, as `optimizer_values` gives."""

    groups: Sequence[Mapping[str, Any]]
    state: Mapping[str, Count]


@dataclass(frozen=True, kw_only=True)
class BestValues:
    """The best validation so far, see `BestModel`."""

    step: Count | None
    value: float | None
    without_improvement: Count


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """Bytes by purpose, see `PeakMemory.split`."""

    weights: Count
    gradients: Count
    optimizer_state: Count
    activations: Count


@dataclass(frozen=True, kw_only=True)
class FirstStepValues:
    """Measurements of the first step, see `FirstStep.state`."""

    executed: ExecutedDtypes | None
    memory: MemoryParts | None
    random_state: Sha256 | None
    draws: Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """Contents of state.json; `RunState.values` writes it."""

    optimizer: OptimizerValues
    features: Mapping[str, Mapping[str, Any]]
    schedule: Mapping[str, Any]
    scaler: Mapping[str, Any] | None
    random: Annotated[Sequence[Mapping[str, Any]], Rule(bool, "at least one process")]
    micro_batches: Positive
    step_ids: Sha256
    best: BestValues
    validations: Sequence[ValidationPart]
    nonfinite: NonfiniteWatch
    first_step: FirstStepValues
    resumes: Sequence[ResumePart]
    started: str
    total_seconds: NotNegative
    memory: PeakMemory
    checkpoint_seconds: NotNegative
    trackers: Mapping[str, str]


@dataclass(frozen=True)
class NewRun:
    """What a checkpoint must fit: a run before its first step.

    Attributes:
        prepared: Optimizer, schedule and scaler.
        model: Model without what Accelerate added.
        features: Its features.
    """

    prepared: Prepared
    model: nn.Module
    features: Sequence[Feature]


def read_saved_state(checkpoint: Path, run: NewRun, history: bytes) -> SavedState:
    """Read state.json, and check that it and all tensors of a checkpoint fit a run.

    Args:
        checkpoint: Folder of a verified checkpoint.
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


def _check_values(saved: SavedState, run: NewRun) -> None:
    """Check the parts that belong to torch: they must have the form that a new run has."""
    prepared = run.prepared
    form = optimizer_values(run.model, prepared.optimizer.optimizer)["groups"]
    _check_form(form, saved.optimizer.groups, f"{STATE_NAME}.optimizer.groups")
    _check_form(prepared.schedule.state_dict(), saved.schedule, f"{STATE_NAME}.schedule")
    scaler = prepared.accelerator.scaler
    form = None if scaler is None else scaler.state_dict()
    _check_form(form, saved.scaler, f"{STATE_NAME}.scaler")
    form = {feature.name: feature.values() for feature in run.features}
    _check_form(form, saved.features, f"{STATE_NAME}.features")
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


def _check_tensors(checkpoint: Path, saved: SavedState, run: NewRun) -> None:
    plain, optimizer = run.model, run.prepared.optimizer.optimizer
    model = {name: _form(tensor) for name, tensor in plain.state_dict().items()}
    path = checkpoint / MODEL_NAME
    found = _header(path)
    _check_header(path, found, model)
    path = checkpoint / OPTIMIZER_NAME
    found = _header(path)
    expected: dict[str, tuple[list[int], str] | None]
    expected = {name: _form(tensor) for name, tensor in tensors_of(run.features).items()}
    stored = {*found, *saved.optimizer.state}
    for name, parts in expected_state(plain, optimizer).items():
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


def _form(tensor: torch.Tensor) -> tuple[list[int], str]:
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
