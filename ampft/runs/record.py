"""The run record, run.json: what is needed to repeat a run and to compare it honestly."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError
from ampft.metrics.classification import Report
from ampft.runs.folder import RunFolder
from ampft.text.json_io import JSONValue
from ampft.runs.memory import PeakMemory
from ampft.machine import versions
from ampft.runs.redaction import command_words, withhold_secrets

RECORD_NAME = "run.json"
SCHEMA = 1
# Contradicted: the first step did not compute in the precision that was asked for.
STATUSES = ("running", "finished", "diverged", "contradicted", "interrupted")


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """The data: `fingerprints` and `examples` by split; `hub_id` when it came from the hub."""

    name: str
    kind: str
    fingerprints: Mapping[str, str]
    examples: Mapping[str, int]
    input_columns: Sequence[str] = ()
    notes: Sequence[str] = ()
    hub_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """The model: class name, numbers of parameters, and the hash of the weights at step 0.

    `initial_weights_sha256` is of the weights before `perturbed` moved them by one unit in their
    last place, so that a placebo has the hash of the runs that it stands beside.
    """

    name: str
    architecture: str
    parameters: int
    trainable_parameters: int
    initial_weights_sha256: str
    hub_id: str | None = None
    perturbed: bool = False


@dataclass(frozen=True, kw_only=True)
class PrecisionPart:
    """Requested mode, what it resolved to, and what the products of the first step had.

    `summary` says what was executed in one clause, for people. `lost_updates` is the share of
    weight updates that rounding lost, the median of the steps where it was measured.
    """

    requested: str
    resolved: Mapping[str, JSONValue]
    executed: Mapping[str, JSONValue] | None = None
    summary: str | None = None
    lost_updates: float | None = None


@dataclass(frozen=True, kw_only=True)
class TopologyPart:
    """Where the steps ran: `device` such as "cpu" or "cuda"; threads of each process."""

    num_processes: int
    cpu_threads: int
    device: str


@dataclass(frozen=True, kw_only=True)
class StepsPart:
    """Optimizer steps planned, applied, and skipped for an overflow.

    `effective_batch_size` counts the examples of a step over all processes, `micro_batches` the
    parts that each process cuts its share into, at the end where memory ran out on the way.
    """

    total: int
    applied: int = 0
    skipped: int = 0
    effective_batch_size: int | None = None
    micro_batches: int | None = None


@dataclass(frozen=True, kw_only=True)
class BestPart:
    """The epoch (from 1) whose weights were kept, and by which metric."""

    metric: str
    epoch: int
    value: float


@dataclass(frozen=True, kw_only=True)
class ValidationPart:
    """An evaluation on validation: after which epoch (from 1), after how many optimizer steps."""

    epoch: int
    step: int
    accuracy: float
    macro_f1: float
    log_loss: float

    @classmethod
    def of(cls, report: Report, *, epoch: int, step: int) -> ValidationPart:
        """Return what is kept of a report."""
        return cls(
            epoch=epoch,
            step=step,
            accuracy=report.accuracy,
            macro_f1=report.macro_f1,
            log_loss=report.log_loss,
        )


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything about a run but its predictions, its report's tables and its history.

    Attributes:
        status: One of `STATUSES`.
        arguments: Name and value of every setting, as parsed; secrets withheld.
        command: The words of the command line; a program of an absolute path by its file name.
        label_names: The class names, in the order of the logits.
        data: The data.
        model: The model before training.
        precision: The precision.
        topology: Processes, threads, device.
        steps: Optimizer steps.
        example_ids_sha256: `StepIdsHash` over the effective batches of the run so far.
        random_state_sha256: Of the generators that dropout draws from, after the first step.
        timings: Seconds and rates, with their `protocol`; `total_seconds` from start to report.
        memory: Peak memory.
        validations: Every evaluation on validation, in order.
        metrics: Scalar metrics of the final report, and its `split`.
        metrics_fp32: The same of predictions in fp32; `None` unless `--evaluate_fp32` asked.
        best: Which epoch was kept; `None` before the first evaluation.
        reason: Why a run did not come to its end.
        files: Names of the files in the folder.
        hardware: As `surroundings.hardware` has it.
        versions: As `surroundings.versions` has it.
        started: ISO 8601, UTC.
        schema: Version of this layout.
    """

    status: str
    arguments: Mapping[str, Any]
    command: Sequence[str]
    label_names: Sequence[str]
    data: DataPart
    model: ModelPart
    precision: PrecisionPart
    topology: TopologyPart
    steps: StepsPart
    example_ids_sha256: str | None = None
    random_state_sha256: str | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)
    memory: PeakMemory | None = None
    validations: Sequence[ValidationPart] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    metrics_fp32: Mapping[str, Any] | None = None
    best: BestPart | None = None
    reason: str | None = None
    files: Sequence[str] = ()
    hardware: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=versions)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {STATUSES}, got {self.status!r}")
        # A record is written more than once; what is withheld stays so.
        object.__setattr__(self, "arguments", withhold_secrets(self.arguments))
        object.__setattr__(self, "command", command_words(self.command))


