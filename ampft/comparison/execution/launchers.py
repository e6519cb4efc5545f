"""Launch the programs of a comparison: here, forked from a process with torch, or anew.

A measurement is such a program too: its request and its result are files.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

import psutil

from ampft.comparison.execution.launch import (
    POLL_SECONDS,
    ForkedProgram,
    ResourceSlot,
    launch_command,
    start_command,
    supervise,
)
from ampft.comparison.execution.warm_process import MOST_BYTES
from ampft.engine.checkpoints.store import HISTORY_NAME
from ampft.errors import InputError
from ampft.ownership import temporary_folder
from ampft.processes import Process, follow, terminate
from ampft.text.json_io import json_text, read_json_object

Key = TypeVar("Key")
WARM_MODULE = "ampft.comparison.execution.warm_process"


@dataclass(frozen=True)
class Program:
    """A program to launch."""

    argv: tuple[str, ...]  # Script, or `-m` and a module, and its arguments.
    log: Path  # File for standard output and standard error.
    # The only folder that it reads and writes as its own; `argv` may contain its path.
    folder: Path
    group: Hashable = None  # Programs of a group run on the same kind of device; None for any.


@dataclass(frozen=True)
class EndedProgram:
    """A program's duration in seconds, and the name of its node; None for this machine."""

    seconds: float
    node: str | None = None


class Launcher(Protocol):
    """Launches one program at a time."""

    slot: ResourceSlot  # Where programs run, and its position among the launchers.

    def run(self, program: Program, watch: Callable[[], None]) -> EndedProgram:
        """Run a program to its end, whatever its exit code.

        No process of it outlives this call; after an exception, it is terminated first.

        Args:
            watch: Callback, called about twice a second while the program runs.

        Raises:
            InputError: A process of an earlier comparison still writes to the log.
        """
        ...

    def history(self, program: Program) -> Path:
        """Return where the history of the run that the program trains grows."""
        ...

    def kill(self) -> None:
        """Kill the program without waiting for it."""
        ...

    def close(self) -> None:
        """Release what outlives single programs."""
        ...


