"""What a user sees of a run in the terminal: the plan, and silence of libraries around it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ampft.data.dataset import ClassificationData
from ampft.errors import InputError
from ampft.metrics.classification import Report
from ampft.runs.record import RunRecord
from ampft.runs.show import (headed_report, lost_updates_words)
from ampft.text.numbers import counted
from ampft.runs.setup import Setup
from ampft.precision.tensor_census import dtype_name
from ampft.text.terminal import labelled as labelled
from ampft.text.terminal import print_line

if TYPE_CHECKING:
    from accelerate import Accelerator


def plan_lines(setup: Setup) -> list[str]:
    """Return what was resolved, line by line: device, precision, model, data, steps."""
    precision, task, loaded = setup.precision, setup.task, setup.loaded
    weights = sum(parameter.numel() for parameter in loaded.model.parameters()) / 1e6
    sizes = ", ".join(f"{name} {len(rows)}" for name, rows in task.data.splits.items())
    batches, steps = setup.step_batches, setup.total_steps
    epochs = steps / len(batches)
    processes = counted(batches.world_size, "process")
    micro_batches = counted(batches.micro_batches, "micro-batch")
    micro = batches.effective_batch_size // (batches.world_size * batches.micro_batches)
    found = ", the largest that fit" if setup.args.auto_micro_batch else ""
    return [
        labelled("device", _device(setup.accelerator)),
        labelled("precision", f"{precision.mode}, {precision.execution}: {precision.reason}"),
        labelled(
            "model",
            f"{loaded.name}, {weights:.{1 if weights >= 1 else 3}f} M "
            f"{dtype_name(precision.storage_dtype)} weights",
            *loaded.notes,
        ),
        labelled(
            "data",
            f"{task.data.name}: {sizes}; {counted(len(task.label_names), 'class')}",
            *task.data.notes,
            *task.notes,
        ),
        labelled(
            "steps",
            f"{steps} = {epochs:.3g} epoch{'s' * (epochs != 1)} x {len(batches)}; effective batch "
            f"{batches.effective_batch_size} = {processes} x {micro_batches} x {micro}{found}",
        ),
    ]


def baseline_words(data: ClassificationData, split: str) -> str:
    """Return what TF-IDF with logistic regression reaches on `split`, or why it does not."""
    from ampft.evaluation.baseline import bag_of_words_baseline

    try:
        figures = bag_of_words_baseline(data, split)
    except InputError as error:  # a model that is trained is not given up for it
        return f"none: {error}"
    return (
        f"TF-IDF with logistic regression: accuracy {figures['accuracy']:.4f}, macro F1 "
        f"{figures['macro_f1']:.4f}, {figures['seconds']:.1f} s"
    )


def result_line(record: RunRecord) -> str:
    """Return the last line of a finished run, of whatever length: programs look for it."""
    metrics, resolved = record.metrics, record.precision.resolved
    peak = None if record.memory is None else record.memory.peak
    memory = "unknown" if peak is None else f"{peak / 2**20:.0f} MiB"
    return (
        f"result     accuracy {metrics['accuracy']:.4f}, macro F1 {metrics['macro_f1']:.4f}, "
        f"{record.timings['total_seconds']:.0f} s, peak memory {memory}, "
        f"{counted(record.steps.skipped, 'step')} skipped, "
        f"{resolved['mode']} {resolved['execution']}{lost_updates_words(record)}"
    )


def print_result(
    record: RunRecord, report: Report, folder: Path, *, selected: bool, baseline: str | None
) -> None:
    """Print the report of a finished run, where it was written, and its last line."""
    print_line(f"\n{headed_report(report, selected=selected)}")
    if baseline:
        print_line(labelled("baseline", baseline))
    print_line(labelled("wrote", f"{folder}: model, report, predictions, history, record"))
    print_line(result_line(record))


def _device(accelerator: Accelerator) -> str:
    device = accelerator.device
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} x {accelerator.num_processes}"
    if device.type == "cpu":
        processes = f", {accelerator.num_processes} processes" * (accelerator.num_processes > 1)
        return f"CPU, {counted(torch.get_num_threads(), 'thread')}{processes}"
    return f"{device.type} x {accelerator.num_processes}"
