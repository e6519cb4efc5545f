"""Launch the processes of a comparison, wait for them, and terminate them with their children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import psutil
from filelock import lock_descriptor, unlock_descriptor

from ampft.comparison.execution.slots import WHOLE_MACHINE, Slot
from ampft.errors import InputError, Preempted
from ampft.ownership import is_plain_file

POLL_SECONDS = 0.5
# A run that receives SIGTERM finishes its step and writes its record before it exits.
TERMINATION_SECONDS = 60.0
FIRST_LINE = b"log of ampft, replaced when the command is repeated\n"


class EngineLost(Exception):
    """What trains the runs is gone; the message says what. The same command continues."""


def launch_command(
    config_file: str | None, *argv: str, launcher_flags: Sequence[str] = ()
) -> list[str]:
    """Return the command that starts a script, or a module with `-m`, through `accelerate launch`.

    A run sets its precision by its own flag. The launcher receives `no`, which counts as unset, so
    that neither its configuration file nor the environment conflicts with the flag.

    Args:
        config_file: Configuration file of Accelerate; None for none.
        argv: Script, or `-m` and a module, and its arguments.
        launcher_flags: Other flags of the launcher.
    """
    config = ("--config_file", config_file) if config_file is not None else ()
    launcher = (sys.executable, "-m", "accelerate.commands.launch")
    return [*launcher, *config, *launcher_flags, "--mixed_precision", "no", *argv]


class Process(Protocol):
    """A process that was started, as `subprocess.Popen` describes it.

    Attributes:
        pid: Its id; it leads a session.
    """

    pid: int

    def wait(self, timeout: float) -> int:
        """Return its exit code.

        Raises:
            subprocess.TimeoutExpired: It is still running after `timeout` seconds.
        """
        ...


def run_command(command: Sequence[str], log: Path, slot: Slot = WHOLE_MACHINE) -> tuple[int, float]:
    """Run a command in a slot, as `supervise` does."""
    return supervise(lambda output: start_command(command, output, slot), log)


def start_command(command: Sequence[str], output: BinaryIO | int, slot: Slot) -> Process:
    """Start a command in a slot, in a session of its own, so that Ctrl-C reaches only this one."""
    with _pinned(slot.cores):
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **slot.environment},
        )


def supervise(
    start: Callable[[BinaryIO], Process], log: Path, watch: Callable[[], None] | None = None
) -> tuple[int, float]:
    """Start a process with its output in `log`; return its exit code and its duration in seconds.

    Neither it nor a child of it outlives this call. After an exception such as Ctrl-C, all of them
    are terminated first.

    Args:
        start: Starts the process with this file as its output.
        log: File for standard output and standard error.
        watch: Callback, called about twice a second while the process runs.

    Raises:
        InputError: A process of an earlier comparison still writes to `log`.
    """
    started = time.perf_counter()
    with locked_log(log) as output:
        process = start(output)
        try:
            while (code := _poll(process)) is None:
                if watch is not None:
                    watch()
        except BaseException:
            terminate(process)
            raise
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


def wait_for_runs_left(logs: Path, tell: Callable[[str], None]) -> float:
    """Wait for a run that outlived its comparison, which was killed; return the seconds.

    Its result counts, and no second run starts beside it.

    Args:
        logs: Folder of the logs of the comparison.
        tell: Function that prints a line.
    """
    started = time.perf_counter()
    for log in logs_in(logs):
        told = False
        with log.open("ab") as file:
            while not lock_descriptor(file.fileno(), blocking=False):
                if not told:
                    writers = " ".join(map(str, _writers(log)))
                    tell(
                        f"{log.stem}: still running, although its comparison was killed (process "
                        f"{writers or 'on another machine'}); waiting for it"
                    )
                    told = True
                time.sleep(POLL_SECONDS)
            unlock_descriptor(file.fileno())
    return time.perf_counter() - started


def check_no_process_left(logs: Iterable[Path], own: Collection[Path] = ()) -> None:
    """Check that no process of a killed comparison is still running.

    Args:
        logs: Logs of the comparison.
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


def _poll(process: Process) -> int | None:
    try:
        return process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def terminate(process: Process) -> None:
    """Terminate the command and its descendants, and wait; a second interruption kills them."""
    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        # The launcher exits at once while the run is still writing its record.
        descendants = psutil.Process(process.pid).children(recursive=True)
    _signal(process, kill=False)
    alive = descendants
    try:
        process.wait(TERMINATION_SECONDS)
        _, alive = psutil.wait_procs(descendants, timeout=TERMINATION_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(process, kill=True)
        for descendant in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                descendant.kill()
        process.wait(TERMINATION_SECONDS)


def _signal(process: Process, *, kill: bool) -> None:
    if sys.platform == "win32":  # has neither process groups nor SIGKILL
        psutil.Process(process.pid).kill()
        return
    # It may have ended already, and its id may belong to another user's process by now.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)


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

    # Windows has no SIGHUP.
    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # Ignored signals stay ignored, such as SIGHUP under nohup.
    numbers = [number for number in known if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except KeyboardInterrupt:
        print(f"\ninterrupted: {how_to_continue()}", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except EngineLost as error:
        print(f"\nlost: {error} {how_to_continue()}", file=sys.stderr)
        raise SystemExit(Preempted.exit_code) from None
    except SystemExit as exit_:
        for number in numbers:
            if exit_.code == 128 + number:
                print(f"\nterminated by {number.name}: {how_to_continue()}", file=sys.stderr)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
