"""Notices that other programs use the cores of a training on a CPU, before its first step."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from ampft.features.feature import Feature, StepRecord, Write
from ampft.text.terminal import labelled

SECONDS = 3.0  # between two looks
# Two threads without other programs get 1.6 to 2 cores; with a busy loop on each core, 1.0.
LEAST_SHARE, LEAST_USED = 0.65, 0.9


@dataclass(frozen=True)
class CpuTime:
    """Seconds since any moment."""

    wall: float
    own: float  # Processor time of this process, in all its threads.
    all: float  # Processor time of all programs, on all cores, and of other virtual machines.

    @classmethod
    def now(cls) -> CpuTime:
        names = ("user", "nice", "system", "irq", "softirq", "steal")  # not idle, not guests twice
        times = psutil.cpu_times()
        used = sum(getattr(times, name, 0.0) for name in names)
        return cls(time.perf_counter(), time.process_time(), used)


def contention_note(before: CpuTime, now: CpuTime, *, threads: int, cores: int) -> str | None:
    """Return what to do if other programs take the cores of several threads; None if they do not.

    Threads that share a product wait for each other. If one of them is not running, the others
    wait for its next turn, so that several threads can be ten times as slow as one.
    """
    wall = now.wall - before.wall
    own, used = (now.own - before.own) / wall, (now.all - before.all) / wall
    if threads < 2 or used < LEAST_USED * cores or own >= LEAST_SHARE * min(threads, cores):
        return None
    return (
        f"other programs use the cores: {threads} threads get the time of {own:.1f} of {cores} "
        "cores, and threads that wait for each other can be many times slower than one. Start "
        "again with OMP_WAIT_POLICY=passive, so that waiting threads sleep (the results are the "
        "same), or when the others have ended."
    )


@dataclass
class ContentionMonitor(Feature):
    """Prints `contention_note` once, as soon as it holds, while preparing or in a step."""

    name = "contention"

    threads: int  # CPU threads of this process.
    before: CpuTime  # Times at the last look; at first, when the preparation began.
    write: Write
    _is_told: bool = False

    def begin(self) -> None:
        """Look at the preparation, which also multiplies matrices."""
        self._look()

    def after_step(self, record: StepRecord) -> Mapping[str, float | None]:
        """Look at the steps since the last look."""
        self._look()
        return {}

    def _look(self) -> None:
        sleep = os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
        if sleep or self._is_told or time.perf_counter() - self.before.wall < SECONDS:
            return
        now, cores = CpuTime.now(), psutil.cpu_count() or 1
        note = contention_note(self.before, now, threads=self.threads, cores=cores)
        self.before = now
        if note is not None:
            self._is_told = True
            self.write(labelled("threads", note))
