"""End the processes of a worker that was killed.

    python -m ampft.lab.cluster.orphans PID MARK

Ray kills a worker without the processes that it has started. This process waits until the worker
ends for whatever reason, and then kills every process whose environment has the mark.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

import psutil

from ampft.processes import Child, start_python, wait_for_end

MARK = "AMPFT_WORKER"  # environment variable of every process that a worker starts
_ROUNDS = 3  # a process may start another one while the others are being killed
_SECONDS_BETWEEN = 0.2


def start_guard_process(mark: str) -> Child:
    """Start a process that kills all processes with the mark as soon as this one ends."""
    return start_python(("-m", "ampft.lab.cluster.orphans", str(os.getpid()), mark))


def kill_marked_processes(mark: str) -> None:
    """Kill every process whose environment has the mark."""
    for number in range(_ROUNDS):
        time.sleep(_SECONDS_BETWEEN if number else 0)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                    process.kill()


if __name__ == "__main__":
    wait_for_end(int(sys.argv[1]))
    kill_marked_processes(sys.argv[2])
