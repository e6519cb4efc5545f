"""One display for the whole comparison: a line that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tqdm import tqdm

from ampft.comparison.execution.plan import Plan, PlannedRun
from ampft.text.numbers import about

MOST = 0.99  # of a run, before it has ended


@dataclass
class Pace:
    """How long runs take: as estimated, corrected by those that ended.

    Attributes:
        plan: With the estimate.
        took: Seconds of the ended runs, by mode.
    """

    plan: Plan
    took: dict[str, list[float]] = field(default_factory=dict)

    def ended(self, run: PlannedRun, seconds: float) -> None:
        """Count a run that ran to its end."""
        self.took.setdefault(run.arm.mode, []).append(seconds)

    def seconds(self, run: PlannedRun) -> float:
        """Return what a run will take: its mode's mean, else its estimate times the others' error.

        The error is the ratio of what ended runs took to what was estimated for them.
        """
        own = self.took.get(run.arm.mode)
        if own:
            return sum(own) / len(own)
        real = sum(sum(seconds) for seconds in self.took.values())
        expected = sum(
            len(seconds) * self.plan.estimate.run_seconds(mode, self.plan.size)
            for mode, seconds in self.took.items()
        )
        return self.plan.expected_seconds(run) * (real / expected if expected else 1.0)


class HistoryTail:
    """Counts the optimizer steps of a run that is going on, reading each byte once."""

    def __init__(self, path: Path) -> None:
        """Count in `path`, a history.jsonl that need not exist yet.

        What is there already was written by an earlier run, and does not count.
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
        """Return what tells the file from the one before it, and its size in bytes."""
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0), 0
        return (found.st_dev, found.st_ino), found.st_size


class Progress:
    """The display; use it as a context."""

    def __init__(self, plan: Plan, todo: tuple[PlannedRun, ...]) -> None:
        """Show `todo`, the runs of the plan that are to come."""
        self._plan = plan
        self._pace = Pace(plan)
        self._todo = list(todo)
        self._total = len(plan.runs())
        self._bar = tqdm(total=1, bar_format="{desc}", disable=None, file=sys.stderr, leave=False)
        self._started = time.perf_counter()
        self._shown = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()

    def begin(self, run: PlannedRun, folder: Path) -> None:
        """A run begins in `folder`."""
        self._run, self._tail = run, HistoryTail(folder / "history.jsonl")
        self._started, self._shown = time.perf_counter(), 0.0
        self.watch()

    def watch(self) -> None:
        """Show how far the run is, about once a second."""
        now = time.perf_counter()
        if self._bar.disable or now - self._shown < 1:
            return
        self._shown = now
        self._bar.set_description_str(self.line(self._tail.steps(), now - self._started))

    def line(self, steps: int, seconds: float) -> str:
        """Return the display of a run after `steps` steps and `seconds` seconds."""
        size, estimate = self._plan.size, self._plan.estimate
        total, per_epoch = estimate.total_steps(size), estimate.steps_per_epoch(size)
        epoch, epochs = min(steps, total - 1) // per_epoch + 1, -(-total // per_epoch)
        here = self._pace.seconds(self._run)
        done = min(MOST, max(steps / total * MOST, 0.0))
        return (
            f"{self._heading()}, epoch {epoch}/{epochs}, {done:.0%}, "
            f"{about(max(here - seconds, 0.0) + self._later())} left"
        ).replace("%", " %")

    def end(self, seconds: float, words: str, *, complete: bool) -> str:
        """Return the line of the run that ended after `seconds`."""
        heading = self._heading()
        self._todo = [run for run in self._todo if run != self._run]
        if complete:
            self._pace.ended(self._run, seconds)
        later = f"; about {about(self._later())} left" if self._todo else ""
        return f"{heading}: {words}, {seconds:.0f} s{later}"

    def _heading(self) -> str:
        number = self._plan.runs().index(self._run) + 1
        return f"run {number}/{self._total} {self._run.arm.name} seed {self._run.seed}"

    def _later(self) -> float:
        """Return the seconds of the runs after this one."""
        return sum(self._pace.seconds(run) for run in self._todo if run != self._run)
