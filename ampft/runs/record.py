"""The run record, run.json: what is needed to repeat a run and to compare it fairly."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError
from ampft.evaluation.simple_methods import SimpleMethodResult
from ampft.features.decision_figures import FittedPart
from ampft.features.head_scale import HeadScale
from ampft.features.resources import PeakMemory
from ampft.features.validations import BestPart as BestPart
from ampft.features.validations import ValidationPart as ValidationPart
from ampft.files import FileDigest, Recorded, hashed_text, read_hashed
from ampft.machine import versions
from ampft.runs.client_answers import ServedPart
from ampft.runs.folder import RunFolder
from ampft.runs.manifest import RECORD_NAME, check_model_files, model_files
from ampft.runs.redaction import redact_command, redact_secrets, without_secrets
from ampft.text.escaping import without_credentials
from ampft.text.json_io import JSONValue, from_json, read_json_object
from ampft.text.warning_names import NOT_TRAINED_WELL

SCHEMA = 3
# Contradicted: what ran was not what was requested, such as another precision. Preempted: a signal
# stopped the run, which can continue from its checkpoint. Trained: the training has ended and its
# model is saved, but `parts` are not all done.
STATUSES = (
    *("running", "trained", "finished"),
    *("diverged", "contradicted", "preempted", "interrupted"),
)
NOT_SET = "(not set)"


def value_text(value: object) -> str:
    """Return a recorded setting as a user reads it."""
    if value is None:
        return NOT_SET
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """The data: `fingerprints` and numbers of `examples` by split; `hub_id` if from the hub.

    `files` has the SHA-256 of each file that was read, by path. `shared_with_train` has the number
    of rows of each other split whose inputs are those of a training row; None if nobody counted.
    `truncated` is the number of truncated training texts.
    """

    name: str
    kind: str
    fingerprints: Mapping[str, str]
    examples: Mapping[str, int]
    input_columns: Sequence[str] = ()
    notes: Sequence[str] = ()
    hub_id: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    shared_with_train: Mapping[str, int] | None = None
    truncated: int = 0

    def training_files(self, arguments: Mapping[str, Any]) -> list[Recorded]:
        """Return the files that the run trained on.

        Args:
            arguments: Arguments of the run, which name the files of other splits.
        """
        others = [
            name.strip()
            for flag in ("validation_file", "test_file")
            for name in str(arguments.get(flag) or "").split(",")
        ]
        return [
            Recorded(Path(path), sha256)
            for path, sha256 in self.files.items()
            if not any(path == name or fnmatch(path, name) for name in others)
        ]


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """The model: class name, numbers of parameters, and the hash of the initial weights.

    If `perturbed`, each weight was then changed by one unit in the last place. The hash is
    computed before this change, so that a placebo has the same hash as the baseline.

    `padding_free` says whether it ran without padding. `configuration` and `preprocessing` are what
    model and tokenizer or processor do; `padding_free` is None for loops of users.
    `notes` say what was drawn at random or not used, as printed. `files` are the SHA-256 of the
    files of a local model folder, by name.
    """

    name: str
    architecture: str
    parameters: int
    trainable_parameters: int
    initial_weights_sha256: str
    hub_id: str | None = None
    perturbed: bool = False
    padding_free: bool | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PrecisionPart:
    """The requested mode, the precision it resolved to, and the dtypes of the first step.

    `summary` describes the executed dtypes in one clause. `lost_updates` is the share of weight
    updates that rounding lost: the median over the steps where it was measured. `fp32_modules` are
    the paths of the modules that compute in float32 by request.
    """

    requested: str
    resolved: Mapping[str, JSONValue]
    executed: Mapping[str, JSONValue] | None = None
    summary: str | None = None
    lost_updates: float | None = None
    fp32_modules: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class TopologyPart:
    """Processes, CPU threads per process, and the device type, such as "cpu" or "cuda".

    `sharded` says whether FSDP2 sharded weights, gradients and optimizer state over the processes,
    and `compiled` is the backend of `torch.compile`, such as "inductor"; None without it.
    """

    num_processes: int
    cpu_threads: int
    device: str
    sharded: bool = False
    compiled: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepsPart:
    """Optimizer steps: planned, applied, and skipped because of an overflow.

    `effective_batch_size` is the number of examples per step over all processes. `micro_batches` is
    the number per step and process; if memory ran out during training, the number at its end.
    """

    total: int
    applied: int = 0
    skipped: int = 0
    effective_batch_size: int | None = None
    micro_batches: int | None = None


@dataclass(frozen=True, kw_only=True)
class ResumePart:
    """A continuation of the run from a checkpoint."""

    checkpoint: str  # Name of its folder.
    step: int  # Optimizer steps before it.
    epoch: int  # Epoch (from 1) of the next step.
    resumed: str  # Time, ISO 8601 in UTC.
    # What `--allow_topology_change` allowed to differ, by name: before and now.
    topology: Mapping[str, Sequence[JSONValue]] = field(default_factory=dict)
    # Hardware and versions that differ, by name: before and now.
    environment: Mapping[str, Sequence[JSONValue]] = field(default_factory=dict)
    # Settings that may change and did, by flag: before and now.
    settings: Mapping[str, Sequence[JSONValue]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything about a run except its predictions, the tables of its report and its history."""

    status: str  # One of `STATUSES`.
    arguments: Mapping[str, Any]  # Name and value of every setting as parsed, without secrets.
    # Command line without secrets; an absolute path of the program is cut to its name.
    command: Sequence[str]
    task: str  # Name of the task, such as "text".
    label_names: Sequence[str]  # Class names, in the order of the logits.
    data: DataPart  # The data.
    model: ModelPart  # The model before training.
    precision: PrecisionPart  # The precision.
    topology: TopologyPart  # Processes, threads, device.
    steps: StepsPart  # Optimizer steps.
    example_ids_sha256: str | None = None  # `StepIdsHash` of the effective batches so far.
    # Hash of the states of the generators that dropout draws from, after the first step; `None`
    # before it, and if nothing was drawn.
    random_state_sha256: str | None = None
    # Seconds and rates with their `protocol`; `total_seconds` from start to report.
    timings: Mapping[str, Any] = field(default_factory=dict)
    memory: PeakMemory | None = None  # Peak memory.
    validations: Sequence[ValidationPart] = ()  # Evaluations on the validation split, in order.
    # Scalar metrics of the final report, its `split`, and whether the epoch was `selected` on that
    # split.
    metrics: Mapping[str, Any] = field(default_factory=dict)
    # Metrics of predicting the class frequencies of `train` for every example.
    metrics_chance: Mapping[str, float] | None = None
    # Values of `--metric` on the final split; None without.
    metrics_chosen: Mapping[str, float] | None = None
    # What simple methods reach on the same split; empty if they were not tried.
    simple_methods: Sequence[SimpleMethodResult] = ()
    # The same metrics of predictions in fp32; `None` without `--evaluate_fp32`.
    metrics_fp32: Mapping[str, Any] | None = None
    best: BestPart | None = None  # Validation whose weights are kept; `None` before the first one.
    # Reasons not to trust the result, by the rule of `evaluation.sanity`.
    warnings: Mapping[str, str] = field(default_factory=dict)
    # What was fitted on validation, and what it changes on the final split; `None` without.
    decisions: FittedPart | None = None
    head_scale: HeadScale | None = None  # Factor of the head after training; `None` for 1.
    # What plain clients answered from the saved folder; `None` if they were not asked.
    served_back: ServedPart | None = None
    # Reason why the run stopped early; a finished run has one if time or patience ended it.
    reason: str | None = None
    # What follows the training, such as the evaluation: "done", "not wanted", "pending", or
    # "failed: " and the reason, by name. Empty before the training has ended and in users' loops.
    parts: Mapping[str, str] = field(default_factory=dict)
    # Hash and size of the files that the run wrote, except this record and the files of trackers,
    # by relative path.
    files: Mapping[str, FileDigest] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)  # `ampft.machine.hardware()`.
    versions: Mapping[str, str] = field(default_factory=versions)  # `ampft.machine.versions()`.
    # Start of the run, ISO 8601 in UTC.
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    resumes: Sequence[ResumePart] = ()  # Continuations from checkpoints, in order.
    schema: int = SCHEMA  # Version of this layout.

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {STATUSES}, received {self.status!r}")
        object.__setattr__(self, "arguments", redact_secrets(self.arguments))
        object.__setattr__(self, "command", redact_command(self.command))
        object.__setattr__(self, "data", without_secrets(self.data))
        object.__setattr__(self, "model", without_secrets(self.model))
        object.__setattr__(self, "reason", self.reason and without_credentials(self.reason))
        parts = {name: without_credentials(status) for name, status in self.parts.items()}
        object.__setattr__(self, "parts", parts)

    @property
    def training_warnings(self) -> tuple[str, ...]:
        """The warnings that say that the model was not trained well; empty for none."""
        return tuple(text for name, text in self.warnings.items() if name in NOT_TRAINED_WELL)

    def inputs(self) -> list[Recorded]:
        """Return the files of data and of a local model that were read, or would be read today."""
        place, known = Path(self.model.name), self.model.files
        added = model_files(place, known) - {*known} if known and place.is_dir() else ()
        files = {**self.data.files, **{str(place / n): known.get(n, "") for n in (*known, *added)}}
        return [Recorded(Path(path), sha256) for path, sha256 in files.items()]


