"""The only place that starts processes, and ends them with all that they have started.

A process takes modules from where packages are installed, never from the current folder, whose
`tokenize.py` may be anything. It has a folder for temporary files, which is removed with it.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import psutil

from ampft.ownership import TemporaryFolder
from ampft.signals import deferred

# A run that receives SIGTERM finishes its step and writes its record before it exits.
TERMINATION_SECONDS = 60.0
# Where work is done: in processes of this machine, or on the nodes of a Ray cluster.
ENGINES = (LOCAL, RAY) = ("local", "ray")
SAFE_PATH = "PYTHONSAFEPATH"  # `python -P` of whoever inherits it
FOLLOWS = "AMPFT_FOLLOWS"  # id of the process with which one ends that calls `follow`
# Variables that `accelerate launch` and torchrun set for the processes that they start.
LAUNCHER_VARIABLES = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID")
# What is shared by the processes of a user, although it lies in the folder of temporary files.
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
_SECONDS_BETWEEN_LOOKS = 0.5


class Process(Protocol):
    """What is needed of a process to wait for it and to end it."""

    pid: int  # Its process id, which is also its process group's.

    def wait(self, timeout: float) -> int:
        """Return the exit code.

        Raises:
            subprocess.TimeoutExpired: It is still running.
        """
        ...


SomeProcess = TypeVar("SomeProcess", bound=Process)


class Child(subprocess.Popen[bytes]):
    """A process that `start_python` started."""

    temporary: TemporaryFolder  # Its TMPDIR, locked until it and its forks have ended.


def are_several() -> bool:
    """Return whether a launcher started several processes; a wrong number is refused later."""
    return os.environ.get("WORLD_SIZE", "").isdecimal() and int(os.environ["WORLD_SIZE"]) > 1


def start_python(
    words: Sequence[str],
    *,
    output: BinaryIO | int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
    is_safe: bool = True,
    follows: bool = False,
) -> Child:
    """Start this Python in a new session, so that Ctrl-C reaches only the process that calls.

    Args:
        words: Script, or `-m` and a module, and its arguments.
        output: File for standard output and standard error.
        environment: Environment variables in addition to those of this process.
        is_safe: Whether processes that it starts also ignore modules in the current folder. False
            if one is a script, which may import what lies beside it.
        follows: Whether it ends when this process ends for whatever reason, as commands of ampft
            then do.
    """
    temporary = TemporaryFolder("child")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    shared = Path(tempfile.gettempdir(), f"torchinductor_{user}")
    added = {"TMPDIR": str(temporary.path), **(environment or {})}
    added |= {SAFE_PATH: "1"} if is_safe else {}
    added |= {FOLLOWS: str(os.getpid())} if follows else {}
    is_script = not words[0].startswith("-")
    try:
        child = Child(
            [sys.executable, *([] if is_script else ["-P"]), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={_COMPILED: str(shared), **os.environ, **added},
            pass_fds=() if sys.platform == "win32" else (temporary.descriptor,),
        )
    except BaseException:
        temporary.remove()
        raise
    child.temporary = temporary
    return child


@contextlib.contextmanager
def running(start: Callable[[], SomeProcess]) -> Iterator[SomeProcess]:
    """Start a process, and terminate it with its descendants if the block raises.

    A signal that arrives while it is being started is heard once it can be terminated.
    """
    process = None
    try:
        with deferred():
            process = start()
        yield process
    except BaseException:
        if process is not None:
            terminate(process)
        raise
    finally:
        if isinstance(process, Child):
            process.temporary.remove()


def terminate(process: Process) -> None:
    """Terminate a process and its descendants, and wait; a second interruption kills them."""
    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        # The launcher exits at once while the run is still writing its record.
        descendants = psutil.Process(process.pid).children(recursive=True)
    _signal_group(process, kill=False)
    alive = descendants
    try:
        process.wait(TERMINATION_SECONDS)
        _, alive = psutil.wait_procs(descendants, timeout=TERMINATION_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal_group(process, kill=True)
        for descendant in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                descendant.kill()
        process.wait(TERMINATION_SECONDS)
        if isinstance(process, Child):
            process.temporary.remove()


def kill(process: Process) -> None:
    """Kill a process and its process group, as a lack of memory does, and wait."""
    _signal_group(process, kill=True)
    process.wait(TERMINATION_SECONDS)


def _signal_group(process: Process, *, kill: bool) -> None:
    if sys.platform == "win32":  # has neither process groups nor SIGKILL
        psutil.Process(process.pid).kill()
        return
    # It may have ended already, and its id may belong to another user's process by now.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)


def follow() -> None:
    """Let this process end soon after the one that asked for it, if that asked for this."""
    number = os.environ.get(FOLLOWS)
    if number is None:
        return

    def watch() -> None:
        wait_for_end(int(number))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="follow", daemon=True).start()


def wait_for_end(number: int) -> None:
    """Wait until the process with an id has ended, which need not be a child of this one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(number)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
