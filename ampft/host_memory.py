"""Memory of this process on the host, and by how much it may still grow.

On Linux the kernel kills a process that goes beyond the memory of its control group or of the
machine. Nothing is raised, so the limit has to be known before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

_STATUS = Path("/proc/self/status")
_MEMBERSHIP = Path("/proc/self/cgroup")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")


def status_bytes(name: str, status: Path = _STATUS) -> int | None:
    """Return a figure such as `VmRSS` or `VmHWM` of this process in bytes; `None` off Linux."""
    try:
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith(f"{name}:")]
    return int(found[0][1]) * 1024 if found else None  # proc(5): the unit is always kB


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
