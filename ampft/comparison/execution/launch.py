"""Launch the processes of a comparison in slots, and wait for them.

A slot is what each run has to itself: the machine, or side by side with others its GPUs or cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import psutil
from filelock import lock_descriptor, unlock_descriptor

from ampft.arguments.compare import CompareCommand
from ampft.comparison.execution.warm_process import MOST_BYTES
from ampft.errors import InputError, Preempted
from ampft.machine import available_memory_bytes
from ampft.ownership import is_plain_file
from ampft.processes import Child, Process, running, start_child
from ampft.signals import handling, raise_if_heard
from ampft.text.numbers import byte_size, byte_sizes, counted
from ampft.text.terminal import labelled, print_line

POLL_SECONDS = 0.5
FIRST_PORT = 29500  # of the processes of one run, as in torchrun
FIRST_LINE = b"log of ampft, replaced when the command is repeated\n"


@dataclass(frozen=True)
class ResourceSlot:
    """The cores and GPUs that one run at a time has to itself."""

    number: int = 0  # Its position, from 0.
    cores: tuple[int, ...] = ()  # Logical cores to which its processes are pinned; empty for all.
    # Environment variables that its processes receive in addition.
    environment: Mapping[str, str] = field(default_factory=dict)
    launcher_flags: tuple[str, ...] = ()  # Flags of `accelerate launch`.


WHOLE_MACHINE = ResourceSlot()


def command_slots(command: CompareCommand) -> tuple[ResourceSlot, ...]:
    """Return the slots that a command asks for, as `make_slots` does."""
    design = command.design
    return make_slots(
        design.jobs, gpus_per_run=design.gpus_per_run, use_cpu=command.classify.use_cpu
    )


def make_slots(
    jobs: int, *, gpus_per_run: int = 1, use_cpu: bool = False
) -> tuple[ResourceSlot, ...]:
    """Return a slot for each run that trains at the same time.

    A single slot is the whole machine. Several have equal shares: of the GPUs that are visible to
    this process, or without a GPU of the cores that it may use. Cores that are left over stay idle.

    Args:
        jobs: Number of runs that train at the same time.
        use_cpu: Whether the runs train on the CPU although there may be a GPU.

    Raises:
        InputError: There are too few GPUs or cores.
    """
    if jobs == 1:
        return (WHOLE_MACHINE,)
    gpus = [] if use_cpu else visible_gpus()
    if gpus:
        return _gpu_slots(jobs, gpus_per_run, gpus)
    if not hasattr(os, "sched_setaffinity"):
        raise InputError(
            f"--jobs {jobs}: this system cannot pin a process to cores, so runs would share them. "
            "Train one run at a time."
        )
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // jobs
    if share < 1:
        raise InputError(
            f"--jobs {jobs}: this process may use {counted(len(cores), 'core')}, and each run "
            f"needs one of its own. Use at most --jobs {len(cores)}."
        )
    return tuple(
        ResourceSlot(number, tuple(cores[number * share : (number + 1) * share]))
        for number in range(jobs)
    )


def visible_gpus() -> list[str]:
    """Return the CUDA devices that this process may use, as in `CUDA_VISIBLE_DEVICES`."""
    import torch  # only if several runs are asked for

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[:count] or [str(number) for number in range(count)]


def _gpu_slots(jobs: int, gpus_per_run: int, gpus: Sequence[str]) -> tuple[ResourceSlot, ...]:
    if jobs * gpus_per_run > len(gpus):
        raise InputError(
            f"--jobs {jobs}: with {counted(gpus_per_run, 'GPU')} each, the runs need "
            f"{jobs * gpus_per_run}, but {len(gpus)} are visible. Use at most --jobs "
            f"{max(1, len(gpus) // gpus_per_run)}."
        )
    slots = []
    for number in range(jobs):
        own = gpus[number * gpus_per_run : (number + 1) * gpus_per_run]
        # Several processes of a run meet at a port, which no other run may use.
        port = ("--main_process_port", str(FIRST_PORT + number)) if gpus_per_run > 1 else ()
        slots.append(
            ResourceSlot(number, (), {"CUDA_VISIBLE_DEVICES": ",".join(own)}, launcher_flags=port)
        )
    return tuple(slots)


def check_memory(jobs: int, peak_bytes: int) -> None:
    """Check that the runs fit into the memory that is available now.

    Args:
        jobs: Number of runs that train at the same time.
        peak_bytes: Peak memory of one run in bytes; 0 if it is unknown.

    Raises:
        InputError: They do not fit.
    """
    available = available_memory_bytes()
    if jobs > 1 and jobs * peak_bytes > available:
        needs, has = byte_sizes(jobs * peak_bytes, available)
        fitting = max(1, available // peak_bytes)
        raise InputError(
            f"--jobs {jobs}: a run needs about {byte_size(peak_bytes)} of memory, so {jobs} need "
            f"{needs}, but {has} are available. Use at most --jobs {fitting}."
        )


class EngineLost(Exception):
    """What trains the runs is gone; the message says what. The same command continues."""


def launch_command(
    config_file: str | None, *argv: str, launcher_flags: Sequence[str] = ()
) -> list[str]:
    """Return the words after `python` that start a script, or `-m` and a module, by Accelerate.

    A run sets its precision by its own flag. The launcher receives `no`, which counts as unset, so
    that neither its configuration file nor the environment conflicts with the flag.

    Args:
        config_file: Configuration file of Accelerate; None for none.
        argv: Script, or `-m` and a module, and its arguments.
    """
    config = ("--config_file", config_file) if config_file is not None else ()
    launcher = ("-m", "accelerate.commands.launch")
    return [*launcher, *config, *launcher_flags, "--mixed_precision", "no", *argv]


class ForkedProgram:
    """A program in a fork, as a `Process`."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over from the process that answers through `connection`.

        Raises:
            OSError: That process has ended.
        """
        self._connection = connection
        self._code: int | None = None
        self.pid = int(self._answer(None)["pid"])  # Its process id.

    def wait(self, timeout: float) -> int:
        """Return the exit code; without one, because its parent was killed, -9.

        Raises:
            subprocess.TimeoutExpired: It is still running.
        """
        if self._code is None:
            try:
                self._code = int(self._answer(timeout)["code"])
            except TimeoutError:
                raise subprocess.TimeoutExpired(str(self.pid), timeout) from None
            except OSError:
                self._wait_for_orphan(timeout)
                self._code = -9
        return self._code

    def _wait_for_orphan(self, timeout: float) -> None:
        try:
            psutil.Process(self.pid).wait(timeout)
        except psutil.NoSuchProcess:
            return
        except psutil.TimeoutExpired:
            raise subprocess.TimeoutExpired(str(self.pid), timeout) from None

    def _answer(self, timeout: float | None) -> dict[str, int]:
        self._connection.settimeout(timeout)
        body = self._connection.recv(MOST_BYTES)
        if not body:
            raise ConnectionError
        return dict(json.loads(body))


def run_command(
    words: Sequence[str], log: Path, slot: ResourceSlot = WHOLE_MACHINE
) -> tuple[int, float]:
    """Run a measurement in a slot, which ends with this process; see `supervise`."""
    return supervise(lambda output: start_command(words, output, slot, follows=True), log)


def start_command(
    words: Sequence[str],
    output: BinaryIO | int,
    slot: ResourceSlot,
    *,
    is_safe: bool = True,
    follows: bool = False,
) -> Child:
    """Start a script or a module in a slot; see `start_child`."""
    with _pinned(slot.cores):
        return start_child(
            words, output=output, environment=slot.environment, is_safe=is_safe, follows=follows
        )


def supervise(
    start: Callable[[BinaryIO], Process], log: Path, watch: Callable[[], None] | None = None
) -> tuple[int, float]:
    """Start a process with its output in `log`; return its exit code and its duration in seconds.

    Neither it nor a child of it outlives this call. After an exception such as Ctrl-C, all of them
    are terminated first.

    Args:
        log: File for standard output and standard error.
        watch: Callback, called about twice a second while the process runs.

    Raises:
        InputError: A process of an earlier comparison still writes to `log`.
    """
    started = time.perf_counter()
    with locked_log(log) as output:
        code = None
        with running(lambda: start(output)) as process:
            while code is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(POLL_SECONDS)
                if code is None and watch is not None:
                    watch()
    return code, time.perf_counter() - started


@contextlib.contextmanager
def _pinned(cores: Collection[int]) -> Iterator[None]:
    """Pin this thread, whose mask the processes that it starts inherit from their first moment."""
    before = os.sched_getaffinity(0) if cores else set()
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        if before:
            os.sched_setaffinity(0, before)


def wait_for_runs_left(logs: Path) -> float:
    """Wait for runs with a log in `logs` that outlived their comparison; return the seconds.

    Their results count, and no second run starts beside them.
    """
    started = time.perf_counter()
    for log in logs_in(logs):
        told = False
        with log.open("ab") as file:
            while not lock_descriptor(file.fileno(), blocking=False):
                if not told:
                    writers = " ".join(map(str, _writers(log))) or "on another machine"
                    text = "still running, although its comparison was killed"
                    text = f"{log.stem}: {text} (process {writers}); waiting for it"
                    print_line(labelled("left", text))
                    told = True
                time.sleep(POLL_SECONDS)
            unlock_descriptor(file.fileno())
    return time.perf_counter() - started


def check_no_process_left(logs: Iterable[Path], own: Collection[Path] = ()) -> None:
    """Check that no process of a killed comparison is still running.

    Args:
        own: Logs of runs that this process has started.

    Raises:
        InputError: A process still writes to one of the logs. Nothing was changed.
    """
    for log in logs:
        if log in own or not is_plain_file(log):
            continue
        with log.open("ab") as file:
            _lock(file, log)
            unlock_descriptor(file.fileno())


def logs_in(folder: Path) -> list[Path]:
    """Return the logs in a folder, by name."""
    return [log for log in sorted(folder.glob("*.log")) if is_plain_file(log)]


@contextlib.contextmanager
def locked_log(log: Path) -> Iterator[BinaryIO]:
    """Yield the emptied log, locked by this process and by its children, whose output it is.

    If this process is killed, the lock lasts until the last of its children has ended.

    Raises:
        InputError: The file is not a log of this program.
    """
    _refuse_foreign(log)
    with log.open("ab") as output:
        _lock(output, log)
        output.truncate(0)
        output.write(FIRST_LINE)
        output.flush()
        try:
            yield output
        finally:
            unlock_descriptor(output.fileno())  # a daemon left behind by a run would keep the lock


def _refuse_foreign(log: Path) -> None:
    if not os.path.lexists(log):
        log.open("xb").close()
    elif is_plain_file(log):
        with log.open("rb") as file:
            if file.read(len(FIRST_LINE)) in (FIRST_LINE, b""):
                return
    if not is_plain_file(log) or log.stat().st_size:
        raise InputError(
            f"{log}: this is not a log that a comparison of this version wrote, so it is not "
            "replaced. Move it, then repeat the command."
        )


def _lock(file: BinaryIO, log: Path) -> None:
    if not lock_descriptor(file.fileno(), blocking=False):
        writers = " ".join(map(str, _writers(log)))
        remedy = f"stop it (kill {writers})" if writers else "stop it on the machine it runs on"
        raise InputError(
            f"--output_dir {log.parent.parent}: a run of a killed comparison is still running "
            f"(process {writers or 'unknown'}) and writes to {log}. Two runs at once would distort "
            f"each other's timings. Wait for it or {remedy}, then repeat the command."
        )


def _writers(log: Path) -> list[int]:
    """Return the ids of other processes that have the log open, as far as they are visible."""
    path, ids = str(log.resolve()), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and path in [f.path for f in process.open_files()]:
                ids.append(process.pid)
    return ids


@contextlib.contextmanager
def interruptible(how_to_continue: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM, SIGHUP and `EngineLost` into one message on stderr and an exit code.

    Runs are in separate sessions, so they receive none of these signals themselves.

    Args:
        how_to_continue: Returns what has been done so far and how to continue.

    Raises:
        SystemExit: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, following the convention
            of shells; 75 after `EngineLost`.
    """

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    raise_if_heard()
    try:
        with handling(("SIGTERM", "SIGHUP"), stop):
            yield
    except KeyboardInterrupt:
        print(f"\ninterrupted: {how_to_continue()}", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except EngineLost as error:
        print(f"\nlost: {error} {how_to_continue()}", file=sys.stderr)
        raise SystemExit(Preempted.exit_code) from None
    except SystemExit as end:
        names = {128 + getattr(signal, name, 0): name for name in ("SIGTERM", "SIGHUP")}
        if end.code in names:
            print(f"\nterminated by {names[end.code]}: {how_to_continue()}", file=sys.stderr)
        raise
