"""The machine and its packages: versions, hardware, and used and available memory."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from packaging.version import Version

from ampft.errors import InputError

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

# The first versions that have what is needed, and why earlier ones are refused. For the flaws, see
# the GHSA and CVE entries on loading models.
_FLAWS = "have published flaws through which a model can run code while it is loaded"
OLDEST_VERSIONS = {
    "torch": ("2.11", f"{_FLAWS}, or no attention kernel for scaled or windowed texts"),
    "transformers": ("5.5", _FLAWS),
}


def refuse_old_versions() -> None:
    """Check that torch and transformers, where installed, are new enough.

    Older ones have known flaws or lack a kernel that ampft needs.

    Raises:
        InputError: One is too old; the message names it and the oldest allowed version.
    """
    for name, (oldest, reason) in OLDEST_VERSIONS.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed = metadata.version(name)
            if Version(installed).release < Version(oldest).release:
                raise InputError(
                    f"{name} {installed} is installed, and versions before {oldest} {reason}: "
                    f"upgrade with pip install --upgrade '{name}>={oldest}'."
                )


def versions() -> dict[str, str]:
    """Return the version of Python and of each installed package that affects results."""
    return {"python": platform.python_version(), **installed_versions(PACKAGES)}


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the version of each package that is installed, which a checkout on the path is not."""
    found = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def hardware(gpu_names: Iterable[str] = ()) -> dict[str, Any]:
    """Describe the machine, without its name or its users.

    Args:
        gpu_names: Names of the GPUs of the run, such as `torch.cuda.get_device_name(i)`.

    Returns:
        `system`, `cpu` (model), `physical_cores`, `logical_cores`, `usable_cores` (by this
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
    """Return the CPU's name, such as "AMD EPYC 9B45"; empty if the system does not report it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def status_bytes(name: str) -> int | None:
    """Return a figure of this process such as `VmRSS` or `VmHWM`, in bytes; `None` off Linux."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    matches = [line.split() for line in lines if line.startswith(f"{name}:")]
    return int(matches[0][1]) * 1024 if matches else None  # proc(5): the unit is always kB


def resident_peak() -> int | None:
    """Return the peak resident set size of this process so far, in bytes; `None` off Linux.

    It is `VmHWM` of /proc/self/status, which exec resets. `ru_maxrss` survives exec, so that a
    small child of a large parent would report the parent's peak. The kernel updates its counters
    in batches: readings are accurate to about 0.1 MiB, and can decrease by as much.
    """
    return status_bytes("VmHWM")


def available_memory_bytes(processes: int = 1) -> int:
    """Return how many more bytes of memory this process can use before it reaches a limit.

    Args:
        processes: Number of processes that share the memory of the machine and of the control
            group equally. The limit of the address space (RLIMIT_AS) is per process.
    """
    available = psutil.virtual_memory().available
    shared = min([available, *_available_in_control_groups()]) // processes
    return max(0, min([shared, *_available_address_space()]))


def _available_address_space() -> Iterator[int]:
    try:
        import resource
    except ImportError:  # Windows
        return
    limit, used = resource.getrlimit(resource.RLIMIT_AS)[0], status_bytes("VmSize")
    if limit != resource.RLIM_INFINITY and used is not None:
        yield limit - used


def _available_in_control_groups() -> Iterator[int]:
    """Yield the bytes available in each group up to the root, for cgroup versions 1 and 2."""
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
        # In a container the path may be the host's, and then only its root can be read.
        for folder in (group, *(parent for parent in group.parents if parent != root.parent)):
            if folder.is_relative_to(root):
                yield from _available_in_group(folder, limit, used, f"{cache}inactive_file")


def _available_in_group(folder: Path, limit: str, used: str, cache: str) -> Iterator[int]:
    try:
        limit_bytes = (folder / limit).read_text().strip()
        used_bytes = int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or one that does not count memory
        return
    if limit_bytes != "max":
        # The kernel drops inactive cached files before it kills a process.
        yield int(limit_bytes) - used_bytes + int(stat.get(cache, 0))
