"""Find the runs of a comparison, and group them into arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampft.arguments.compare import PLACEBO
from ampft.comparison.arms import arm_sort_key
from ampft.comparison.findings import status_words
from ampft.errors import InputError
from ampft.precision.modes import BASELINE, MODES, is_fp32
from ampft.runs.manifest import HISTORY_NAME, RECORD_NAME, check_files
from ampft.runs.record import RunRecord, read_record

RUNS_NAME = "runs"  # subfolder of a comparison's folder that holds its runs
MOST_LISTED = 10  # missing runs in a message
READ_FILES = (HISTORY_NAME, "predictions.parquet", "predictions_fp32.parquet")


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run's folder and record.

    Attributes:
        folder: Folder of the run.
        record: Run record in its run.json.
        mode: Requested mode, with Accelerate's "no" as "fp32".
        name: Name of its settings: its mode, or a name such as "learning_rate=1e-05".
        seed: Training seed.
    """

    folder: Path
    record: RunRecord
    mode: str
    name: str
    seed: int

    @property
    def arm(self) -> str:
        """The name of its arm: the name of its settings, or "placebo" for perturbed weights."""
        return PLACEBO if self.record.model.perturbed else self.name

    @property
    def is_finished(self) -> bool:
        """Whether the run finished."""
        return self.record.status == "finished"


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """The runs of an arm by ascending seed. All groups of a comparison have the same seeds."""

    name: str
    runs: tuple[RecordedRun, ...]

    @property
    def settings_name(self) -> str:
        """The name of the runs' settings; a placebo has the baseline's settings."""
        return self.runs[0].name

    @property
    def mode(self) -> str:
        """The mode of the runs."""
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
        """The finished runs."""
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
        runs: Runs with the names of their arms.
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
                f"seed {run.seed}. Name only one of them."
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
        arms: What each arm has by seed.
        kind: What it has, such as "run".
    """
    seeds = sorted({seed for arm in arms.values() for seed in arm})
    missing = [
        f"{name} has no {kind} with seed {seed}"
        for name, arm in arms.items()
        for seed in seeds
        if seed not in arm
    ]
    return ", ".join(missing[:MOST_LISTED]) + " and more" * (len(missing) > MOST_LISTED)
