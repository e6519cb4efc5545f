"""The machine and its packages: versions, hardware, and memory that is used and left."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

_STATUS = Path("/proc/self/status")
_MEMBERSHIP = Path("/proc/self/cgroup")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")

PACKAGES = (
    "ampft",
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "evaluate",
    "huggingface_hub",
    "numpy",
    "scikit-learn",
    "pyarrow",
    "safetensors",
    "tokenizers",
)


def versions() -> dict[str, str]:
    """Return the version of Python and of each package that decides a result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware(gpu_names: Iterable[str] = ()) -> dict[str, Any]:
    """Describe the machine; neither its name nor its users.

    Args:
        gpu_names: Such as `torch.cuda.get_device_name(i)` for each device of the run.

    Returns:
        `system`, `cpu` (model), `physical_cores`, `logical_cores`, `usable_cores` (of this
        process), `memory_bytes` and `gpus`.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(logical=True),
        "usable_cores": len(affinity(0)) if affinity else None,
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": list(gpu_names),
    }


def cpu_model() -> str:
    """Return the CPU's name, such as "AMD EPYC 9B45"; empty where the system tells none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def status_bytes(name: str) -> int | None:
    """Return a figure such as `VmRSS` or `VmHWM` of this process in bytes; `None` off Linux."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith(f"{name}:")]
    return int(found[0][1]) * 1024 if found else None  # proc(5): the unit is always kB


def resident_peak() -> int | None:
    """Return the highest resident set of this process so far, bytes; `None` off Linux.

    It is `VmHWM` of /proc/self/status, which starts anew with each program. `ru_maxrss` does not:
    it survives exec, so that a small child of a large parent reports the parent. The kernel adds up
    its counters in batches: readings are good to some 0.1 MiB, and can fall by as much.
    """
    return status_bytes("VmHWM")


def headroom(processes: int = 1) -> int:
    """Return the bytes by which this process may grow, the least of what its limits leave.

    Args:
        processes: How many share the memory of the machine and of the control group equally. The
            limit of the address space (RLIMIT_AS) is each one's own.
    """
    shared = min([psutil.virtual_memory().available, *_left_in_control_groups()]) // processes
    return max(0, min([shared, *_left_in_address_space()]))


def _left_in_address_space() -> Iterator[int]:
    try:
        import resource
    except ImportError:  # Windows
        return
    limit, used = resource.getrlimit(resource.RLIMIT_AS)[0], status_bytes("VmSize")
    if limit != resource.RLIM_INFINITY and used is not None:
        yield limit - used


def _left_in_control_groups() -> Iterator[int]:
    """Yield what each group on the way to the root leaves, in either version of the interface."""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, used, cache = _CONTROL_GROUPS, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            root, cache = _CONTROL_GROUPS / "memory", "total_"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        # In a container the path may be that of the host: then the root alone can be read.
        for folder in (group, *(parent for parent in group.parents if parent != root.parent)):
            if folder.is_relative_to(root):
                yield from _left(folder, limit, used, f"{cache}inactive_file")


def _left(folder: Path, limit: str, used: str, cache: str) -> Iterator[int]:
    try:
        most, now = (folder / limit).read_text().strip(), int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or one that does not count memory
        return
    if most != "max":
        # Cached files that nobody uses are dropped before anybody is killed.
        yield int(most) - now + int(stat.get(cache, 0))
