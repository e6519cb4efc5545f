"""The number of CPU threads of a process."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import NoneType

import psutil
import torch

from ampft.errors import InputError, check_type

MOST_THREADS_PER_CORE = 16  # more cannot be useful, and 100,000 cannot be created
# The process that launched this one, also for a fork that was made later.
_LAUNCHER = os.getppid()
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def restore_cpu_threads(
    requested: int | None, environ: Mapping[str, str] = os.environ, *, num_processes: int = 1
) -> int:
    """Set the number of PyTorch's CPU threads, and return it.

    `accelerate launch` without a config file sets `OMP_NUM_THREADS=1` on a CPU, which halves the
    speed on two cores. If it did so and a single process trains, all physical cores are used. A
    user's own `OMP_NUM_THREADS`, which the launcher passes on, is respected.

    Args:
        requested: Number of threads from `--cpu_threads`; None for the rule above.
        environ: Environment variables.
        num_processes: Number of processes that train together and share the cores.

    Raises:
        InputError: `requested` is less than one, or far more than there are cores.
    """
    check_type("restore_cpu_threads", "requested", requested, (int, NoneType))
    if requested is not None:
        if requested < 1:
            raise InputError(f"--cpu_threads: received {requested}; it must be at least 1.")
        most = MOST_THREADS_PER_CORE * (psutil.cpu_count() or 1)
        if requested > most:
            raise InputError(
                f"--cpu_threads {requested}: this machine has {psutil.cpu_count()} cores, and at "
                f"most {most} threads are allowed. Use one thread per core."
            )
        torch.set_num_threads(requested)
    elif num_processes == 1 and launcher_set_one_thread(environ, launcher_environment()):
        torch.set_num_threads(usable_cores())
    return torch.get_num_threads()


def launcher_set_one_thread(environ: Mapping[str, str], launcher: Mapping[str, str]) -> bool:
    """Return whether `accelerate launch` limited this process to one thread.

    Args:
        environ: Environment variables of this process.
        launcher: Environment variables with which the launcher was started.
    """
    # Users set ACCELERATE_MIXED_PRECISION too; only the launcher sets the other variable.
    launched = "ACCELERATE_MIXED_PRECISION" in environ and "ACCELERATE_DYNAMO_MODE" in environ
    is_users = "OMP_NUM_THREADS" in launcher
    return launched and environ.get("OMP_NUM_THREADS") == "1" and not is_users


def launcher_environment() -> Mapping[str, str]:
    """Return the environment variables that the launcher was started with, if readable."""
    try:
        return psutil.Process(_LAUNCHER).environ()
    except (psutil.Error, OSError):
        return {}


def usable_cores() -> int:
    """Return the number of physical cores that this process may use, at least 1.

    It is limited by the affinity mask and by the CPU quota of the control group (version 2).
    """
    limits = [psutil.cpu_count(logical=False) or psutil.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    limits.append(_cores_of_control_group() or limits[0])
    return max(1, min(limits))


def _cores_of_control_group() -> int | None:
    try:
        quota, period = _CGROUP_LIMIT.read_text().split()
        return max(1, math.floor(int(quota) / int(period)))
    except (OSError, ValueError):  # no control groups, or the quota is `max`
        return None