def write_record(folder: RunFolder, record: RunRecord) -> Path:
    """Write run.json atomically, with the hash of its values, replacing an earlier one."""
    return folder.write_text(RECORD_NAME, hashed_text(record))


def read_record(folder: Path, *, verify: bool = True) -> RunRecord:
    """Read run.json of a run's folder.

    Args:
        verify: Whether its values must have the hash that it states; an audit shows what differs.

    Raises:
        InputError: The folder does not hold a run, its record was changed, or it has an unknown
            schema version.
    """
    path = folder / RECORD_NAME
    remedy = "Use the version of ampft that the file names under `versions`."
    try:
        values = read_hashed(path, SCHEMA, remedy)[0] if verify else read_json_object(path)
        values.pop("sha256", None)
        return from_json(RunRecord, values, RECORD_NAME)
    except (FileNotFoundError, NotADirectoryError):
        run = next(iter(sorted(folder.glob(f"runs/*/{RECORD_NAME}"))), None)
        if run is not None:
            raise InputError(
                f"{folder}: this is the folder of a comparison. Give one of its runs, such as "
                f"{run.parent}."
            ) from None
        raise InputError(
            f"{folder}: this is not the folder of a run, because it has no {RECORD_NAME}. Give the "
            "--output_dir of a run."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: the record of the run is damaged or was changed ({type(error).__name__}: "
            f"{error}). Restore it from a copy, or repeat the run."
        ) from error


def not_finished(record: RunRecord) -> str:
    """Return why a run has no results, as a clause."""
    if record.status != "trained":
        return f"the run is {record.status}, not finished"
    return (
        "the run is trained, but what follows its training is incomplete. Repeat its command, "
        "which does what is missing without training again"
    )


def check_saved_model(path: str | None) -> None:
    """Check that a model to continue from is as it was written, if a run wrote it.

    Args:
        path: Folder or hub id; None for the default model.

    Raises:
        InputError: The folder is that of a run, and a file in it was changed, added or removed.
    """
    file = Path(path or "", RECORD_NAME)
    if path is None or not file.is_file() or b'"initial_weights_sha256"' not in file.read_bytes():
        return
    record = read_record(file.parent)
    check_model_files(file.parent, record.files)


class StepIdsHash:
    """Chained SHA-256 of the example ids of each optimizer step.

    h(0) is the hash of nothing, and h(k+1) = SHA-256(h(k), ids). Unlike a running hash, a chain can
    be saved and continued. The ids of a step are sorted first, because their order does not change
    the gradient.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256().digest()

    def update(self, ids: npt.ArrayLike) -> None:
        """Add one optimizer step with example ids `ids` of all processes, shape (n,)."""
        values = np.sort(np.asarray(ids).astype("<i8"))
        self._digest = hashlib.sha256(self._digest + values.tobytes()).digest()

    def hexdigest(self) -> str:
        """Return the hash of all steps so far."""
        return self._digest.hex()

    def restore(self, hexdigest: str) -> None:
        """Continue from the result of `hexdigest`."""
        self._digest = bytes.fromhex(hexdigest)
