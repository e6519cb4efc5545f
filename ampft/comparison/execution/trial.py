"""A process that measures a few steps of each mode, in the place of a run, and ends.

    python -m ampft.comparison.execution.trial REQUEST RESULT

It is launched as a run is. REQUEST is a JSON file: `words` for classify.py, `modes` (None for
those of the default that the device has), `launched` (seconds since the epoch). RESULT is written:
the fields of an `Estimate`, `threads` and `modes_here`, or `error`, the message of an InputError.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate import PartialState

from ampft.arguments import parse_classify_arguments
from ampft.comparison.execution.estimate import Estimate, ModeCost, Size
from ampft.data.steps import IntArray, StepBatches
from ampft.errors import InputError, TrainingStopped
from ampft.precision.accelerator import numerics, separate_accelerators, training_device
from ampft.precision.resolve import UNAVAILABLE, Precision, resolve, survey
from ampft.runs.prepare import Prepared, check_prepared, load_task, prepare_mode, start_clock
from ampft.text.json_io import json_text
from ampft.training.step import accumulate_gradient, apply_step
from ampft.training.threads import restore_cpu_threads
from ampft.training.trackers import installed_trackers

if TYPE_CHECKING:
    pass

DEFAULT_MODES = ("fp32", "bf16", "fp16")
WARM_UP_STEPS = 2
# Where in the order of their lengths the timed step batches stand: their mean is near all's.
QUANTILES = (0.25, 0.75)
# A pause of the machine makes a step longer, and nothing makes it shorter: the least counts.
REPEATS = 2


def main(request_path: str, result_path: str) -> None:
    """Measure, and write the result from the main process."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    result: dict[str, Any]
    try:
        result = measure(request)
    except InputError as error:
        result = {"error": str(error)}
    if os.environ.get("RANK", "0") == "0":
        Path(result_path).write_text(json_text(result), encoding="utf-8")


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Load data and model as classify.py does, and time a few steps in each mode."""
    _refuse_sharding()
    begun = start_clock()
    args = parse_classify_arguments(request["words"])
    device = training_device(cpu=args.use_cpu)
    precisions = [resolve(mode, device) for mode in _modes(request["modes"], device)]
    if args.with_tracking:
        installed_trackers(args.report_to)
    threads = restore_cpu_threads(args.cpu_threads, num_processes=PartialState().num_processes)
    task = load_task(args)
    # At a rate of 0 the weights stay, so that nothing can diverge after the first step.
    args_of_trial = replace(args, learning_rate=0.0)
    costs: dict[str, ModeCost] = {}
    started = 0.0
    for precision in precisions:
        with separate_accelerators():
            prepared = prepare_mode(args_of_trial, precision, task, started=begun)
            check_prepared(prepared)
            # Once: what comes before the first step is much the same in every mode.
            started = started or time.time() - request["launched"]
            costs[precision.mode] = _cost(prepared)
    return {
        **asdict(_estimate(prepared, costs, precisions, started)),
        "threads": threads,
        "modes_here": [precision.mode for precision in precisions],
    }


def _modes(wanted: Sequence[str] | None, device: torch.device) -> list[str]:
    if wanted is not None:
        return list(wanted)
    here = {entry.mode for entry in survey(device) if entry.status != UNAVAILABLE}
    return [mode for mode in DEFAULT_MODES if mode in here]


def _refuse_sharding() -> None:
    """Refuse FSDP before anything is loaded, by what the launcher says.

    A run is asked for its score in fp32 too, and the placebo for perturbed weights: neither goes
    with weights that are cast and sharded.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        raise InputError(
            "--config_file: Accelerate's configuration asks for FSDP, which comparisons do not "
            "support yet. Name one without it, such as accelerate_configs/multi_gpu.yaml."
        )


def _cost(prepared: Prepared) -> ModeCost:
    """Time a few optimizer steps and a batch of an evaluation."""
    prepared.model.train()
    with numerics(prepared.precision):
        longest, chosen = _spread(prepared.step_batches)

        def timed(step: int) -> float:
            return _step(prepared, step)

        for _ in range(WARM_UP_STEPS):
            timed(longest)
        step = mean_of_least(timed, chosen)
        evaluated = min(_evaluated_example(prepared) for _ in range(REPEATS))
    return ModeCost(step=step, evaluated_example=evaluated)


def mean_of_least(timed: Callable[[int], float], steps: Sequence[int]) -> float:
    """Return the mean over `steps` of the least that each took in seconds.

    Args:
        timed: Takes a step and returns its seconds.
        steps: Taken in turn, `REPEATS` times over, so that a pause that lasts for several steps
            does not meet all times of one.
    """
    rounds = [[timed(step) for step in steps] for _ in range(REPEATS)]
    return float(np.mean(np.min(rounds, axis=0)))


def _spread(batches: StepBatches) -> tuple[int, list[int]]:
    """Return the first epoch's longest step, and some at quantiles of length."""
    lengths = batches.examples.lengths
    sizes = [int(lengths[batches.effective_ids(0, step)].sum()) for step in range(len(batches))]
    by_length = np.argsort(sizes, kind="stable")
    timed = [int(by_length[int(quantile * len(batches))]) for quantile in QUANTILES]
    # The longest warms up: a kernel is prepared, and memory fetched, for the largest shapes.
    return int(by_length[-1]), timed


def _step(prepared: Prepared, step: int) -> float:
    """Return the seconds of one optimizer step, waiting for its data included."""
    accelerator, optimizer = prepared.accelerator, prepared.optimizer
    started = time.perf_counter()
    (step_batch,) = prepared.step_batches.epoch(0, start=step, stop=step + 1)
    losses = accumulate_gradient(accelerator, prepared.model, prepared.task.loss, step_batch)
    # A run that diverges will say so itself; its steps take as long.
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


def _evaluated_example(prepared: Prepared) -> float:
    """Return the seconds per example and process of one batch, of lengths as in the split."""
    model, task = prepared.model, prepared.task
    examples = task.examples(prepared.final_split)
    by_length = np.argsort(examples.lengths, kind="stable")
    count = min(prepared.args.per_device_eval_batch_size, len(by_length))
    ids: IntArray = by_length[np.linspace(0, len(by_length) - 1, count).astype(np.int64)]
    model.eval()
    with torch.no_grad():
        started = time.perf_counter()
        for rows in task.decode(model, examples.collate(ids)).values():
            rows.cpu()
        seconds = time.perf_counter() - started
    model.train()
    return seconds / count / prepared.accelerator.num_processes


def _estimate(
    prepared: Prepared, costs: dict[str, ModeCost], precisions: Sequence[Precision], started: float
) -> Estimate:
    args, data = prepared.args, prepared.task.data
    sizes = {name: len(rows) for name, rows in data.splits.items()}
    weights = prepared.loaded.model.state_dict().values()
    return Estimate(
        startup=started,
        modes=costs,
        executions={precision.mode: precision.execution for precision in precisions},
        device=prepared.accelerator.device.type,
        size=Size(
            epochs=args.num_train_epochs,
            train_examples=sizes["train"],
            max_steps=args.max_train_steps,
        ),
        effective_batch_size=prepared.step_batches.effective_batch_size,
        validation_examples=sizes.get("validation", 0) if args.load_best_model_at_end else 0,
        final_examples=sizes[prepared.final_split],
        classes=len(prepared.task.label_names),
        model_bytes=sum(tensor.numel() * tensor.element_size() for tensor in weights),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