class LocalLauncher:
    """Launches one program at a time in a slot of this machine, one process per program.

    Without a configuration file of Accelerate, the first program starts a process that imports what
    runs need; each program is a fork of it, which saves the seconds of its imports. If that
    process cannot be had, `accelerate launch` starts each program.
    """

    def __init__(self, slot: ResourceSlot, config_file: str | None) -> None:
        """Launch in `slot` as `accelerate launch --config_file` does."""
        self.slot = slot  # Where programs run.
        self._config_file = config_file
        # Whether programs are forked; False from the first time that this is impossible.
        self.forks = config_file is None and hasattr(socket, "SOCK_SEQPACKET")
        self._server: Process | None = None
        self._connection: socket.socket | None = None

    def run(self, program: Program, watch: Callable[[], None]) -> EndedProgram:
        """Run a program to its end, as `Launcher` describes."""
        argv = program.argv

        def start(output: BinaryIO) -> Process:
            forked = self._fork(argv, output, watch) if self.forks else None
            if forked is not None:
                return forked
            self.forks = False
            flags = self.slot.launcher_flags
            words = launch_command(self._config_file, *argv, launcher_flags=flags)
            return start_command(words, output, self.slot, is_safe=argv[0] == "-m")

        _, seconds = supervise(start, program.log, watch)
        return EndedProgram(seconds)

    def history(self, program: Program) -> Path:
        """Return the history in the folder of a run."""
        return program.folder / HISTORY_NAME

    def kill(self) -> None:
        """Kill all processes that this process has started."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def close(self) -> None:
        """End the process from which programs are forked."""
        if self._connection is not None:
            self._connection.close()
        if self._server is not None:
            terminate(self._server)

    def _fork(
        self, argv: Sequence[str], output: BinaryIO, watch: Callable[[], None]
    ) -> Process | None:
        """Return a fork that runs the program; None if no process can be forked."""
        body = json.dumps({"argv": list(argv)}).encode()
        try:
            if self._connection is None:
                self._connection = self._connected(watch)
            if self._connection is None or len(body) > MOST_BYTES:
                return None
            socket.send_fds(self._connection, [body], [output.fileno()])
            return ForkedProgram(self._connection)
        except OSError:  # it was killed
            return None

    def _connected(self, watch: Callable[[], None]) -> socket.socket | None:
        """Start the process to fork, and wait until it is ready; None if it ends instead."""
        path = str(temporary_folder("warm") / "socket")
        words = launch_command(
            None, "-m", WARM_MODULE, path, launcher_flags=self.slot.launcher_flags
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(POLL_SECONDS)
            self._server = server = start_command(words, subprocess.DEVNULL, self.slot)
            while True:
                watch()
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    return connection
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(0)
                    return None


class _Stopped(Exception):
    """The comparison ends, so the program is terminated."""


class SideBySide(Generic[Key]):
    """Runs programs by several launchers, a context manager; no program outlives it.

    A thread waits for each. If the block raises, as after Ctrl-C, every program is terminated and
    waited for; if that is interrupted once more, all are killed.
    """

    def __init__(self, launchers: Sequence[Launcher]) -> None:
        """Run one program at a time by each of `launchers`."""
        self._free = list(launchers)
        self._pool = ThreadPoolExecutor(len(launchers))
        self._running: dict[Future[EndedProgram], tuple[Key, Launcher]] = {}
        self._stop = threading.Event()

    def __enter__(self) -> SideBySide[Key]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Terminate the programs that are running, and wait for them."""
        self._stop.set()
        try:
            wait(self._running)
        except BaseException:
            for _, launcher in self._running.values():
                launcher.kill()
            raise
        finally:
            self._pool.shutdown()

    @property
    def is_full(self) -> bool:
        """Whether every launcher has a program."""
        return not self._free

    @property
    def running(self) -> list[Key]:
        """The keys of the programs that have not ended."""
        return [key for key, _ in self._running.values()]

    def start(self, key: Key, program: Program) -> Launcher:
        """Start a program by a free launcher, and return the launcher.

        Args:
            key: Stands for the program in `running` and `ended`.
        """
        launcher = self._free.pop(0)
        work = self._pool.submit(launcher.run, program, self._watch)
        self._running[work] = key, launcher
        return launcher

    def ended(self) -> list[tuple[Key, EndedProgram]]:
        """Wait a moment; return the programs that have ended.

        Raises:
            InputError: A process of an earlier comparison still writes to a log.
        """
        done, _ = wait(self._running, POLL_SECONDS, FIRST_COMPLETED)
        found = []
        for work in [each for each in self._running if each in done]:
            key, launcher = self._running.pop(work)
            self._free = sorted([*self._free, launcher], key=lambda each: each.slot.number)
            found.append((key, work.result()))
        return found

    def _watch(self) -> None:
        if self._stop.is_set():
            raise _Stopped


class NoResult(Exception):
    """The process wrote no result; the message is its first error."""


def call_in_subprocess(
    module: str, name: str, request: dict[str, Any], start: Callable[[Program], object]
) -> dict[str, Any]:
    """Run a module that calls `write_subprocess_result`, and return its result.

    Args:
        name: Name of the folder of the process, inside a temporary one.

    Raises:
        InputError: The process raised one, with the same message.
        NoResult: It ended without a result.
    """
    place = temporary_folder(name.partition("-")[0])
    folder, log = place / name, place / "log"
    folder.mkdir()
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    paths = str(folder / "request.json"), str(folder / "result.json")
    start(Program(("-m", module, *paths), log, folder))
    try:
        result = read_json_object(folder / "result.json")
    except (OSError, ValueError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        # The launcher prints its own traceback after the process's traceback.
        errors = [line for line in lines if "Error" in line and not line.startswith(" ")]
        raise NoResult(errors[0] if errors else "no error message") from None
    if "error" in result:
        raise InputError(str(result["error"]))
    return result


def write_subprocess_result(
    measure: Callable[[dict[str, Any]], object], request: str, result: str
) -> None:
    """Measure, and write the result or the message of an `InputError` to a file.

    With several processes, only the main one writes.
    """
    follow()
    try:
        found = measure(json.loads(Path(request).read_text(encoding="utf-8")))
    except InputError as error:
        found = {"error": str(error)}
    if os.environ.get("RANK", "0") == "0":
        Path(result).write_text(json_text(found), encoding="utf-8")
