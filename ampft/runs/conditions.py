"""The conditions of a training: what a checkpoint states, so that a resume can compare them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from ampft.data.steps import StepBatches
from ampft.machine import hardware, versions
from ampft.models.sharded import class_name
from ampft.precision.compilation import compile_backend
from ampft.precision.float32_modules import float32_forwards
from ampft.precision.sharding import is_sharded
from ampft.runs.compatibility import argument_settings
from ampft.runs.prepared import Prepared

CONFIGURATION = "configuration"
MICRO_BATCHES = "micro-batches per step and process"


def settings_of(prepared: Prepared) -> dict[str, Any]:
    """Return what must be equal, by the names in which a difference is reported."""
    task, precision, loaded = prepared.task, prepared.precision, prepared.loaded
    return {
        "precision": precision.mode,
        "model": class_name(loaded.model),
        "initial weights": loaded.float32_sha256,
        CONFIGURATION: prepared.configuration,
        "preprocessing": prepared.preprocessing,
        "modules in float32": list(float32_forwards(loaded.model)),
        "classes": list(task.label_names),
        **{f"data of {name}": digest for name, digest in task.data.fingerprints.items()},
        "optimizer steps": prepared.total_steps,
        "steps per epoch": len(prepared.step_batches),
        "effective batch size": prepared.step_batches.effective_batch_size,
        **argument_settings(asdict(prepared.args)),
    }


def topology_of(prepared: Prepared, step_batches: StepBatches) -> dict[str, Any]:
    """Return what may differ only with `--allow_topology_change`.

    Args:
        prepared: Components of the training.
        step_batches: Its step batches, with the current number of micro-batches.
    """
    backend = compile_backend(prepared.accelerator)
    return {
        "processes": prepared.accelerator.num_processes,
        "weights sharded": is_sharded(prepared.accelerator),
        MICRO_BATCHES: step_batches.micro_batches,
        "device": prepared.accelerator.device.type,
        "execution": prepared.precision.execution,
        "CPU threads per process": torch.get_num_threads(),
        **({} if backend is None else {"compilation": backend}),
    }


def environment_of(prepared: Prepared) -> dict[str, Any]:
    """Return hardware and versions. If they differ, the last digits of results may differ."""
    device = prepared.accelerator.device
    gpus = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    machine = hardware(gpus)
    packages = {f"version of {name}": version for name, version in versions().items()}
    return {"CPU": machine["cpu"], "GPU": ", ".join(gpus), **packages}
