"""Finding the runs of a comparison, and which of them belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ampft.comparison.arms import PLACEBO, arm_sort_key
from ampft.errors import InputError
from ampft.precision.modes import BASELINE, is_like_fp32
from ampft.runs.record import RECORD_NAME, RunRecord, read_record

RUNS_NAME = "runs"  # a comparison's own folder holds its runs under this name


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run's folder and record.

    Attributes:
        folder: Where it is.
        record: Its run.json.
        mode: As requested, Accelerate's "no" as "fp32".
        arm: The mode, or "placebo" when its initial weights were perturbed.
        seed: Of training.
    """

    folder: Path
    record: RunRecord
    mode: str
    arm: str
    seed: int

    @property
    def is_finished(self) -> bool:
        """Whether it came to its report."""
        return self.record.status == "finished"


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """The runs of an arm, by ascending seed; every group of a comparison has the same seeds."""

    name: str
    runs: tuple[RecordedRun, ...]

    @property
    def mode(self) -> str:
        """The mode of all of them."""
        return self.runs[0].mode

    @property
    def is_placebo(self) -> bool:
        """Whether their initial weights were perturbed."""
        return self.name == PLACEBO

    @property
    def status(self) -> str:
        """Return "complete", "unstable" or "failed", as in `Arm`."""
        if any(run.record.status == "diverged" for run in self.runs):
            return "unstable"
        return "complete" if all(run.is_finished for run in self.runs) else "failed"

    @property
    def finished(self) -> tuple[RecordedRun, ...]:
        """Those that came to their report."""
        return tuple(run for run in self.runs if run.is_finished)

    def status_words(self) -> str:
        """Return such as "unstable, 2 of 5"."""
        total = len(self.runs)
        diverged = sum(run.record.status == "diverged" for run in self.runs)
        cut_short = total - diverged - len(self.finished)
        if not diverged:
            return f"failed, {cut_short} of {total}" if cut_short else "complete"
        rest = f"; {cut_short} did not finish" if cut_short else ""
        return f"unstable, {diverged} of {total}{rest}"


def find_runs(folders: Sequence[Path]) -> tuple[RecordedRun, ...]:
    """Read the records of runs; the order of the folders is of no consequence.

    Args:
        folders: Output folders of runs, or folders of comparisons, whose runs are meant.

    Raises:
        InputError: There are none, or a folder holds neither.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        for run in _run_folders(folder):
            found.setdefault(run.resolve(), run)  # named twice, by a pattern for example
    return tuple(_run(folder) for folder in found.values())


def group_runs(runs: Sequence[RecordedRun], *, baseline: str) -> tuple[RunGroup, ...]:
    """Group runs into arms, the baseline first and the placebo second, and pair them by seed.

    Args:
        runs: As `find_runs` returns them.
        baseline: The mode that all others are compared with.

    Raises:
        InputError: There is no baseline or nothing beside it; two runs have the same mode and
            seed; a mode lacks a run at a seed that another has.
    """
    arms: dict[str, dict[int, RecordedRun]] = {}
    for run in sorted(runs, key=lambda run: (arm_sort_key(run.arm), run.seed, str(run.folder))):
        seeds = arms.setdefault(run.arm, {})
        if run.seed in seeds:
            raise InputError(
                f"RUN: {seeds[run.seed].folder} and {run.folder} are both runs of {run.arm} with "
                f"seed {run.seed}; name one of them"
            )
        seeds[run.seed] = run
    _check_baseline(arms, baseline)
    _check_pairs(arms)
    names = [baseline, *(name for name in arms if name != baseline)]
    return tuple(
        RunGroup(name=name, runs=tuple(arms[name][seed] for seed in sorted(arms[name])))
        for name in names
    )


def _run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(
            f"RUN {folder}: is no folder; name the --output_dir of a run, which holds {RECORD_NAME}"
        )
    inside = folder / RUNS_NAME
    if (folder / RECORD_NAME).exists() or not inside.is_dir():
        return [folder]
    found = sorted(path for path in inside.iterdir() if (path / RECORD_NAME).is_file())
    if not found:
        raise InputError(f"RUN {folder}: {inside} holds no run yet; each has a {RECORD_NAME}")
    return found


def _run(folder: Path) -> RecordedRun:
    record = read_record(folder)
    seed = record.arguments.get("seed")
    if not isinstance(seed, int):
        raise InputError(
            f"RUN {folder}: its {RECORD_NAME} names no seed among the arguments, so it cannot be "
            "paired with another run; leave it away"
        )
    mode = BASELINE if is_like_fp32(record.precision.requested) else record.precision.requested
    arm = PLACEBO if record.model.perturbed else mode
    return RecordedRun(folder=folder, record=record, mode=mode, arm=arm, seed=seed)


def _check_baseline(arms: Mapping[str, Mapping[int, RecordedRun]], baseline: str) -> None:
    listed = ", ".join(arms) or "none"
    if baseline not in arms:
        raise InputError(
            f"--baseline {baseline}: no run of {baseline} among the runs named (there are: "
            f"{listed}); name its runs too, or another baseline with --baseline MODE"
        )
    if len(arms) == 1:
        raise InputError(
            f"RUN: all runs are of {baseline}, so there is nothing to compare; name runs of "
            "another mode too"
        )
    for run in arms.get(PLACEBO, {}).values():
        if run.mode != baseline:
            raise InputError(
                f"RUN {run.folder}: perturbs the initial weights in {run.mode}, but the placebo is "
                f"the baseline's twin, in {baseline}; leave it away or pass --baseline {run.mode}"
            )


def _check_pairs(arms: Mapping[str, Mapping[int, RecordedRun]]) -> None:
    seeds = sorted({seed for runs in arms.values() for seed in runs})
    missing = [
        f"{name} has no run with seed {seed}"
        for name, runs in arms.items()
        for seed in seeds
        if seed not in runs
    ]
    if missing:
        shown = "; ".join(missing[:10]) + (" and more" if len(missing) > 10 else "")
        raise InputError(
            f"RUN: runs are compared pair by pair at the same seed, but {shown}. Train what is "
            "missing, or leave the runs of those seeds away."
        )
