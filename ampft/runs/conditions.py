"""The conditions of a training: what a checkpoint states, so that a resume can compare them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from ampft.data.steps import StepBatches
from ampft.errors import AlreadyFinished
from ampft.machine import hardware, versions
from ampft.models.weights import class_name
from ampft.precision.compilation import compile_backend
from ampft.precision.float32_modules import float32_forwards
from ampft.precision.sharding import is_sharded
from ampft.runs.compatibility import argument_settings, differences, refuse_differences
from ampft.runs.folder import on_main_process
from ampft.runs.manifest import RECORD_NAME
from ampft.runs.prepared import Prepared
from ampft.runs.record import RunRecord, read_record

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


def recorded_settings(record: RunRecord) -> dict[str, Any]:
    """Return what the record of a run has of `settings_of`; an earlier version's has less."""
    model = record.model
    settings = {
        "precision": record.precision.requested,
        "model": model.architecture,
        "initial weights": model.initial_weights_sha256,
        CONFIGURATION: model.configuration,
        "preprocessing": model.preprocessing,
        "modules in float32": list(record.precision.fp32_modules),
        "classes": list(record.label_names),
        **{f"data of {name}": digest for name, digest in record.data.fingerprints.items()},
        "optimizer steps": record.steps.total,
        "effective batch size": record.steps.effective_batch_size,
    }
    known = {name: value for name, value in settings.items() if value is not None}
    return {**known, **argument_settings(record.arguments)}


def check_unfinished(prepared: Prepared) -> None:
    """Check that the run in the output folder, if there is one, has not finished.

    Raises:
        AlreadyFinished: It has, with the same settings, data and model.
        InputError: It has, with others.
    """
    point = prepared.resume_point
    if point is None or not point.is_finished:
        return
    record = on_main_process(lambda: read_record(point.output_dir))
    before, now = recorded_settings(record), settings_of(prepared)
    for name in before.keys() ^ now.keys():
        if not name.startswith("data of "):  # known to one version, or only before a run
            before.pop(name, None)
            now.pop(name, None)
    refuse_differences(
        f"{point.output_dir / RECORD_NAME}",
        differences(before, now),
        "Choose another --output_dir.",
    )
    raise AlreadyFinished(
        f"{point.output_dir}: this run has finished, so nothing is trained. To see its report: "
        f"ampft report {point.output_dir}"
    )


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
