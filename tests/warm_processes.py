"""Processes of Python that start in milliseconds: forked from one that has imported torch already.

`WarmPopen` has the interface of `subprocess.Popen`. What it starts is a process with its own
working directory, environment, streams, session and signals; only the interpreter and the imports
are shared. What an import reads must therefore be as in the server, or the process is started as
usual. A few tests of each command start it as usual, as users do.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock

TESTS = Path(__file__).parent
BIN = Path(sys.executable).parent
# One server for all workers of a session.
SOCKET = Path(
    tempfile.gettempdir(), f"ampft-warm-{os.environ.get('PYTEST_XDIST_TESTRUNUID', uuid.uuid4())}"
)
# Settings that an interpreter or an import reads once.
READ_ONCE = ("PYTHON", "HF_", "TRANSFORMERS_", "OMP_", "MKL_", "LD_", "MALLOC_")
IMPORTED = (
    "torch.distributed.run",
    "accelerate.commands.launch",
    "datasets",
    "evaluate",
    "pandas",
    "pyarrow.parquet",
    "scipy.stats",
    "sklearn.metrics",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.optimization",  # which imports peft and bitsandbytes
    "ampft.runs.prepare",
    "ampft.runs.run",
    "ampft.cli",
)
# The environment in which the server starts.
START = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
_Cold = subprocess.Popen
_servers: list[subprocess.Popen[bytes]] = []
"""The server that this process started, which is not waited for."""
_is_launcher = False
"""Whether this process is a launcher: what it starts must be its own child, which it can signal."""


class WarmPopen(_Cold):
    """A process as `subprocess.Popen` starts it, warm where that makes no difference."""

    def __init__(self, args: Any, **how: Any) -> None:
        self._warm = _is_python(args) and _has_same_start(how)
        self._exit: socket.socket | None = None
        super().__init__(args, **how)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        # Private, but the same from Python 3.11 to 3.14.
        if not self._warm:
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest
            )
            return
        _, _, _, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others = rest
        streams = [
            fd if fd != -1 else default for default, fd in enumerate((p2cread, c2pwrite, errwrite))
        ]
        order = {
            "words": [os.fspath(word) for word in args],
            "cwd": os.fspath(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "session": others[-2],
        }
        if _is_launcher:
            self.pid = _forked(order, streams)
        else:
            self._exit = _connected()
            socket.send_fds(self._exit, [json.dumps(order).encode() + b"\n"], streams)
            self.pid = int(_line(self._exit))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, wait_flags):
        if self._exit is None:
            return super()._try_wait(wait_flags)
        exits = select.poll()  # unlike select, it takes a descriptor above 1,024
        exits.register(self._exit, select.POLLIN)
        if not exits.poll(0 if wait_flags == os.WNOHANG else None):
            return 0, 0
        line = _line(self._exit)
        self._exit.close()
        return self.pid, int(line or signal.SIGKILL)  # an empty line: the server was killed

    def _internal_poll(self, *words, **options):
        if self._exit is None:
            return super()._internal_poll(*words, **options)
        with self._waitpid_lock:
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
        return self.returncode


def _is_python(args: Any) -> bool:
    """Return whether a command is this Python or one of its scripts, without special options."""
    if isinstance(args, (str, bytes, os.PathLike)) or sys.platform == "win32":
        return False
    words = list(map(str, args))
    if words[0] in (str(BIN / "ampft"), str(BIN / "accelerate")):
        return True
    usual = len(words) > 1 and (words[1] in ("-m", "-c", "-u", "-P") or words[1][:1] != "-")
    return words[0] == sys.executable and usual


def _has_same_start(how: dict[str, Any]) -> bool:
    """Return whether a process may be forked: what it would read at its start is as here."""
    env = how.get("env")
    known = {"cwd", "env", "stdin", "stdout", "stderr", "text", "encoding", "start_new_session"}
    known.add("pass_fds")  # locks, which a fork does not keep
    wanted = _read_once(os.environ if env is None else env)
    return how.keys() <= known and wanted == _read_once(START)


def _read_once(environment: Any) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_ONCE) and name not in ("PYTHONPATH", "PYTHONSAFEPATH", "HF_TOKEN")
    }


def _line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (byte := connection.recv(1)):
        line += byte
    return line


def _connected() -> socket.socket:
    address = str(SOCKET)
    with FileLock(f"{address}.lock"):
        if not Path(address).exists():
            # The process that all workers of a session have in common, or this one.
            owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            server = start_server(address, owner)
            _servers.append(server)
            deadline = time.monotonic() + 300
            while not Path(address).exists():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server of warm processes did not start: {address}.log")
                time.sleep(0.05)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    return connection


def start_server(address: str, owner: int) -> subprocess.Popen[bytes]:
    """Start the process that serves until the process `owner` ends."""
    with Path(f"{address}.log").open("w") as log:  # pipes here would not end before it
        return _Cold(
            [sys.executable, __file__, address, str(owner)],
            env=START, cwd=TESTS.parent, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip


def _forked(order: dict[str, Any], streams: Sequence[int], *close: socket.socket) -> int:
    """Start the process of an order; return its id."""
    pid = os.fork()
    if pid == 0:
        for connection in close:
            connection.close()
        _become(order, streams)
    return pid


def _become(order: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """Run what an order wants in this process, and exit as an interpreter does."""
    global _is_launcher
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    code = 1
    try:
        if order["session"]:
            os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, handler)
        signal.set_wakeup_fd(-1)
        copies = [os.dup(stream) for stream in streams]
        for target, copy in enumerate(copies):
            os.dup2(copy, target)
        os.closerange(3, 256)
        for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
            stream = open(fd, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        sys.stderr.reconfigure(line_buffering=True)
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["environment"])
        subprocess.Popen = subprocess_handler.Popen = WarmPopen
        _is_launcher = "accelerate.commands.launch" in order["words"] or (
            order["words"][0] == str(BIN / "accelerate")
        )
        code = _exit_code(order["words"])
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _exit_code(words: list[str]) -> int:
    try:
        _run(words)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _run(words: list[str]) -> None:
    """Run a script, a module or code as the main module."""
    if words[0] == sys.executable:
        words = words[1:]
    if words[0] == "-u":  # as torchrun starts its processes
        sys.stdout.reconfigure(write_through=True)
        words = words[1:]
    is_safe = words[0] == "-P" or "PYTHONSAFEPATH" in os.environ
    words = words[words[0] == "-P" :]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[:1] = [*([] if is_safe else [""]), *paths]
        exec(compile(words[1], "<string>", "exec"), vars(sys.modules["__main__"]))
    elif words[0] == "-m":
        sys.argv = words[1:]
        sys.path[:1] = [*([] if is_safe else [str(Path.cwd())]), *paths]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[:1] = [str(Path(words[0]).resolve().parent), *paths]
        runpy.run_path(words[0], run_name="__main__")


def serve(address: str, owner: int) -> None:
    """Fork a process for each connection, until the process `owner` ends.

    A connection carries the order with the three streams, then the process id, and when the process
    has ended its wait status.
    """
    global SOCKET
    SOCKET = Path(address)  # for what its processes start in turn
    for name in IMPORTED:
        importlib.import_module(name)
    listening = socket.socket(socket.AF_UNIX)
    waking, woken = socket.socketpair()
    waking.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking.fileno())
    listening.bind(f"{address}.new")
    listening.listen(32)
    Path(f"{address}.new").rename(address)  # visible once it listens
    running: dict[int, socket.socket] = {}
    try:
        while _is_alive(owner):
            ready, _, _ = select.select([listening, woken], [], [], 1.0)
            if listening in ready:
                connection, _ = listening.accept()
                order, streams = _received(connection)
                pid = _forked(order, streams, listening, waking, woken, connection)
                for stream in streams:
                    os.close(stream)
                running[pid] = connection
                connection.sendall(b"%d\n" % pid)
            if woken in ready:
                woken.recv(4096)
            _report_ended(running)
    finally:
        for end in ("", ".lock", ".log"):
            Path(f"{address}{end}").unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    text, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 20)
    return json.loads(text), streams


def _report_ended(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        connection = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # the process that waited has ended
            connection.sendall(b"%d\n" % status)
        connection.close()


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    # Under its own name, so that the class of the processes is the one that tests import.
    importlib.import_module("warm_processes").serve(sys.argv[1], int(sys.argv[2]))
