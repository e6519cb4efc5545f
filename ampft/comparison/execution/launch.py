"""Launch the processes of a comparison in slots, and wait for them.

A slot is what each run has to itself: the machine, or side by side with others its GPUs or cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

import psutil
from filelock import lock_descriptor, unlock_descriptor

from ampft.comparison.execution.warm_process import MOST_BYTES
from ampft.comparison.settings import CompareCommand
from ampft.engine.checkpoints.store import HISTORY_NAME
from ampft.errors import InputError
from ampft.machine import available_memory_bytes
from ampft.ownership import is_plain_file, temporary_folder
from ampft.processes import Child, Process, follow, running, start_python, terminate
from ampft.text.json_io import json_text, read_json_object
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
    """Start a script or a module in a slot; see `start_python`."""
    with _pinned(slot.cores):
        return start_python(
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
    for log in filter(is_plain_file, sorted(logs.glob("*.log"))):
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
