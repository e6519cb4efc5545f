"""A comparison that is going on: its folder, its runs, what they came to."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.compare import CompareCommand
from ampft.comparison.execution.folder import (
    YARDSTICK_NAME,
    left_out,
    outcome,
    read_yardstick,
    whole_runs,
)
from ampft.comparison.execution.launch import check_ended, interruptible, launch_command, run_to_end
from ampft.comparison.execution.plan import PLAN_NAME, Plan, PlannedRun
from ampft.comparison.execution.planning import plan_lines, seconds_of_process
from ampft.comparison.execution.progress import Progress
from ampft.errors import InputError
from ampft.files import is_unwritable
from ampft.precision.modes import TABLE
from ampft.runs.folder import RunFolder, check_output_folder
from ampft.text.numbers import counted
from ampft.text.terminal import labelled, print_line

if TYPE_CHECKING:
    from ampft.comparison.findings import Comparison, PlanFacts

UNDECIDED = "undecided"


@dataclass
class Comparing:
    """A comparison under way; open it with `open_comparison`.

    Attributes:
        command: What the user asked.
        folder: Held by this process.
        plan: As far as it has come.
        progress: The display.
        recipe: classify.py.
    """

    command: CompareCommand
    folder: RunFolder
    plan: Plan
    progress: Progress
    recipe: Path
    _runs_before: float = field(init=False)
    _own_before: float = field(init=False)
    _yardstick_before: float = field(init=False)

    def __post_init__(self) -> None:
        self._runs_before = self.plan.runs_seconds
        self._own_before = self.plan.own_seconds
        self._yardstick_before = self.plan.yardstick_seconds

    def missing(self, seeds: int | None = None) -> tuple[PlannedRun, ...]:
        """Return the runs of the first `seeds` seeds that have no answer yet, in their order."""
        return tuple(
            run for run in self.plan.runs(seeds) if not outcome(self.run_folder(run)).complete
        )

    def run_folder(self, run: PlannedRun) -> Path:
        """Return the folder of a run."""
        return self.folder.path / "runs" / run.name

    def log(self, run: PlannedRun) -> Path:
        """Return the file with what a run printed."""
        return self.folder.path / "logs" / f"{run.name}.log"

    def launch(self, run: PlannedRun) -> None:
        """Run one training in a process of its own; say how it ended.

        Raises:
            InputError: Its input is bad, and no run of its arm has an answer; or another run of
                this comparison is still going on, as after the comparing process was killed.
        """
        check_ended(self.log(run).parent)
        for other in self.plan.runs():
            check_output_folder(self.run_folder(other), overwrite=True)
        self.progress.begin(run, self.run_folder(run))
        command = launch_command(self.plan.config_file, *self.words(run))
        started = time.perf_counter()
        try:
            _, seconds = run_to_end(command, self.log(run), self.progress.watch)
        finally:
            self._count(time.perf_counter() - started)
        ended = outcome(self.run_folder(run), self.log(run))
        words = ended.words(self.plan.metric)
        print_line(self.progress.end(seconds, words, complete=ended.status == "finished"))
        self.write_plan()
        if ended.complaint and not self._has_answer(run):
            raise InputError(ended.complaint)

    def words(self, run: PlannedRun) -> list[str]:
        """Return the words that start a run: the recipe, and every setting."""
        overrides = [w for name, v in self.plan.overrides.items() for w in (f"--{name}", str(v))]
        output = ["--output_dir", str(self.run_folder(run)), "--overwrite_output_dir"]
        return [str(self.recipe), *self.command.classify_argv, *overrides, *run.words, *output]

    def measure_yardstick(self) -> None:
        """Measure the noise yardstick in a process of its own, unless the folder has it."""
        if (self.folder / YARDSTICK_NAME).exists():
            return
        print_line("yardstick  measuring each mode's gradient error against the noise of a batch")
        log = self.folder.path / "logs" / "yardstick.log"
        # Weights that are stored in fewer bits are other weights: their gradient has no reference.
        modes = [mode for mode in self.plan.modes if not TABLE[mode].stores_16_bits]
        words = [sys.executable, "-m", "ampft.cli", "yardstick", "--modes", ",".join(modes)]
        words += ["--output", str(self.folder / YARDSTICK_NAME), "--", *self.command.classify_argv]
        started = time.perf_counter()
        run_to_end(words, log)
        seconds = self.plan.yardstick_seconds + time.perf_counter() - started
        self.plan = replace(self.plan, yardstick_seconds=seconds)
        if not (self.folder / YARDSTICK_NAME).exists():
            print_line(labelled("yardstick", f"none: it failed, see {log}"))

    def facts(self, seeds: int | None = None) -> PlanFacts:
        """Return what the analysis of the first `seeds` seeds has to know; None for all seeds."""
        self._update()
        folder, seeds = self.folder.path, self.plan.looks[-1] if seeds is None else seeds
        lacking = left_out(self.plan, folder, seeds)
        return self.plan.facts(read_yardstick(folder), lacking=lacking)

    def folders(self, seeds: int) -> list[Path]:
        """Return the folders of the runs of those of the first `seeds` seeds that are whole.

        Arms are compared pair by pair: a seed of which a run failed and left no record is left
        out, in every arm. A stamp and the line at the end name it.

        Raises:
            InputError: Too few seeds are left to compare.
        """
        try:
            return whole_runs(self.plan, self.folder.path, seeds)
        except InputError as error:
            raise InputError(f"{error} {self._failed(seeds)}") from error

    def looked(self, seeds: int) -> None:
        """Note that the results of the first `seeds` seeds were analysed and written."""
        complete = seeds - len({run.seed for run in self.missing(seeds)})
        self.plan = self.plan.looked(complete)
        self.write_plan()

    def write_plan(self) -> None:
        """Write plan.json."""
        self._update()
        self.folder.write_json(PLAN_NAME, self.plan)

    def close(self, seeds: int) -> None:
        """Print where the results are, which runs failed, and what comparing cost.

        Raises:
            SystemExit: With code 1, where a run failed.
        """
        self.write_plan()
        names = "comparison.html, comparison.md, comparison.json"
        print_line(labelled("wrote", f"{self.folder.path}: {names}, runs, logs"))
        if self.plan.overhead_share is not None:
            share = f"{self.plan.overhead_share:.1%}".replace("%", " %")
            print_line(labelled("overhead", f"comparing took {share} of the time of the runs"))
        if self.missing(seeds):
            print_line(labelled("failed", self._failed(seeds)))
            raise SystemExit(1)

    def how_to_continue(self) -> str:
        """Say what was reached, and how to go on."""
        todo = len(self.missing())
        done = len(self.plan.runs()) - todo
        with contextlib.suppress(OSError):
            self.write_plan()
        return (
            f"{done} of {counted(len(self.plan.runs()), 'run')} have ended. The same command goes "
            f"on with the others: --output_dir {self.folder.path}."
        )

    def _failed(self, seeds: int) -> str:
        failed = self.missing(seeds)
        logs = ", ".join(str(self.log(run)) for run in failed)
        return f"{counted(len(failed), 'run')} failed, and the same command runs them again: {logs}"

    def _has_answer(self, run: PlannedRun) -> bool:
        of_arm = [other for other in self.plan.runs() if other.arm == run.arm]
        return any(outcome(self.run_folder(other)).complete for other in of_arm)

    def _count(self, seconds: float) -> None:
        self.plan = replace(self.plan, runs_seconds=self.plan.runs_seconds + seconds)

    def _update(self) -> None:
        """Set the time of comparing: that of this process less what it waited for."""
        waited = self.plan.runs_seconds - self._runs_before
        waited += self.plan.yardstick_seconds - self._yardstick_before
        own = self._own_before + seconds_of_process() - waited
        self.plan = replace(self.plan, own_seconds=own)


@contextlib.contextmanager
def open_comparison(
    command: CompareCommand, folder: Path, plan: Plan, recipe: Path
) -> Iterator[Comparing]:
    """Hold the folder, print and write the plan, and leave nothing running however it ends.

    Args:
        command: What the user asked.
        folder: Of the comparison.
        plan: From `plan_comparison`.
        recipe: classify.py, which trains one run.
    """
    with RunFolder(folder, keep=True) as held:
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "runs").mkdir(exist_ok=True)
        todo = tuple(run for run in plan.runs() if not outcome(folder / "runs" / run.name).complete)
        with Progress(plan, todo) as progress:
            comparing = Comparing(command, held, plan, progress, recipe)
            comparing.write_plan()
            print_line(plan_lines(folder, plan, todo))
            with interruptible(comparing.how_to_continue):
                try:
                    yield comparing
                except OSError as error:
                    if is_unwritable(error):
                        raise InputError(
                            f"--output_dir {folder}: cannot be written ({error}). Free space "
                            "there; the same command goes on."
                        ) from error
                    raise


def is_decided(comparison: Comparison) -> bool:
    """Whether more seeds would change nothing: every mode has a verdict or is unstable."""
    modes = [arm for arm in comparison.arms[1:] if not arm.is_placebo]
    return all(
        arm.status == "unstable"
        or (arm.difference is not None and arm.difference.verdict != UNDECIDED)
        for arm in modes
    )