_PARTS = {
    "data": DataPart,
    "model": ModelPart,
    "precision": PrecisionPart,
    "topology": TopologyPart,
    "steps": StepsPart,
    "memory": PeakMemory,
    "best": BestPart,
}


def write_record(folder: RunFolder, record: RunRecord) -> Path:
    """Write run.json, whole or not at all; call it at the start, and again when more is known."""
    return folder.write_json(RECORD_NAME, record)


def read_record(folder: Path) -> RunRecord:
    """Read run.json of a run's folder.

    Raises:
        InputError: When the folder holds no run, or one of another layout.
    """
    path = folder / RECORD_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        schema = values["schema"]
        if schema != SCHEMA:
            raise InputError(
                f"{path}: has layout {schema}, this ampft reads {SCHEMA}; "
                "read it with the version of ampft that it names under `versions`"
            )
        known = {part.name for part in fields(RunRecord)}
        for name, part in _PARTS.items():
            values[name] = None if values[name] is None else part(**values[name])
        validations = values.get("validations", ())  # earlier runs have none
        values["validations"] = tuple(_validation(entry) for entry in validations)
        return RunRecord(**{name: value for name, value in values.items() if name in known})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: is not the folder of a run: it needs {RECORD_NAME} as a run writes it "
            f"({type(error).__name__}: {error})"
        ) from error


def _validation(values: Mapping[str, Any]) -> ValidationPart:
    """Read an entry; a number that was not finite was written as null."""
    numbers: dict[str, Any] = {k: math.nan if v is None else v for k, v in values.items()}
    return ValidationPart(**numbers)


def precision_part(
    requested: str,
    precision: object,
    *,
    executed: Mapping[str, JSONValue] | None = None,
    summary: str | None = None,
    lost_updates: float | None = None,
) -> PrecisionPart:
    """Return the record's part on precision.

    Args:
        requested: The mode as the user named it.
        precision: A resolved precision: a dataclass; its dtypes are written as "float16".
        executed: What was measured in the first step.
        summary: The same in one clause, for people.
        lost_updates: Median share of the weight updates that rounding lost, where measured.
    """
    if not is_dataclass(precision) or isinstance(precision, type):
        raise TypeError(f"precision must be a dataclass, got {type(precision).__name__}")
    resolved: dict[str, JSONValue] = {}
    for item in fields(precision):
        value = getattr(precision, item.name)
        plain = value is None or isinstance(value, str | bool | int | float)
        resolved[item.name] = value if plain else str(value).removeprefix("torch.")
    return PrecisionPart(
        requested=requested,
        resolved=resolved,
        executed=executed,
        summary=summary,
        lost_updates=lost_updates,
    )


class StepIdsHash:
    """SHA-256 over the effective batches: which examples, in which step.

    The order within a step is free (design: the step batch), so each step counts sorted.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, ids: npt.ArrayLike) -> None:
        """Add one optimizer step; `ids` are the example ids of all processes, shape (n,)."""
        values = np.sort(np.asarray(ids).astype("<i8"))
        self._hash.update(np.int64(values.size).astype("<i8").tobytes())
        self._hash.update(values.tobytes())

    def hexdigest(self) -> str:
        """Return the hash of the steps so far."""
        return self._hash.hexdigest()
