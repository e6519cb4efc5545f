"""Find the runs of a comparison, and form its arms from the settings in which they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from ampft.comparison.findings import PRECISION, status_words
from ampft.comparison.settings import PLACEBO
from ampft.errors import InputError, did_you_mean
from ampft.precision.modes import BASELINE, MODES, is_fp32
from ampft.runs.manifest import HISTORY_NAME, RECORD_NAME, check_files
from ampft.runs.record import RunRecord, read_record
from ampft.text.escaping import inert

RUNS_NAME = "runs"  # subfolder of a comparison's folder that holds its runs
MOST_LISTED = 10  # missing runs in a message
READ_FILES = (HISTORY_NAME, "predictions.parquet", "predictions_fp32.parquet")
# Settings that pair runs, mark a placebo, or do not affect the results.
NOT_COMPARED = frozenset(
    {
        *("seed", "perturb_initial_weights", "evaluate_fp32"),
        *("output_dir", "overwrite_output_dir", "history_csv", "with_tracking", "report_to"),
        *("checkpointing_steps", "checkpoint_total_limit", "resume_from_checkpoint"),
        *("async_checkpoints", "allow_topology_change"),
        *("push_to_hub", "hub_model_id", "hub_private_repo"),
        *("baseline", "serve_back", "fail_on_leak", "trust_remote_code", "use_cpu", "cpu_threads"),
    }
)
MODEL = "model_name_or_path"
FIRST = "first"  # name of the arm of the first run, if the arms differ in several settings
# Names of files, which may differ although their contents are the same, and what they provide.
SOURCES = {"dataset_name": "train", "train_file": "train", "validation_file": "validation"}
RECORDED_ELSEWHERE = frozenset({PRECISION, MODEL, "test_file", *SOURCES})


def arm_sort_key(arm: str, order: Sequence[str] = MODES) -> tuple[int, str]:
    """Return a sort key for arm names: the placebo, then the names in `order`, then the others."""
    names = (PLACEBO, *order)
    return (names.index(arm) if arm in names else len(names), arm)


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run's folder and record."""

    folder: Path  # Folder of the run.
    record: RunRecord  # Run record in its run.json.
    mode: str  # Requested mode, with Accelerate's "no" as "fp32".
    name: str  # Name of its settings: its mode, or a name such as "learning_rate=1e-05".
    seed: int  # Training seed.

    @property
    def arm(self) -> str:
        """The name of its arm: the name of its settings, or "placebo" for perturbed weights."""
        return PLACEBO if self.record.model.perturbed else self.name

    @property
    def is_finished(self) -> bool:
        return self.record.status == "finished"


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """The runs of an arm by ascending seed. All groups of a comparison have the same seeds."""

    name: str
    runs: tuple[RecordedRun, ...]

    @property
    def mode(self) -> str:
        return self.runs[0].mode

    @property
    def is_placebo(self) -> bool:
        """Whether the initial weights were perturbed."""
        return self.name == PLACEBO

    @property
    def status(self) -> str:
        """The status "complete", "unstable" or "failed", as in `ArmResult`."""
        if any(run.record.status == "diverged" for run in self.runs):
            return "unstable"
        return "complete" if all(run.is_finished for run in self.runs) else "failed"

    @property
    def finished(self) -> tuple[RecordedRun, ...]:
        return tuple(run for run in self.runs if run.is_finished)

    @property
    def status_words(self) -> str:
        """The status with the number of runs, such as "unstable, 2 of 5"."""
        return status_words([run.record.status for run in self.runs])


def find_runs(folders: Sequence[Path]) -> tuple[RecordedRun, ...]:
    """Read the records of runs, and call each by its mode.

    Args:
        folders: Output folders of runs, or of comparisons, which stand for their runs.

    Raises:
        InputError: A folder does not exist, or is not the folder of a run or a comparison.
    """
    run_folders: dict[Path, Path] = {}
    for folder in folders:
        for run in _run_folders(folder):
            run_folders.setdefault(run.resolve(), run)  # a pattern may match a folder twice
    return tuple(_recorded_run(folder) for folder in run_folders.values())


def group_runs(
    runs: Sequence[RecordedRun], *, baseline: str, order: Sequence[str] = MODES
) -> tuple[RunGroup, ...]:
    """Group runs into arms, the baseline first and the placebo second, and pair them by seed.

    Args:
        baseline: Name of the arm that all others are compared with.
        order: Names of the arms in display order; other arms follow.

    Raises:
        InputError: The baseline or any other arm is missing, two runs have the same arm and seed,
            or an arm lacks a run with a seed that another arm has.
    """
    arms: dict[str, dict[int, RecordedRun]] = {}
    for run in sorted(
        runs, key=lambda run: (arm_sort_key(run.arm, order), run.seed, str(run.folder))
    ):
        seeds = arms.setdefault(run.arm, {})
        if run.seed in seeds:
            raise InputError(
                f"RUN: {seeds[run.seed].folder} and {run.folder} are both runs of {run.arm} with "
                f"seed {run.seed}. Pass only one of them."
            )
        seeds[run.seed] = run
    _check_baseline(arms, baseline)
    if missing := missing_seeds(arms, "run"):
        raise InputError(
            f"RUN: runs are compared in pairs with the same seed, but some are missing: {missing}. "
            "Train the missing runs, or omit all runs with those seeds."
        )
    names = [baseline, *(name for name in arms if name != baseline)]
    return tuple(
        RunGroup(name=name, runs=tuple(arms[name][seed] for seed in sorted(arms[name])))
        for name in names
    )


