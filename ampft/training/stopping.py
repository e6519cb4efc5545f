"""What ends a training before its last step, agreed on by all processes: signals, a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelerate import Accelerator

# Launchers forward a signal that a terminal or a scheduler has sent to all processes already.
REPEATED_SECONDS = 1.0
STANDARD_ERROR = 2
# Variables that `accelerate launch` and torchrun set for the processes that they start.
LAUNCHER_VARIABLES = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID")
SECONDS_BETWEEN_LOOKS = 1.0
STOPPING = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
# Windows lacks the last two.
SIGNALS = tuple(int(getattr(signal, name)) for name in STOPPING if hasattr(signal, name))


class StopRequested(Exception):
    """A process received a signal that asks it to stop; raised in all processes together."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)

    def __str__(self) -> str:
        return self.signal.name


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

    @property
    def has_passed(self) -> bool:
        """Whether this process has reached the limit."""
        return self.seconds is not None and self.elapsed >= self.seconds


@dataclass
class StopRequest:
    """A request to stop, by a signal, on which all processes agree when they poll.

    Attributes:
        accelerator: Accelerator of the training.
        received: Number of the first signal that this process has received; 0 for none.
    """

    accelerator: Accelerator
    received: int = 0
    _received_at: float = field(default=0.0, repr=False)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Turn signals into a request, inside this context.

        SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 ask for a stop at the next poll. A second signal raises
        `SystemExit` at once, with the exit code that shells use. So does SIGHUP, which a closed
        terminal sends, unless it is ignored as under `nohup`. The death of the launcher counts as
        SIGTERM: `accelerate launch` forwards no signal, and nothing can forward SIGKILL.
        """
        with (
            _handling(STOPPING, self._receive),
            _handling(("SIGHUP",), _leave),
            _terminated_with_launcher(),
        ):
            yield

    def votes(self, time_limit: TimeLimit) -> list[float]:
        """Return what this process contributes to `decide`; empty if it is the only process.

        Args:
            time_limit: Time limit, which counts if this process has reached it.
        """
        if self.accelerator.num_processes == 1:
            return []
        signals = [float(self.received == number) for number in SIGNALS]
        return [*signals, float(time_limit.has_passed)]

    def decide(self, votes: Sequence[float], time_limit: TimeLimit) -> None:
        """Raise if a process has voted for a stop; update the time limit.

        Args:
            votes: Sums of `votes` over all processes; without any, the processes communicate here.
            time_limit: Time limit to update.

        Raises:
            StopRequested: A process had received a signal when it voted.
        """
        if not votes:
            self.poll(time_limit)
            return
        *signals, limit = votes
        time_limit.is_reached = limit > 0
        received = [number for number, count in zip(SIGNALS, signals, strict=True) if count > 0]
        if received:
            raise StopRequested(max(received))

    def poll(self, time_limit: TimeLimit | None = None) -> None:
        """Raise if a process has received a signal; all processes must call it together.

        Args:
            time_limit: Time limit to update; None between training steps, when it does not count.

        Raises:
            StopRequested: A process has received a signal.
        """
        flags = [self.received, int(time_limit is not None and time_limit.has_passed)]
        if self.accelerator.num_processes > 1:
            local = torch.tensor([flags], device=self.accelerator.device)
            flags = self.accelerator.gather(local).amax(dim=0).tolist()
        number, limit_has_passed = flags
        if time_limit is not None:
            time_limit.is_reached = bool(limit_has_passed)
        if number:
            raise StopRequested(number)

    def _receive(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if not self.received:
            self.received, self._received_at = number, now
            if self.accelerator.is_main_process:
                name = signal.Signals(number).name
                text = f"\n{name}: stopping after this step; a second signal leaves at once\n"
                # Not `print`, which the signal may have interrupted.
                with contextlib.suppress(OSError):
                    os.write(STANDARD_ERROR, text.encode())
        elif now - self._received_at >= REPEATED_SECONDS:
            _leave(number, frame)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)  # as shells count


@contextlib.contextmanager
def _terminated_with_launcher() -> Iterator[None]:
    """Send SIGTERM to this process if the launcher that started it ends inside this context."""
    launcher, is_over = os.getppid(), threading.Event()

    def watch() -> None:
        while not is_over.wait(SECONDS_BETWEEN_LOOKS):
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and any(name in os.environ for name in LAUNCHER_VARIABLES):
        threading.Thread(target=watch, name="launcher-watch", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


@contextlib.contextmanager
def _handling(names: tuple[str, ...], handler: Callable[[int, object], None]) -> Iterator[None]:
    """Handle signals inside this context; one that was ignored stays ignored, except SIGTERM.

    Only the main thread can receive signals; in any other, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = [getattr(signal, name) for name in names if hasattr(signal, name)]
    previous = {number: signal.getsignal(number) for number in known}
    for number in known:
        if number == signal.SIGTERM or previous[number] != signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number in known:
            signal.signal(number, previous[number])
