"""What each run has to itself: the machine, or side by side with others its GPUs or cores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ampft.arguments.compare import CompareCommand
from ampft.errors import InputError
from ampft.machine import headroom
from ampft.text.numbers import byte_size, counted

FIRST_PORT = 29500  # of the processes of one run, as in torchrun


@dataclass(frozen=True)
class Slot:
    """What one run at a time has to itself.

    Attributes:
        number: Its position, from 0.
        cores: Logical cores to which its processes are pinned; empty for all.
        environment: Environment variables that its processes receive in addition.
        launcher_flags: Flags of `accelerate launch`.
    """

    number: int = 0
    cores: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    launcher_flags: tuple[str, ...] = ()


WHOLE_MACHINE = Slot()


def command_slots(command: CompareCommand) -> tuple[Slot, ...]:
    """Return the slots that a command asks for, as `make_slots` does."""
    design = command.design
    return make_slots(
        design.jobs, gpus_per_run=design.gpus_per_run, use_cpu=command.classify.use_cpu
    )


def make_slots(jobs: int, *, gpus_per_run: int = 1, use_cpu: bool = False) -> tuple[Slot, ...]:
    """Return a slot for each run that trains at the same time.

    A single slot is the whole machine. Several have equal shares: of the GPUs that are visible to
    this process, or without a GPU of the cores that it may use. Cores that are left over stay idle.

    Args:
        jobs: Number of runs that train at the same time.
        gpus_per_run: GPUs of each run.
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
        Slot(number, tuple(cores[number * share : (number + 1) * share])) for number in range(jobs)
    )


def visible_gpus() -> list[str]:
    """Return the CUDA devices that this process may use, as in `CUDA_VISIBLE_DEVICES`."""
    import torch  # only if several runs are asked for

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[:count] or [str(number) for number in range(count)]


def _gpu_slots(jobs: int, gpus_per_run: int, gpus: Sequence[str]) -> tuple[Slot, ...]:
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
        slots.append(Slot(number, (), {"CUDA_VISIBLE_DEVICES": ",".join(own)}, launcher_flags=port))
    return tuple(slots)


def check_memory(jobs: int, peak_bytes: int) -> None:
    """Check that the runs fit into the memory that is available now.

    Args:
        jobs: Number of runs that train at the same time.
        peak_bytes: Peak memory of one run in bytes; 0 if it is unknown.

    Raises:
        InputError: They do not fit.
    """
    available = headroom()
    if jobs > 1 and jobs * peak_bytes > available:
        fitting = max(1, available // peak_bytes)
        raise InputError(
            f"--jobs {jobs}: a run needs about {byte_size(peak_bytes)} of memory, so {jobs} need "
            f"{byte_size(jobs * peak_bytes)}, but {byte_size(available)} are available. Use at "
            f"most --jobs {fitting}."
        )
