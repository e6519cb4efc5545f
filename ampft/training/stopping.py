"""What ends a training before its last step: signals and a time limit."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass
class TimeLimit:
    """A limit on the duration of a training, on which all processes agree.

    Attributes:
        seconds: The limit; None for none.
        started: `time.perf_counter()` at the start of this process.
        earlier: Seconds that the run took before it was resumed in this process.
        is_reached: Whether a process has seen the limit pass when all processes polled.
    """

    seconds: float | None
    started: float
    earlier: float = 0.0
    is_reached: bool = False

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the run, without those between its processes."""
        return self.earlier + time.perf_counter() - self.started

    def poll(self, accelerator: Accelerator) -> None:
        """Update `is_reached`; all processes must call it at the same point."""
        if self.seconds is None:
            return
        reached = torch.tensor([self.elapsed >= self.seconds], device=accelerator.device)
        self.is_reached = bool(accelerator.gather(reached).any())


@contextlib.contextmanager
def raise_on_termination() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `SystemExit`, so that the end of the run is recorded.

    SIGHUP, which a closed terminal sends, stays ignored under `nohup`. Only the main thread can
    receive signals; in any other, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)  # as shells count

    numbers = [signal.SIGTERM, *filter(None, [getattr(signal, "SIGHUP", None)])]
    previous = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if number == signal.SIGTERM or previous[number] != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, previous[number])