def _run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(
            f"RUN {folder}: the folder does not exist. Give the --output_dir of a run, which holds "
            f"{RECORD_NAME}."
        )
    runs_folder = folder / RUNS_NAME
    if (folder / RECORD_NAME).exists() or not runs_folder.is_dir():
        return [folder]
    runs = sorted(path for path in runs_folder.iterdir() if (path / RECORD_NAME).is_file())
    if not runs:
        raise InputError(
            f"RUN {folder}: {runs_folder} does not contain any runs, which would have a "
            f"{RECORD_NAME}. Give the folder of a comparison that has started."
        )
    return runs


def _recorded_run(folder: Path) -> RecordedRun:
    record = read_record(folder)
    check_files(folder, record.files, READ_FILES)
    seed = record.arguments.get("seed")
    if not isinstance(seed, int):
        raise InputError(
            f"RUN {folder}: the arguments in its {RECORD_NAME} have no seed, so it cannot be "
            "paired with another run. Omit this folder."
        )
    mode = BASELINE if is_fp32(record.precision.requested) else record.precision.requested
    return RecordedRun(folder=folder, record=record, mode=mode, name=mode, seed=seed)


def _check_baseline(arms: Mapping[str, Mapping[int, RecordedRun]], baseline: str) -> None:
    listed = ", ".join(arms) or "none"
    if baseline not in arms:
        raise InputError(
            f"--baseline {baseline}: there are only runs of {listed}. Add runs of {baseline}, or "
            "choose another baseline with --baseline MODE."
        )
    if len(arms) == 1:
        raise InputError(
            f"RUN: all runs are in {baseline} and have the same settings, so there is nothing to "
            "compare. Add runs in another mode or with other settings."
        )
    for run in arms.get(PLACEBO, {}).values():
        if run.name != baseline:
            raise InputError(
                f"RUN {run.folder}: this placebo run is in {run.name}, but a placebo must be in "
                f"the mode of the baseline, {baseline}. Omit this folder or use --baseline "
                f"{run.name}."
            )


def missing_seeds(arms: Mapping[str, Mapping[int, Any]], kind: str) -> str:
    """Return the seeds that some arms have and others lack, as a list of at most 10; "" if none.

    Args:
        kind: What it has, such as "run".
    """
    seeds = sorted({seed for arm in arms.values() for seed in arm})
    missing = [
        f"{name} has no {kind} with seed {seed}"
        for name, arm in arms.items()
        for seed in seeds
        if seed not in arm
    ]
    return ", ".join(missing[:MOST_LISTED]) + (" and more" if len(missing) > MOST_LISTED else "")


@dataclass(frozen=True, kw_only=True)
class ArmAssignment:
    """Runs, each named after its arm, and what distinguishes the arms."""

    runs: tuple[RecordedRun, ...]  # Runs.
    names: tuple[str, ...]  # Names of the arms without the placebo, in display order.
    varied: tuple[str, ...] = (PRECISION,)  # Names of the settings that distinguish the arms.
    # Values of these settings for readers, by arm; empty if the arms are modes.
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def form_arms(
    runs: Sequence[RecordedRun], *, by: Sequence[str] = (), planned: Mapping[str, str] | None = None
) -> ArmAssignment:
    """Return the arms of runs.

    Runs in at least two modes, with different seeds in each, form arms by mode, and so do runs that
    differ in nothing. Otherwise, all settings that differ distinguish the arms.

    Args:
        by: Settings that distinguish the arms; empty for the rule above.
        planned: Name of the arm of each run folder, in display order; None or empty without a
            plan that names arms.

    Raises:
        InputError: A setting in `by` is unknown or has the same value in all runs.
    """
    values = differing_settings(runs)

    def described(
        runs: Sequence[RecordedRun], names: Iterable[str], varied: tuple[str, ...]
    ) -> ArmAssignment:
        settings: dict[str, dict[str, str]] = {}
        for index, run in enumerate(runs):
            of_run = {name: value_text(values[name][index]) for name in varied}
            settings.setdefault(run.name, of_run)
        ordered = tuple(dict.fromkeys(names))
        return ArmAssignment(runs=tuple(runs), names=ordered, varied=varied, settings=settings)

    if planned:
        named = [replace(run, name=planned[run.folder.name]) for run in runs]
        arms = [run.name for run in named]
        # All runs of an arm have the same value of a setting that distinguishes the arms.
        varied = tuple(
            name
            for name, column in values.items()
            if _number(zip(arms, column, strict=True)) == _number(arms)
        )
        return described(named, planned.values(), varied)
    for name in by:
        _check_differs(name, runs, values)
    varied = tuple(name for name in values if name in by) if by else tuple(values)
    plain = [(run.mode, run.seed) for run in runs if not run.record.model.perturbed]
    are_modes = len({mode for mode, _ in plain}) > 1 and len(set(plain)) == len(plain)
    if varied == (PRECISION,) or (not by and (not values or are_modes)):
        names = tuple(sorted({run.name for run in runs}, key=arm_sort_key))
        return ArmAssignment(runs=tuple(runs), names=names)
    keys = [tuple(values[name][index] for name in varied) for index in range(len(runs))]
    name_of = _arm_names(varied, keys)
    named = [replace(run, name=name_of[repr(key)]) for run, key in zip(runs, keys, strict=True)]
    ordered = sorted(keys, key=lambda key: tuple(map(_sort_key, key)))
    return described(named, (name_of[repr(key)] for key in ordered), varied)


