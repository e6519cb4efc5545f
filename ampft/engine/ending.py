"""Ends training: by a signal or a time limit, and without leaving another process waiting."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import distributed_c10d

from ampft.errors import AlreadyFinished, OtherProcessFailed, TrainingStopped
from ampft.processes import LAUNCHER_VARIABLES
from ampft.signals import StopRequested, handling, raise_if_heard
from ampft.text.terminal import print_line

if TYPE_CHECKING:
    from accelerate import Accelerator, PartialState

# Launchers forward a signal that a terminal or a scheduler has sent to all processes already.
REPEATED_SECONDS = 1.0
STANDARD_ERROR = 2
SECONDS_BETWEEN_LOOKS = 1.0
STOPPING = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
# Windows lacks the last two.
SIGNALS = tuple(int(getattr(signal, name)) for name in STOPPING if hasattr(signal, name))


# What follows the first signal, in words.
AFTER_STEP = "stopping after this step"
AFTER_BATCH = "stopping after this batch of the evaluation"
FINISHING = "finishing, because the training has ended and its results are being written"
# Exit codes after a signal, as shells count, and their signals.
_LEFT_BY = {128 + each: each.name for each in signal.Signals if each.name in (*STOPPING, "SIGHUP")}


@dataclass
class TimeLimit:
    """A limit on the duration of a training, on which all processes agree."""

    seconds: float | None  # The limit; None for none.
    started: float  # `time.perf_counter()` at the start of this process.
    earlier: float = 0.0  # Seconds that the run took before it was resumed in this process.
    reserved: float = 0.0  # Seconds that the rest of the run needs after the training.
    is_reached: bool = False  # Whether a process has seen the limit pass when all processes polled.

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the run, without those between its processes."""
        return self.earlier + time.perf_counter() - self.started

    @property
    def left(self) -> float | None:
        """Seconds until the limit, without what is reserved; None without a limit."""
        return None if self.seconds is None else self.seconds - self.elapsed - self.reserved

    @property
    def has_passed(self) -> bool:
        """Whether the training must end in this process, so that the run ends within the limit."""
        return self.left is not None and self.left <= 0


@dataclass
class StopSignalMonitor:
    """Watches for a signal to stop training; all processes agree on it when they poll."""

    accelerator: Accelerator  # Accelerator of the training.
    received: int = 0  # Number of the first signal that this process has received; 0 for none.
    response: str = AFTER_STEP  # What follows the first signal, in words.
    _received_at: float = field(default=0.0, repr=False)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Turn signals into a request, inside this context.

        SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 ask for a stop at the next poll. A second signal raises
        `SystemExit` at once, with the exit code that shells use. So does SIGHUP, which a closed
        terminal sends, unless it is ignored as under `nohup`. The death of the launcher counts as
        SIGTERM: `accelerate launch` forwards no signal, and nothing can forward SIGKILL.
        """
        raise_if_heard()
        with (
            handling(STOPPING, self._receive),
            handling(("SIGHUP",), _leave),
            _terminated_with_launcher(),
        ):
            yield

    @contextlib.contextmanager
    def responding(self, response: str) -> Iterator[None]:
        """Say in this context that something else follows the first signal.

        Args:
            response: What follows it, in words.
        """
        before, self.response = self.response, response
        try:
            yield
        finally:
            self.response = before

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
                text = f"\n{name}: {self.response}; a second signal leaves at once\n"
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


_FAILURE = "ampft/failure"  # key in the store of the process group
POLL_SECONDS = 0.5
# In this time most processes see by themselves that another has failed, and the one that failed
# has printed its error.
GRACE_SECONDS = 10.0

# Process groups that have been destroyed, which this process keeps until its end.
_ended_groups: list[object] = []


def end_training(accelerator: Accelerator) -> None:
    """Finish the trackers and destroy the process group. All processes call it together.

    `DistributedDataParallel` also holds the group. If the model were the last to hold it, the
    destructor of Gloo's group would run with Python's lock, and wait for a thread that still
    releases the tensors of the last collective operation, for which it needs that lock:
    https://github.com/pytorch/pytorch/issues/56297 (seen in torch 2.13, about once in 30 runs on
    a busy machine).
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _ended_groups.append(torch.distributed.group.WORLD)
    accelerator.end_training()


