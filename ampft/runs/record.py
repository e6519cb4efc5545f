"""The run record, run.json: what is needed to repeat a run and to compare it honestly."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ampft.arguments.classify import BUILT_IN_DEFAULTS
from ampft.errors import InputError
from ampft.machine import hardware, versions
from ampft.runs.folder import RunFolder
from ampft.runs.memory import PeakMemory
from ampft.text.json_io import JSONValue, check_schema, from_json, read_json_object

if TYPE_CHECKING:
    from ampft.runs.prepare import Prepared

RECORD_NAME = "run.json"
SCHEMA = 2
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
    """An evaluation on validation, after an epoch (from 1) and so many optimizer steps.

    `metrics` holds every scalar metric of the report.
    """

    epoch: int
    step: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything about a run but its predictions, its report's tables and its history.

    Attributes:
        status: One of `STATUSES`.
        arguments: Name and value of every setting, as parsed; secrets withheld.
        command: The words of the command line; a program of an absolute path by its file name.
        task: Name of the task, such as "text".
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
    task: str
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
        object.__setattr__(self, "arguments", redact_secrets(self.arguments))
        object.__setattr__(self, "command", redact_command(self.command))


def first_record(prepared: Prepared) -> RunRecord:
    """Return the record of a run that has not started training."""
    import torch

    args, task, model = prepared.args, prepared.task, prepared.loaded.model
    data, accelerator = task.data, prepared.accelerator
    device = accelerator.device
    parameters = list(model.parameters())
    gpus = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    return RunRecord(
        status="running",
        arguments=asdict(args),
        command=sys.argv,
        task=task.name,
        label_names=task.label_names,
        data=DataPart(
            name=data.name,
            kind=data.kind,
            fingerprints=data.fingerprints,
            examples={name: len(rows) for name, rows in data.splits.items()},
            notes=(*data.notes, *task.notes),
            input_columns=data.input_columns,
            hub_id=None if args.dataset_name in BUILT_IN_DEFAULTS else _hub_id(args.dataset_name),
        ),
        model=ModelPart(
            name=prepared.loaded.name,
            architecture=type(model).__name__,
            parameters=sum(p.numel() for p in parameters),
            trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            initial_weights_sha256=prepared.loaded.float32_sha256,
            hub_id=_hub_id(prepared.loaded.name),
            perturbed=args.perturb_initial_weights,
        ),
        precision=precision_part(prepared.precision.mode, prepared.precision),
        topology=TopologyPart(
            num_processes=accelerator.num_processes,
            cpu_threads=torch.get_num_threads(),
            device=device.type,
        ),
        steps=StepsPart(
            total=prepared.total_steps,
            effective_batch_size=prepared.step_batches.effective_batch_size,
            micro_batches=prepared.step_batches.micro_batches,
        ),
        hardware=hardware(gpus),
    )


def _hub_id(name: str | None) -> str | None:
    """Return `name` if it has the form of a hub id and is not a folder here."""
    if name is None or not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or Path(name).exists():
        return None
    return name


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
        values = read_json_object(path)
        if values.get("schema") == 1:
            values = _from_layout_1(values)
        check_schema(
            path,
            values,
            SCHEMA,
            "Read it with the version of ampft that it names under `versions`.",
        )
        return from_json(RunRecord, values, RECORD_NAME)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: is not the folder of a run. It needs {RECORD_NAME} as a run writes it "
            f"({type(error).__name__}: {error})."
        ) from error


def _from_layout_1(values: dict[str, Any]) -> dict[str, Any]:
    """Return a record of layout 1, which knew one label per example, in layout 2."""
    validations = [
        {"epoch": part.pop("epoch"), "step": part.pop("step"), "metrics": part}
        for part in values.get("validations", ())
    ]
    task = {"text": "text", "image": "images"}[values["data"]["kind"]]
    return {**values, "validations": validations, "task": task, "schema": SCHEMA}


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


REDACTED = "(not recorded)"

_SECRET_NAME = re.compile(
    r"(^|[_-])(token|secret|password|passwd|api[_-]?key|auth)$", re.IGNORECASE
)
_USER_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+@")


def redact_secrets(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without values whose name or form says that they are secret."""
    return {
        name: REDACTED if value is not None and _SECRET_NAME.search(name) else _no_user(value)
        for name, value in arguments.items()
    }


def redact_command(words: Sequence[str]) -> list[str]:
    """Return a command line fit for a record: no folder of the program, no secret values."""
    program = PurePath(words[0]) if words else None
    # Under a home folder, an absolute path names its owner.
    kept = [] if program is None else [program.name if program.is_absolute() else str(program)]
    for previous, word in pairwise(words):
        name, equals, _ = word.partition("=")
        if previous.startswith("-") and "=" not in previous and _SECRET_NAME.search(previous):
            kept.append(REDACTED)
        elif word.startswith("-") and equals and _SECRET_NAME.search(name):
            kept.append(f"{name}={REDACTED}")
        else:
            kept.append(_no_user(word))
    return kept


def _no_user(value: Any) -> Any:
    return _USER_IN_ADDRESS.sub("", value) if isinstance(value, str) else value