def differing_settings(runs: Sequence[RecordedRun]) -> dict[str, list[Any]]:
    """Return the values per run of the settings in which the runs differ, by name.

    Models with the same initial weights and data with the same contents are the same under any
    name.
    """
    records = [run.record for run in runs]
    columns: dict[str, list[Any]] = {PRECISION: [run.mode for run in runs]}
    if _models_differ(runs):
        columns[MODEL] = [record.model.name for record in records]
    for name in records[0].arguments:
        if name in NOT_COMPARED or not all(name in record.arguments for record in records):
            continue
        if name in SOURCES:
            contents = [record.data.fingerprints.get(SOURCES[name]) for record in records]
            if _number(contents) > 1:
                columns[name] = [record.arguments[name] for record in records]
        elif name not in RECORDED_ELSEWHERE:
            columns[name] = [record.arguments[name] for record in records]
    return {name: column for name, column in columns.items() if _number(column) > 1}


def value_text(value: Any) -> str:
    """Return a setting's value for readers; different values have different texts."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def _models_differ(runs: Sequence[RecordedRun]) -> bool:
    models = [run.record.model for run in runs]
    if _number([(model.architecture, model.parameters) for model in models]) > 1:
        return True
    hashes: dict[int, set[str]] = {}
    for run, model in zip(runs, models, strict=True):
        hashes.setdefault(run.seed, set()).add(model.initial_weights_sha256)
    return any(len(each) > 1 for each in hashes.values())


def _number(values: Iterable[Any]) -> int:
    return len(set(map(repr, values)))


def _check_differs(
    name: str, runs: Sequence[RecordedRun], values: Mapping[str, Sequence[Any]]
) -> None:
    if name in values:
        return
    known = [*runs[0].record.arguments, PRECISION]
    differing = f"The runs differ in {', '.join(values) or 'no setting'}."
    if name in NOT_COMPARED:
        raise InputError(f"--by {name}: this setting cannot distinguish arms. {differing}")
    if name not in known:
        raise InputError(
            f"--by {inert(name)}: the runs have no such setting.{did_you_mean(name, known)} "
            f"{differing}"
        )
    raise InputError(f"--by {name}: all runs have the same value. {differing}")


def _arm_names(varied: Sequence[str], keys: Iterable[Sequence[Any]]) -> dict[str, str]:
    """Return the names of arms by the text of their values, short if that is unambiguous.

    If the arms differ in several settings, a name has only those that differ from the first arm,
    which is called "first".
    """
    distinct = {repr(key): key for key in keys}
    first = next(iter(distinct.values()))
    names: dict[str, str] = {}
    for short in (True, False):
        for text, key in distinct.items():
            shown = [
                (name, value)
                for name, value, other in zip(varied, key, first, strict=True)
                if len(varied) == 1 or repr(value) != repr(other)
            ]
            names[text] = _arm_name(shown, short=short) or FIRST
        if len(set(names.values())) == len(names):
            break
    return names


def _arm_name(settings: Iterable[tuple[str, Any]], *, short: bool) -> str:
    """Return a name such as "learning_rate=1e-05" or "bf16, num_train_epochs=5"."""
    parts = []
    for name, value in settings:
        text = value_text(value)
        if short and name in RECORDED_ELSEWHERE:
            text = PurePath(text).name or text
        parts.append(text if name == PRECISION else f"{name}={text}")
    return ", ".join(parts)


def _sort_key(value: Any) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by size, before all other values."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return not is_number, float(value) if is_number else 0.0, str(value)