# What Gloo and NCCL say in a process that waits for one whose connection has ended.
_CONNECTION_ENDED = ("closed by peer", "reset by peer", "Broken pipe", "ncclRemoteError")
LOST = "another process ended without giving a reason; its output or the system's log may have it"


def report_first_failure(
    accelerator: Accelerator | PartialState, error: BaseException
) -> tuple[str, str]:
    """Report a failure of this process; return status and reason of the first one to fail.

    When one process fails, the others see only that a connection was closed. The reason is passed
    on through the store of the process group, which needs no other process to take part.
    """
    status = error.status if isinstance(error, TrainingStopped) else "interrupted"
    reason = str(error) if isinstance(error, TrainingStopped) else _text(error)
    if accelerator.num_processes == 1:
        return status, reason
    if isinstance(error, RuntimeError) and any(text in reason for text in _CONNECTION_ENDED):
        reason = LOST
    own = json.dumps([accelerator.process_index, status, reason])
    try:
        first = distributed_c10d._get_default_store().compare_set(_FAILURE, "", own)
    except (RuntimeError, ValueError):  # the store or the group has ended
        return status, reason
    process, status, first_reason = json.loads(first)
    if process == accelerator.process_index or first_reason == reason:  # of all processes together
        return status, reason
    return status, f"process {process} failed first: {first_reason}"


def raise_failure_of_other(error: BaseException, reason: str) -> None:
    """Raise the reason in place of an error that only follows from it.

    Args:
        error: Error of this process.
        reason: Reason of the first process to fail, as `report_first_failure` returns it.

    Raises:
        OtherProcessFailed: This process lost the connection to another one, which failed first.
    """
    if isinstance(error, RuntimeError) and reason != _text(error):
        raise OtherProcessFailed(reason) from error


def _text(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT.name
    if isinstance(error, SystemExit) and error.code in _LEFT_BY:
        return _LEFT_BY[error.code]
    return f"{type(error).__name__}: {error}"


@contextmanager
def exit_if_others_fail(
    accelerator: Accelerator | PartialState, record_stop: Callable[[str, str], None]
) -> Iterator[None]:
    """End this process if another one fails while this one waits for it.

    A collective operation of NCCL blocks in C++ until its timeout of ten minutes, where neither an
    exception nor a signal reaches Python. A thread therefore asks the store for a failure that
    another process has reported by `report_first_failure`. If this process is still in the context
    `GRACE_SECONDS` later, it exits with code 1, without cleaning up. It does so too if the store
    has ended, and with it the process that hosts it.

    Args:
        accelerator: Accelerator of this process; with only one process, nothing is watched.
        record_stop: Called with status and reason before this process ends.
    """
    if accelerator.num_processes == 1:
        yield
        return
    # A connection of its own, because the main thread may be waiting for an answer on the other.
    default: Any = distributed_c10d._get_default_store()  # torch's stubs lack `clone`
    store = default.clone()
    has_left = threading.Event()

    def watch() -> None:
        status, reason = "interrupted", "the process that hosts the process group's store has ended"
        while not has_left.wait(POLL_SECONDS):
            try:
                if not store.check([_FAILURE]):
                    continue
                process, status, reason = json.loads(store.get(_FAILURE))
                reason = f"process {process} failed first: {reason}"
            except (RuntimeError, ValueError):  # the store has ended
                pass
            break
        if has_left.wait(GRACE_SECONDS):
            return
        try:
            record_stop(status, reason)
            rank = accelerator.process_index
            print_line(f"[rank {rank}] error: {reason}", file=sys.stderr)
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="exit_if_others_fail", daemon=True).start()
    try:
        yield
    finally:
        has_left.set()


@contextmanager
def exit_together_on_failure(state: PartialState) -> Iterator[None]:
    """End all processes within seconds if one fails inside this context, before its training.

    Otherwise, the others would wait for it until a timeout, unless a launcher ends them.

    Args:
        state: State of this process, whose group exists.

    Raises:
        OtherProcessFailed: This process lost its connection because another one failed first.
    """
    with exit_if_others_fail(state, lambda status, reason: None):
        try:
            yield
        except AlreadyFinished:  # of all processes alike, and not a failure
            raise
        except BaseException as error:
            raise_failure_of_other(error, report_first_failure(state, error)[1])
            raise
