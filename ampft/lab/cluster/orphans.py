"""End the processes of a worker that was killed.

    python orphans.py MARK

Ray kills a worker without the processes that it has started. This process reads its standard input,
a pipe of the worker, until the worker ends for whatever reason, and then kills every process whose
environment has the mark.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

import psutil

MARK = "AMPFT_WORKER"  # environment variable of every process that a worker starts
_ROUNDS = 3  # a process may start another one while the others are being killed
_SECONDS_BETWEEN = 0.2


def start_guard_process(mark: str) -> subprocess.Popen[bytes]:
    """Start a process that kills all processes with the mark as soon as this one ends."""
    return subprocess.Popen(
        [sys.executable, __file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def kill_marked_processes(mark: str) -> None:
    """Kill every process whose environment has the mark."""
    for number in range(_ROUNDS):
        time.sleep(_SECONDS_BETWEEN if number else 0)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                    process.kill()


if __name__ == "__main__":
    sys.stdin.buffer.read()
    kill_marked_processes(sys.argv[1])
