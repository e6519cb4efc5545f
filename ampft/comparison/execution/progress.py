"""Progress of a comparison: one updated line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ampft.comparison.execution.launchers import Ended
from ampft.comparison.execution.plan import Plan, PlannedRun
from ampft.text.escaping import inert
from ampft.text.numbers import approximate_duration, percent
from ampft.text.progress import progress_bar

MAX_SHARE = 0.99  # of a run that has not ended yet


@dataclass
class Pace:
    """Expected duration of runs: the estimate, corrected by the runs that have ended.

    Attributes:
        plan: Plan with the estimate.
        durations: Runs that have ended with their seconds, by the flags of their arm.
    """

    plan: Plan
    durations: dict[tuple[str, ...], list[tuple[PlannedRun, float]]] = field(default_factory=dict)

    def add(self, run: PlannedRun, seconds: float) -> None:
        """Add the duration of a run that finished."""
        self.durations.setdefault(run.arm.flags, []).append((run, seconds))

    def seconds(self, run: PlannedRun) -> float:
        """Return the expected seconds of a run.

        This is the mean of the runs with the same settings. Before any of them has ended, it is the
        estimate times the ratio of actual to estimated seconds of the runs that have ended.
        """
        durations = self.durations.get(run.arm.flags)
        if durations:
            return sum(seconds for _, seconds in durations) / len(durations)
        ended = [each for runs in self.durations.values() for each in runs]
        actual = sum(seconds for _, seconds in ended)
        expected = sum(self.plan.expected_seconds(other) for other, _ in ended)
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
        self._plan = plan
        self._pace = Pace(plan)
        self._todo = list(todo)
        self._total = len(plan.all_runs())
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
        self._todo, self._total = list(todo), len(plan.all_runs())

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
        left = self._seconds([run for run in self._todo if run not in running])
        left += sum(max(self._pace.seconds(run) - seconds, 0.0) for run, _, seconds in states)
        shown = "; ".join(self._state(run, steps) for run, steps, _ in states)
        return f"{shown}, {approximate_duration(left / self._plan.design.jobs)} left"

    def finish(self, run: PlannedRun, end: Ended, summary: str, *, finished: bool) -> str:
        """Return the line for a run that ended."""
        del self._running[run]
        self._todo = [other for other in self._todo if other != run]
        if finished:
            self._pace.add(run, end.seconds)
        later = self._seconds(self._todo) / self._plan.design.jobs
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
        number = self._plan.all_runs().index(run) + 1
        return f"run {number}/{self._total} {run.title}"

    def _seconds(self, runs: Iterable[PlannedRun]) -> float:
        return sum(map(self._pace.seconds, runs))
