"""A process that has imported what runs need, and becomes one run per request by a fork.

    accelerate launch -m ampft.comparison.execution.warm_process SOCKET

It is launched as a run is, so that it has a run's environment. A `Launcher` sends a request per run
through the socket: the arguments of the program, and its log as an open file. The forked process
is what a fresh one would be after its imports: no random number was drawn, no thread started, no
tensor computed. If that cannot be had, the process ends, and each run is launched anew.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from ampft.processes import SAFE_PATH

# What the first seconds of a run import.
MODULES = (
    "ampft.runs.train",
    "ampft.runs.run_text",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
    "datasets",
    "sklearn.metrics",
)
# Frees memory of pyarrow in the background; jemalloc starts it anew in a fork (pthread_atfork).
ARROW_THREAD = "jemalloc_bg_thd"
MOST_BYTES = 1 << 17  # of a message


def main(path: str) -> None:
    """Connect to the socket, and run what is requested in forks, until it is closed."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return  # these processes belong together
    for name in MODULES:
        import_module(name)
    if not _is_forkable():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        request = _serve(connection)
    if request is not None:  # in the fork
        run_program(request["argv"])


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; return None at the end, and in a fork its request."""
    while True:
        body, files, _, _ = socket.recv_fds(connection, MOST_BYTES, 1)
        if not body:
            return None
        child = os.fork()
        if not child:
            _become_a_run(files[0])
            return dict(json.loads(body))
        os.close(files[0])
        connection.send(json.dumps({"pid": child}).encode())
        _, status = os.waitpid(child, 0)
        connection.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())


def _become_a_run(log: int) -> None:
    """Give this fork the session, the files and the signals of a process that was launched."""
    os.setsid()
    for target in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.dup2(log, target)
    os.close(log)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_program(argv: list[str]) -> None:
    """Run a script, or a module after `-m`, as the interpreter does with these arguments."""
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = argv
    os.environ.pop(SAFE_PATH, None)  # a script may import what lies beside it
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")


def _is_forkable() -> bool:
    """Return whether this process has one thread that matters, and has not touched a GPU."""
    import torch

    tasks = [task / "comm" for task in Path("/proc/self/task").iterdir()]
    names = [name.read_text().strip() for name in tasks]
    others = [name for name in names if name != ARROW_THREAD]
    return len(others) == threading.active_count() == 1 and not torch.cuda.is_initialized()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the comparison
    main(sys.argv[1])
