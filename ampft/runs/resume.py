"""How a run continues: from which checkpoint, what must not differ, and `ampft checkpoint`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ampft.data.request import DATA_SET_OPTIONS
from ampft.engine.checkpoints.store import (
    MANIFEST_NAME,
    STORE_NAME,
    CheckpointManifest,
    CheckpointStore,
    DamagedCheckpoint,
    read_manifest,
    verified_history,
    verify,
)
from ampft.errors import AlreadyFinished, InputError
from ampft.runs.folder import on_main_process
from ampft.runs.later_parts import END_OF_TRAINING, trained_checkpoint
from ampft.runs.manifest import HISTORY_NAME, RECORD_NAME, earlier_record
from ampft.runs.record import NOT_SET, RunRecord, read_record, value_text
from ampft.runs.redaction import redact_secrets
from ampft.text.json_io import json_values
from ampft.text.numbers import byte_size
from ampft.text.page import Cell, Quote, Table, terminal_table

if TYPE_CHECKING:
    from ampft.runs.loop_state import LoopSettings

LATEST = "latest"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    folder: Path  # Its folder.
    manifest: CheckpointManifest  # Its manifest.

    def history(self) -> bytes:
        """Return the part of history.jsonl that belongs to it.

        Raises:
            DamagedCheckpoint: The history of the run is missing or was changed.
        """
        return verified_history(run_folder(self.folder) / HISTORY_NAME, self.manifest.history)


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """Where a run with `--resume_from_checkpoint` begins."""

    output_dir: Path  # Output folder of the run.
    checkpoint: Checkpoint | None = None  # The checkpoint; None begins at the first step.
    is_finished: bool = False  # Whether the run in the output folder has finished.
    missing: Path | None = None  # A folder to resume from that does not exist, and is not needed.
    sent: int = 0  # Number of steps in the history of the output folder.

    @property
    def completes(self) -> bool:
        """Whether the training in the output folder has ended, and only what follows is missing."""
        manifest = None if self.checkpoint is None else self.checkpoint.manifest
        return self.is_inside and manifest is not None and manifest.reason == END_OF_TRAINING

    @property
    def is_first(self) -> bool:
        """Whether there is no checkpoint yet.

        The folder may hold files of others, such as a log of the scheduler, and a run that ended
        before its first checkpoint.
        """
        return self.checkpoint is None and not self.is_finished

    @property
    def is_inside(self) -> bool:
        """Whether the checkpoint belongs to the run in the output folder."""
        return (
            self.checkpoint is not None
            and run_folder(self.checkpoint.folder).resolve() == self.output_dir.resolve()
        )


def run_folder(checkpoint: Path) -> Path:
    """Return the output folder of the run that wrote a checkpoint."""
    return checkpoint.absolute().parents[1]


def find_resume_point(args: LoopSettings) -> ResumePoint | None:
    """Return where a run begins; None for the first step of a new one.

    Without `--resume_from_checkpoint`, only a training that has ended is completed.

    Raises:
        InputError: The checkpoint does not exist, or is damaged.
    """
    if args.resume_from_checkpoint is not None:
        return on_main_process(lambda: _find(args))
    return on_main_process(lambda: None if args.output_dir is None else _find_ended(args))


def _find_ended(args: LoopSettings) -> ResumePoint | None:
    output_dir = Path(str(args.output_dir))
    checkpoint = trained_checkpoint(output_dir)
    try:
        return None if checkpoint is None else _point_at(checkpoint, output_dir)
    except DamagedCheckpoint:
        if args.overwrite_output_dir:
            return None
        raise


def _point_at(checkpoint: Path, output_dir: Path) -> ResumePoint:
    point = ResumePoint(output_dir=output_dir, checkpoint=verified_checkpoint(checkpoint))
    return replace(point, sent=_steps_of(output_dir)) if point.is_inside else point


def _find(args: LoopSettings) -> ResumePoint:
    assert args.resume_from_checkpoint is not None
    assert args.output_dir is not None, "checked with the other arguments"
    output_dir = Path(args.output_dir)
    record = earlier_record(output_dir) if output_dir.is_dir() else None
    if record is not None and record["status"] == "finished":
        asked = Path(args.resume_from_checkpoint)
        is_missing = args.resume_from_checkpoint != LATEST and not asked.is_dir()
        missing = asked if is_missing else None
        return ResumePoint(output_dir=output_dir, is_finished=True, missing=missing)
    if args.resume_from_checkpoint == LATEST:
        found = CheckpointStore(output_dir).complete()
        if not found:
            return ResumePoint(output_dir=output_dir, sent=_steps_of(output_dir))
        checkpoint = found[-1]
    else:
        checkpoint = Path(args.resume_from_checkpoint)
        if not checkpoint.is_dir():
            raise InputError(
                f"--resume_from_checkpoint {checkpoint}: this folder does not exist. Give the "
                f"folder of a checkpoint, such as {output_dir}/checkpoints/step-100, or {LATEST}."
            )
        if not (checkpoint / MANIFEST_NAME).exists() and CheckpointStore(checkpoint).complete():
            raise InputError(
                f"--resume_from_checkpoint {checkpoint}: this is the folder of a run. Give one of "
                f"its checkpoints, or pass --output_dir {checkpoint} --resume_from_checkpoint "
                f"{LATEST}."
            )
    try:
        return _point_at(checkpoint, output_dir)
    except DamagedCheckpoint as error:
        raise InputError(
            f"--resume_from_checkpoint: {error} {damage_advice(checkpoint)}"
        ) from error


def _steps_of(folder: Path) -> int:
    """Return the number of steps in the history of a folder; 0 without one."""
    try:
        return (folder / HISTORY_NAME).read_bytes().count(b"\n")
    except OSError:
        return 0


def verified_checkpoint(folder: Path) -> Checkpoint:
    """Return a checkpoint whose files, and whose part of the history, are as they were written.

    Raises:
        DamagedCheckpoint: They are not.
    """
    checkpoint = Checkpoint(folder, verify(folder))
    checkpoint.history()
    return checkpoint


def damage_advice(damaged: Path) -> str:
    """Return what to do about a damaged checkpoint: the older ones that can be used."""
    usable = [
        folder
        for folder in CheckpointStore(run_folder(damaged)).complete()
        if folder.name != damaged.name and checkpoint_damage(folder) is None
    ]
    if not usable:
        return "No other checkpoint of the run can be used. Restore it from a copy, or start anew."
    listed = ", ".join(folder.name for folder in reversed(usable))
    return (
        f"Nothing was changed. These checkpoints of the run are intact: {listed}. To continue from "
        f"one of them: --resume_from_checkpoint {usable[-1]}"
    )


def checkpoint_damage(checkpoint: Path) -> DamagedCheckpoint | None:
    """Return what is wrong with a checkpoint or its part of the history; None if all is right."""
    try:
        verified_checkpoint(checkpoint)
    except DamagedCheckpoint as error:
        return error
    return None


def list_checkpoints(path: Path) -> str:
    """Return a table of the checkpoints at `path`, by their manifests; nothing is verified.

    Args:
        path: Output folder of a run, its folder of checkpoints, or a checkpoint.

    Raises:
        InputError: No checkpoint was found.
    """
    rows: list[tuple[Cell, ...]] = []
    for folder in _checkpoints_at(path):
        try:
            manifest = read_manifest(folder)
        except DamagedCheckpoint as error:
            rows.append((Quote(folder.name), "", "", "", "", Quote(f"damaged: {error}")))
            continue
        rows.append(
            (
                Quote(folder.name),
                str(manifest.cursor.epoch + 1),
                str(manifest.cursor.step_in_epoch),
                byte_size(manifest.bytes),
                Quote(manifest.written),
                Quote(manifest.reason),
            )
        )
    header = ("checkpoint", "epoch", "step in epoch", "size", "written", "reason")
    return terminal_table(Table(header=header, rows=rows, left=6))


def verify_checkpoints(path: Path) -> str:
    """Check every file of the checkpoints at `path`; return one line for each.

    Args:
        path: Same as in `list_checkpoints`.

    Raises:
        InputError: No checkpoint was found, or one is damaged; the message names every damaged
            file.
    """
    intact, damaged = [], []
    for folder in _checkpoints_at(path):
        try:
            manifest = verified_checkpoint(folder).manifest
        except DamagedCheckpoint as error:
            damaged.append(f"damaged   {error}")
        else:
            files = len(manifest.files) + 1
            intact.append(f"intact    {folder}: {files} files, {byte_size(manifest.bytes)}")
    if damaged:
        lines = "\n".join([*damaged, *intact])
        raise InputError(f"{len(damaged)} of {len(damaged) + len(intact)} are damaged\n{lines}")
    return "\n".join(intact)


def _checkpoints_at(path: Path) -> list[Path]:
    """Return the folders of the checkpoints at `path`, by ascending step."""
    if (path / MANIFEST_NAME).exists():
        return [path]
    found = CheckpointStore(path.parent if path.name == STORE_NAME else path).complete()
    if not found:
        raise InputError(
            f"PATH {path}: no checkpoint was found. Give the --output_dir of a run with "
            "--checkpointing_steps, or one of its checkpoints."
        )
    return found


MICRO_BATCHES = "micro-batches per step and process"
# Settings that do not change the weights or the report beyond rounding, or whose effect is compared
# by content.
MAY_CHANGE = frozenset(
    {
        *(
            "output_dir",
            "overwrite_output_dir",
            "history_csv",
            "watch",
            "with_tracking",
            "report_to",
        ),
        *("checkpointing_steps", "checkpoint_total_limit", "resume_from_checkpoint"),
        *("async_checkpoints", "allow_topology_change", "max_time", "on_nonfinite"),
        *("push_to_hub", "hub_model_id", "hub_private_repo"),
        *(
            "baseline",
            "serve_back",
            "evaluate_fp32",
            "metric",
            "fail_on_leak",
            "inspect_data",
            "check_precision",
            "trust_remote_code",
        ),
        *("dataloader_num_workers", "use_cpu", "cpu_threads"),
        *(
            "model_name_or_path",
            "model_revision",
            "processor_name",
            "cache_dir",
            *DATA_SET_OPTIONS[1:],
            "dataset_name",
            "train_file",
            "validation_file",
            "test_file",
        ),
        *("mixed_precision", "auto_micro_batch", "micro_batches", "cuda_graphs"),
        *("per_device_train_batch_size", "gradient_accumulation_steps"),
        "per_device_eval_batch_size",  # must be lowered if an evaluation runs out of memory
    }
)
# Of these, what a continuation sets anew in any case, or what its entry in the record says already.
_NOT_RECORDED = {
    *("output_dir", "overwrite_output_dir", "resume_from_checkpoint", "allow_topology_change")
}
MAX_VALUE_LENGTH = 40


def settings_of(record: RunRecord, steps_per_epoch: int | None = None) -> dict[str, Any]:
    """Return what must be equal, by the names in which a difference is reported.

    Args:
        record: Record of a run, at any time.
        steps_per_epoch: Optimizer steps of an epoch, which a record does not have.
    """
    model, steps = record.model, record.steps
    settings = {
        "precision": record.precision.requested,
        "model": model.architecture,
        "initial weights": model.initial_weights_sha256,
        "configuration": model.configuration,
        "preprocessing": model.preprocessing,
        "modules in float32": list(record.precision.fp32_modules),
        "classes": list(record.label_names),
        **{f"data of {name}": digest for name, digest in record.data.fingerprints.items()},
        "optimizer steps": steps.total,
        "steps per epoch": steps_per_epoch,
        "effective batch size": steps.effective_batch_size,
    }
    arguments = _arguments(record)
    return {
        **{name: value for name, value in settings.items() if value is not None},
        **{f"--{name}": value for name, value in arguments.items() if name not in MAY_CHANGE},
    }


def _arguments(record: RunRecord) -> dict[str, Any]:
    return cast("dict[str, Any]", json_values(redact_secrets(record.arguments)))


def choices_of(record: RunRecord) -> dict[str, Any]:
    """Return the settings that may change when the run continues, by flag; a change is recorded."""
    names = MAY_CHANGE - _NOT_RECORDED
    return {f"--{name}": value for name, value in _arguments(record).items() if name in names}


def changed_choices(manifest: CheckpointManifest, record: RunRecord) -> dict[str, tuple[Any, Any]]:
    """Return the settings that may change and did, by flag: in the checkpoint and now."""
    return changed_values(manifest.choices, choices_of(record))


def topology_of(record: RunRecord) -> dict[str, Any]:
    """Return what may differ only with `--allow_topology_change`.

    Args:
        record: Record of a run, with the current number of micro-batches.
    """
    topology = record.topology
    return {
        "processes": topology.num_processes,
        "weights sharded": topology.sharded,
        MICRO_BATCHES: record.steps.micro_batches,
        "device": topology.device,
        "execution": record.precision.resolved["execution"],
        "CPU threads per process": topology.cpu_threads,
        **({} if topology.compiled is None else {"compilation": topology.compiled}),
    }


def environment_of(record: RunRecord) -> dict[str, Any]:
    """Return hardware and versions. If they differ, the last digits of results may differ."""
    packages = {f"version of {name}": version for name, version in record.versions.items()}
    return {"CPU": record.hardware["cpu"], "GPU": ", ".join(record.hardware["gpus"]), **packages}


def other_settings(point: ResumePoint, now: RunRecord, steps_per_epoch: int) -> str | None:
    """Return how a command differs from the one whose training it would complete; None if not.

    Args:
        point: Where the run would begin.
        now: Record of this command before its first step.
    """
    assert point.checkpoint is not None, "it completes a training"
    before = point.checkpoint.manifest.settings
    found = changed_values(before, settings_of(now, steps_per_epoch))
    return _difference_table(found, "the training") if found else None


def refuse_finished(point: ResumePoint, record: RunRecord) -> NoReturn:
    """Refuse to continue a run that has finished.

    Args:
        point: Where the run would begin: in the folder of the finished run.

    Raises:
        AlreadyFinished: Settings, data and model are the same.
        InputError: They differ.
    """
    finished = on_main_process(lambda: read_record(point.output_dir))
    before, now = settings_of(finished), settings_of(record)
    for name in before.keys() ^ now.keys():
        if not name.startswith("data of "):  # known to one version, or only before a run
            before.pop(name, None)
            now.pop(name, None)
    refuse_differences(
        f"{point.output_dir / RECORD_NAME}",
        changed_values(before, now),
        "Choose another --output_dir.",
    )
    unread = ""
    if point.missing is not None:
        unread = f" --resume_from_checkpoint {point.missing}: this folder does not exist."
    raise AlreadyFinished(
        f"{point.output_dir}: this run has finished, so nothing is trained.{unread} To see its "
        f"report: ampft report {point.output_dir}"
    )


def changed_values(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the values that differ, before and now, by name.

    Values that are mappings are compared entry by entry: "configuration: hidden_act".
    """
    found: dict[str, tuple[Any, Any]] = {}
    for name in {**before, **now}:
        old, new = before.get(name, NOT_SET), now.get(name, NOT_SET)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found |= {f"{name}: {part}": pair for part, pair in changed_values(old, new).items()}
        elif old != new:
            found[name] = (old, new)
    return found


def refuse_differences(where: str, found: Mapping[str, tuple[Any, Any]], remedy: str) -> None:
    """Refuse to continue with other settings.

    Args:
        where: What was made with the other settings, such as the path of a checkpoint.
        found: Result of `changed_values`; empty if nothing is refused.

    Raises:
        InputError: There are differences; the message lists them as a table.
    """
    if not found:
        return
    raise InputError(
        f"--resume_from_checkpoint: {where} belongs to a run with other settings. {remedy}\n"
        f"{_difference_table(found, 'checkpoint')}"
    )


def _difference_table(found: Mapping[str, tuple[Any, Any]], before: str) -> str:
    rows = [(Quote(name), *map(_shortened, pair)) for name, pair in found.items()]
    return terminal_table(Table(header=("setting", before, "now"), rows=rows, left=3))


def _shortened(value: object) -> Quote:
    text = value_text(value)
    return Quote(text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…")
