"""Time a few steps of each mode in a separate process.

    python -m ampft.comparison.execution.trial REQUEST RESULT

The process is launched like a run. REQUEST is a JSON file with `classify_argv` (arguments of
classify.py), `modes` (null for the default modes that the device supports) and `launched` (seconds
since the epoch). RESULT is the JSON file to write: a `TrialResult`, or `error`, the message of an
`InputError`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from accelerate import PartialState

from ampft.arguments import parse_classify_arguments
from ampft.comparison.execution.launch import write_subprocess_result
from ampft.comparison.execution.plan import (
    KIND_OF_LABELS,
    TOO_FEW,
    CostEstimate,
    FinalRows,
    ModeCost,
    TrainingSize,
    TrialResult,
)
from ampft.comparison.execution.plan_text import limits_of_design, shows_nothing
from ampft.comparison.settings import ComparisonDesign, chosen_metric
from ampft.data.splits import dependent_groups
from ampft.data.step_batches import IntArray
from ampft.engine.step import accumulate_gradient, apply_step
from ampft.engine.threads import restore_cpu_threads
from ampft.errors import TrainingStopped
from ampft.evaluation.evaluate import as_array
from ampft.features.resources import PeakMemoryMonitor
from ampft.features.trackers import installed_trackers
from ampft.machine import resident_peak
from ampft.precision.accelerator import numerics, separate_accelerators, training_device
from ampft.precision.resolve import UNAVAILABLE, Precision, resolve, survey_modes
from ampft.runs.prepare import begins_at_probe, load_task, prepare_mode, start_clock
from ampft.runs.prepared import Prepared
from ampft.runs.prepared_checks import check_prepared, disk_bytes, planned_checkpoints
from ampft.tasks.task import Task
from ampft.text.json_io import from_json
from ampft.text.numbers import counted

DEFAULT_MODES = ("fp32", "bf16", "fp16")
WARM_UP_STEPS = 2
# Step batches at these quantiles of length are timed. Their mean is close to the overall mean.
QUANTILES = (0.25, 0.75)
# Interruptions only ever lengthen a step, so the minimum of several repeats is used.
REPEATS = 2


def run_trial(request: dict[str, Any]) -> TrialResult | dict[str, FinalRows]:
    """Load data and model as classify.py does, and time a few steps of each mode.

    Returns:
        The result; or, before anything is timed, test data that cannot decide the comparison.
    """
    imported, process_start = time.time() - request["launched"], start_clock()
    args = parse_classify_arguments(request["classify_argv"])
    device = training_device(cpu=args.use_cpu)
    modes = request["modes"]
    if modes is None:
        available = {entry.mode for entry in survey_modes(device) if entry.status != UNAVAILABLE}
        modes = [mode for mode in DEFAULT_MODES if mode in available]
    precisions = [resolve(mode, device) for mode in modes]
    if args.with_tracking:
        installed_trackers(args.report_to)
    threads = restore_cpu_threads(args.cpu_threads, num_processes=PartialState().num_processes)
    task = load_task(args)
    if request.get("design") is not None:
        design = from_json(ComparisonDesign, request["design"], "design")
        size = _final_rows(task, design, modes=len(precisions))
        metric = chosen_metric(design.metric, list(task.problem.metrics))
        found = limits_of_design(design, metric, cases=size.cases, arms=size.arms)
        if shows_nothing(design, found):
            return {TOO_FEW: size}
    # A learning rate of 0 keeps the weights constant, so that no later step diverges.
    trial_args = replace(args, learning_rate=0.0)
    costs: dict[str, ModeCost] = {}
    startup = 0.0
    for precision in precisions:
        with separate_accelerators():
            prepared = prepare_mode(trial_args, precision, task, started=process_start)
            check_prepared(prepared)
            # Measured once, because the startup time is about the same in every mode.
            startup = startup or time.time() - request["launched"]
            costs[precision.mode] = _mode_cost(prepared)
    device_name = f"CPU, {counted(threads, 'thread')}" if device.type == "cpu" else device.type
    estimate = _estimate(prepared, costs, precisions, startup=startup, device=device_name)
    is_probed = begins_at_probe(args, prepared.loaded)
    config = prepared.loaded.model.config
    return TrialResult(
        estimate,
        tuple(precision.mode for precision in precisions),
        splits=dict(task.data.fingerprints),
        compared=_compared(prepared),
        peak_memory=PeakMemoryMonitor(device, process_start.memory).peak.peak,
        disk_bytes=disk_bytes(prepared, planned_checkpoints(prepared)),
        learning_rate=args.with_learning_rate(config, begins_at_probe=is_probed).learning_rate,
        import_seconds=imported,
    )


def _final_rows(task: Task, design: ComparisonDesign, *, modes: int) -> FinalRows:
    sizes = {name: len(rows) for name, rows in task.data.splits.items()}
    split = "test" if "test" in sizes else "validation"
    groups = dependent_groups(task.data, split)
    cases = sizes[split] if groups is None else len(groups)
    return FinalRows(
        split=split,
        cases=cases,
        rows=sum(sizes.values()) * cases // sizes[split],
        problem=task.problem.name,
        # Of several arms, --select compares one.
        arms=1 if design.select_seeds else max(len(design.arm_settings), modes) - 1,
    )


def _compared(prepared: Prepared) -> dict[str, str]:
    """Return what must be equal in all runs of a comparison."""
    split, task = prepared.final_split, prepared.task
    return {
        "reported split": split,
        f"examples of the split {split}": task.data.fingerprints[split],
        "classes": ", ".join(task.label_names),
        KIND_OF_LABELS: task.problem.name,
    }


def _mode_cost(prepared: Prepared) -> ModeCost:
    """Time a few optimizer steps and one batch of an evaluation."""
    prepared.model.train()
    batches, lengths = prepared.step_batches, prepared.step_batches.examples.lengths
    sizes = [int(lengths[batches.effective_ids(0, step)].sum()) for step in range(len(batches))]
    by_length = np.argsort(sizes, kind="stable")  # the steps of the first epoch
    timed_steps = [int(by_length[int(quantile * len(batches))]) for quantile in QUANTILES]
    with numerics(prepared.precision):

        def time_step(step: int) -> float:
            return _step_seconds(prepared, step)

        # Warming up on the longest step prepares kernels and memory for the largest shapes.
        for _ in range(WARM_UP_STEPS):
            time_step(int(by_length[-1]))
        step = mean_of_minima(time_step, timed_steps)
        evaluated = min(_evaluated_example_seconds(prepared) for _ in range(REPEATS))
    return ModeCost(step=step, evaluated_example=evaluated)


def mean_of_minima(time_step: Callable[[int], float], steps: Sequence[int]) -> float:
    """Return the mean over `steps` of the minimum of their times, in seconds.

    Args:
        time_step: Runs a step and returns its duration in seconds.
        steps: Steps to run in turn, `REPEATS` times over, so that an interruption of several steps
            does not affect all repeats of one step.
    """
    rounds = [[time_step(step) for step in steps] for _ in range(REPEATS)]
    return float(np.mean(np.min(rounds, axis=0)))


def _step_seconds(prepared: Prepared, step: int) -> float:
    """Return the seconds of one optimizer step, including waiting for its data."""
    accelerator, optimizer = prepared.accelerator, prepared.optimizer
    started = time.perf_counter()
    (step_batch,) = prepared.step_batches.epoch(0, start=step, stop=step + 1)
    losses = accumulate_gradient(accelerator, prepared.model, prepared.task.loss, step_batch)
    # Divergence is reported by the run itself, and does not change the duration of a step.
    with contextlib.suppress(TrainingStopped):
        apply_step(
            accelerator,
            prepared.model,
            optimizer,
            prepared.schedule,
            losses=losses,
            max_grad_norm=prepared.args.max_grad_norm or None,
        )
    optimizer.zero_grad()
    return time.perf_counter() - started


def _evaluated_example_seconds(prepared: Prepared) -> float:
    """Return the seconds per example and process of one batch with the lengths of the split."""
    model, task = prepared.model, prepared.task
    examples = task.examples(prepared.final_split)
    by_length = np.argsort(examples.lengths, kind="stable")
    count = min(prepared.args.per_device_eval_batch_size, len(by_length))
    ids: IntArray = by_length[np.linspace(0, len(by_length) - 1, count).astype(np.int64)]
    model.eval()
    with torch.no_grad():
        started = time.perf_counter()
        for rows in task.decode(model, examples.collate(ids)).values():
            as_array(rows)
        seconds = time.perf_counter() - started
    model.train()
    return seconds / count / prepared.accelerator.num_processes


def _estimate(
    prepared: Prepared,
    costs: dict[str, ModeCost],
    precisions: Sequence[Precision],
    *,
    startup: float,
    device: str,
) -> CostEstimate:
    args, data = prepared.args, prepared.task.data
    sizes = {name: len(rows) for name, rows in data.splits.items()}
    weights = prepared.loaded.model.state_dict().values()
    groups = dependent_groups(data, prepared.final_split)
    assert args.num_train_epochs is not None, "prepare_training() chooses the default"
    return CostEstimate(
        startup=startup,
        modes=costs,
        executions={precision.mode: precision.execution for precision in precisions},
        device=device,
        size=TrainingSize(
            epochs=args.num_train_epochs,
            train_examples=sizes["train"],
            max_steps=args.max_train_steps,
        ),
        effective_batch_size=prepared.step_batches.effective_batch_size,
        validation_examples=sizes.get("validation", 0) if args.load_best_model_at_end else 0,
        final_examples=sizes[prepared.final_split],
        classes=len(prepared.task.label_names),
        model_bytes=sum(tensor.numel() * tensor.element_size() for tensor in weights),
        eval_steps=args.eval_steps,
        cases=sizes[prepared.final_split] if groups is None else len(groups),
        peak_bytes=resident_peak() or 0,
    )


if __name__ == "__main__":
    write_subprocess_result(run_trial, *sys.argv[1:])
