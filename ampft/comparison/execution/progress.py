"""Progress of a comparison: one updated line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from ampft.comparison.execution.launchers import EndedProgram
from ampft.comparison.execution.plan import Arm, Plan, PlannedRun
from ampft.text.escaping import inert
from ampft.text.numbers import approximate_duration, percent
from ampft.text.terminal import progress_bar

MAX_SHARE = 0.99  # of a run that has not ended yet


@dataclass
class RunTimeForecast:
    """Expected duration of runs: the estimate, corrected by the runs that have ended."""

    plan: Plan  # Plan with the estimate.
    # Number of runs that have ended, their seconds and their estimated ones, by the flags of their
    # arm.
    ended: dict[tuple[str, ...], tuple[int, float, float]] = field(default_factory=dict)

    def add(self, run: PlannedRun, seconds: float) -> None:
        """Add the duration of a run that finished."""
        count, actual, expected = self.ended.get(run.arm.flags, (0, 0.0, 0.0))
        expected += self.plan.expected_seconds(run)
        self.ended[run.arm.flags] = count + 1, actual + seconds, expected

    def seconds(self, run: PlannedRun) -> float:
        """Return the expected seconds of a run.

        This is the mean of the runs with the same settings. Before any of them has ended, it is the
        estimate times the ratio of actual to estimated seconds of the runs that have ended.
        """
        if run.arm.flags in self.ended:
            count, seconds, _ = self.ended[run.arm.flags]
            return seconds / count
        actual = sum(seconds for _, seconds, _ in self.ended.values())
        expected = sum(seconds for _, _, seconds in self.ended.values())
        return self.plan.expected_seconds(run) * (actual / expected if expected else 1.0)


class HistoryTail:
    """Counts the optimizer steps of a running run, reading each byte of its history once."""

    def __init__(self, path: Path) -> None:
        """Count in `path`, a history.jsonl that need not exist yet.

        Existing lines were written by an earlier run and do not count.
        """
        self._path = path
        self._steps = 0
        self._identity, self._offset = self._stat()

    def steps(self) -> int:
        """Return the optimizer steps so far."""
        identity, size = self._stat()
        if identity != self._identity or size < self._offset:
            self._identity, self._offset, self._steps = identity, 0, 0
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return self._steps
        self._offset += len(new)
        self._steps += new.count(b"\n")
        return self._steps

    def _stat(self) -> tuple[tuple[int, int], int]:
        """Return the device and inode that identify the file, and its size in bytes."""
        try:
            stat = self._path.stat()
        except OSError:
            return (0, 0), 0
        return (stat.st_dev, stat.st_ino), stat.st_size


class Progress:
    """The progress display, a context manager."""

    def __init__(self, plan: Plan, todo: tuple[PlannedRun, ...]) -> None:
        """Show `todo`, the remaining runs of the plan."""
        self._pace = RunTimeForecast(plan)
        self.follow(plan, todo)
        self._bar = progress_bar(total=1, bar_format="{desc}", leave=False)
        self._running: dict[PlannedRun, tuple[HistoryTail, float]] = {}
        self._refreshed = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def follow(self, plan: Plan, todo: tuple[PlannedRun, ...]) -> None:
        """Show the runs of a plan in which an arm was chosen."""
        self._plan = self._pace.plan = plan
        self._todo = dict.fromkeys(todo)
        self._left = Counter(run.arm for run in todo)
        self._numbers = {run: number for number, run in enumerate(plan.all_runs(), start=1)}

    def start(self, run: PlannedRun, history: Path) -> None:
        """Start showing a run whose history grows at `history`."""
        self._running[run] = HistoryTail(history), time.perf_counter()
        self._refreshed = 0.0
        self.watch()

    def watch(self) -> None:
        """Show the progress of the runs, about once a second."""
        now = time.perf_counter()
        if self._bar.disable or now - self._refreshed < 1 or not self._running:
            return
        self._refreshed = now
        states = [(run, tail.steps(), now - at) for run, (tail, at) in self._running.items()]
        self._bar.set_description_str(self.line(*states))

    def line(self, *states: tuple[PlannedRun, int, float]) -> str:
        """Return the line for runs, each with its optimizer steps and seconds so far."""
        running = {run for run, _, _ in states}
        left = self._seconds(Counter(run.arm for run in self._todo if run not in running))
        left += sum(max(self._pace.seconds(run) - seconds, 0.0) for run, _, seconds in states)
        shown = "; ".join(self._state(run, steps) for run, steps, _ in states)
        return f"{shown}, {approximate_duration(left / self._plan.design.jobs)} left"

    def finish(self, run: PlannedRun, end: EndedProgram, summary: str, *, finished: bool) -> str:
        """Return the line for a run that ended."""
        del self._running[run]
        if run in self._todo:
            del self._todo[run]
            self._left[run.arm] -= 1
        if finished:
            self._pace.add(run, end.seconds)
        later = self._seconds(self._left) / self._plan.design.jobs
        left = f"; about {approximate_duration(later)} left" if self._todo else ""
        node = f" on {inert(end.node)}" if end.node is not None else ""
        return f"{self._heading(run)}: {summary}, {end.seconds:.0f} s{node}{left}"

    def _state(self, run: PlannedRun, steps: int) -> str:
        size, estimate = self._plan.size_of(run.arm), self._plan.estimate_of(run.arm)
        total, per_epoch = estimate.total_steps(size), estimate.steps_per_epoch(size)
        epoch, epochs = min(steps, total - 1) // per_epoch + 1, -(-total // per_epoch)
        done = min(MAX_SHARE, max(steps / total * MAX_SHARE, 0.0))
        return f"{self._heading(run)}, epoch {epoch}/{epochs}, {percent(done)}"

    def _heading(self, run: PlannedRun) -> str:
        return f"run {self._numbers[run]}/{len(self._numbers)} {run.title}"

    def _seconds(self, runs: Counter[Arm]) -> float:
        return sum(n * self._pace.seconds(PlannedRun(arm, 0)) for arm, n in runs.items())
