"""What a run ran on: versions of the packages, and the hardware. Never the environment."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import psutil

from ampft.text.json_io import JSONValue

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


def hardware(gpu_names: Iterable[str] = ()) -> dict[str, JSONValue]:
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
