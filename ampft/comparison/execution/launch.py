"""Processes of a comparison: launched by Accelerate, waited for, and ended with their children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import psutil
from filelock import lock_descriptor, unlock_descriptor

from ampft.errors import InputError

POLL_SECONDS = 0.5
# A run that is told to end finishes its step, writes its record and leaves.
SECONDS_TO_END = 60.0


def launch_command(config_file: str | None, *words: str) -> list[str]:
    """Return the words that start `words`, a script or `-m` and a module, as a run is started.

    The precision is the run's own flag. The launcher is told `no`, which counts as unset, so that
    neither its configuration file nor the environment contradicts the flag.
    """
    config = ("--config_file", config_file) if config_file is not None else ()
    launcher = (sys.executable, "-m", "accelerate.commands.launch")
    return [*launcher, *config, "--mixed_precision", "no", *words]


def run_to_end(
    command: Sequence[str], log: Path, watch: Callable[[], None] | None = None
) -> tuple[int, float]:
    """Run a command with its output in `log`; return its exit code and its seconds.

    However this ends, no process of the command is left: when an exception comes in between, such
    as Ctrl-C, all are told to end and are waited for.

    Args:
        command: Its words.
        log: The file that gets standard output and standard error.
        watch: Called about twice a second while the command runs.

    Raises:
        InputError: A process that an earlier comparison started still writes to `log`.
    """
    started = time.perf_counter()
    with _held(log) as output:
        # A session of its own: Ctrl-C at the terminal reaches this process alone, which passes it
        # on once.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while (code := _ended(process)) is None:
                if watch is not None:
                    watch()
        except BaseException:
            _end(process)
            raise
    return code, time.perf_counter() - started


def check_ended(logs: Path) -> None:
    """Check that nothing is left of what a comparison started that was killed.

    Args:
        logs: The folder of its logs.

    Raises:
        InputError: A process still writes to one of them. Nothing was changed.
    """
    for log in sorted(logs.glob("*.log")):
        with log.open("ab") as file:
            _hold(file, log)
            unlock_descriptor(file.fileno())


@contextlib.contextmanager
def _held(log: Path) -> Iterator[BinaryIO]:
    """Yield the emptied log, locked by this process and by all that inherit it as their output.

    So the lock outlives this process only where it is killed, and ends with the last of them.
    """
    with log.open("ab") as output:
        _hold(output, log)
        output.truncate(0)
        try:
            yield output
        finally:
            unlock_descriptor(output.fileno())  # a service that a run leaves behind shares the lock


def _hold(file: BinaryIO, log: Path) -> None:
    if not lock_descriptor(file.fileno(), blocking=False):
        writers = " ".join(map(str, _writers(log)))
        remedy = f"end it (kill {writers})" if writers else "end it on the machine that it is on"
        raise InputError(
            f"--output_dir {log.parent.parent}: what a comparison started that was killed still "
            f"runs (process {writers or 'unknown'}) and writes to {log}. Two runs at once spoil "
            f"each other's time. Wait for it, or {remedy}; the same command then goes on."
        )


def _writers(log: Path) -> list[int]:
    """Return the ids of the other processes that have the log open, as far as they can be seen."""
    path, found = str(log.resolve()), []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and path in [f.path for f in process.open_files()]:
                found.append(process.pid)
    return found


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Tell the command and all below it to end, and wait; a second interruption kills them."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        # The launcher leaves at once while the run is still writing its record.
        family = psutil.Process(process.pid).children(recursive=True)
    _signal(process, kill=False)
    left = family
    try:
        process.wait(SECONDS_TO_END)
        _, left = psutil.wait_procs(family, timeout=SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(process, kill=True)
        for member in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()


def _signal(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    if sys.platform == "win32":  # which has neither groups nor SIGKILL
        process.kill()
        return
    # Gone already, or its number was given to another user's process since.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)


@contextlib.contextmanager
def interruptible(how_to_continue: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into one message on standard error and an exit code.

    Processes that run have a session of their own, so nobody else would end them.

    Args:
        how_to_continue: Says what was reached, and what to do.

    Raises:
        SystemExit: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, as shells count.
    """

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    # Windows has no SIGHUP.
    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    # What is ignored stays so: nohup ignores SIGHUP.
    numbers = [number for number in known if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except KeyboardInterrupt:
        print(f"\ninterrupted: {how_to_continue()}", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except SystemExit as ended:
        for number in numbers:
            if ended.code == 128 + number:
                print(f"\nended by {number.name}: {how_to_continue()}", file=sys.stderr)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
