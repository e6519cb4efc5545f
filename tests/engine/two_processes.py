"""The script of each of two processes, started by torchrun; it writes its results for the tests.

torchrun --standalone --nproc_per_node 2 two_processes.py TINY_BERT RESULTS
"""

from __future__ import annotations

import itertools
import math
import signal
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState, GradientState
from counted_task import BufferedModel, CountedTask
from exact_step import (
    Problem,
    Training,
    flat_gradient,
    flat_weights,
    poison,
    tensor_problem,
    text_problem,
)
from tiny_masks import IGNORED, pixel_task, tiny_erfnet, write_folders
from tiny_media import media_task
from tiny_text import tiny_column_task, tiny_task, with_weights
from tiny_words import tiny_word_task

from ampft.data.step_batches import MicroBatch, TensorExamples
from ampft.engine.ending import StopSignalMonitor, TimeLimit
from ampft.engine.out_of_memory import fit_micro_batches
from ampft.engine.saved_step import StepRandomState, save_step
from ampft.engine.step import _reduced, accumulate_gradient
from ampft.errors import TrainingStopped
from ampft.evaluation.evaluate import evaluate
from ampft.precision.float32_modules import keep_in_fp32
from ampft.signals import StopRequested

# Effective batches of 12 leave one example for the last step, so that one process has none.
EXAMPLES, EFFECTIVE = 25, 12
NAMES = ("padded", "padding-free", "pixels", "words", "weights", "columns")
# Sounds of unequal lengths run one after another on each process; see `models.by_length`.
# DINOv2 has an embedding of masks, which has no gradient.
MEDIA = ("convnext", "wav2vec2 group norm", "dinov2")
PARTS = {"lora": {"lora_r": 2, "lora_target_modules": "all-linear"}, "frozen": {"train_layers": 1}}


class Masked(TensorExamples):
    """Images with masks in memory; an image weighs as many pixels as it has labelled ones."""

    @property
    def weights(self) -> np.ndarray:
        return (self.tensors["labels"] != IGNORED).sum(dim=(1, 2)).double().numpy()


def problem_named(name: str, tiny_bert: Path) -> Problem:
    if name == "words":
        torch.manual_seed(0)  # for the new head
        return text_problem(tiny_word_task(tiny_bert, train=EXAMPLES, max_seq_length=24, stride=6))
    if name == "pixels":
        with TemporaryDirectory() as folder:
            task = pixel_task(write_folders(Path(folder) / "data", train=EXAMPLES))
            examples = Masked(task.examples("train").collate(np.arange(EXAMPLES)))
            return Problem(tiny_erfnet(), examples, task.loss)
    if name == "columns":
        torch.manual_seed(0)  # for the new head
        return text_problem(tiny_column_task(tiny_bert, train=EXAMPLES))
    settings = {"remove_padding": name != "padded", **PARTS.get(name, {})}
    torch.manual_seed(2)  # for the adapters
    task = tiny_task(tiny_bert, train=EXAMPLES, **settings)
    problem = text_problem(with_weights(task, np.arange(EXAMPLES)) if name == "weights" else task)
    if name == "float32 modules":
        keep_in_fp32(problem.model, ["layer.1.*", "classifier"])
    return problem


def media_problem(folder: Path, family: str) -> Problem:
    """Return a problem of 15 images or sounds; the main process writes them."""
    with PartialState().main_process_first():  # other processes would not save a configuration
        task = media_task(folder, family, per_class=5)
    torch.manual_seed(1)  # of the head
    return text_problem(task)


def trained(mode: str, problem: Problem, *, batch_size: int, micro_batches: int) -> dict[str, Any]:
    """Train one epoch with SGD, in fp16 with a learning rate of zero.

    In fp16, weights that differ in the last place change the rounding of products, so that
    gradients are equal within their tolerance only if the weights are equal.
    """
    frozen = mode == "fp16"
    # At 65536 the one example of the last step can overflow, because the loss is multiplied by the
    # number of processes, over which DistributedDataParallel averages.
    training = Training(
        mode,
        problem,
        batch_size,
        micro_batches,
        loss_scale=4096.0,
        rate=lambda step: float(not frozen),
    )
    steps = list(training.steps())
    return {
        "ids": [step.ids for step in steps],
        "effective_ids": [step.effective_ids for step in steps],
        "gradients": [step.gradient for step in steps],
        "losses": [step.outcome.loss for step in steps],
        "finds_unused": getattr(training.model, "find_unused_parameters", False),
        "weights": flat_weights(training.model),
    }


def overflow(rank: int) -> dict[str, Any]:
    """Insert an infinity on process 1 in the second of three steps."""
    problem = tensor_problem(n=12)
    counter = itertools.count()
    poison(problem.model, math.inf, lambda: next(counter) == 1 and rank == 1)
    training = Training("fp16", problem, 2, optimizer=adamw, rate=lambda step: 1 / (1 + step))
    weights, outcomes = [], []
    for step in training.steps():
        weights.append(flat_weights(training.model))
        outcomes.append(step.outcome)
    return {
        "skipped": [outcome.skipped for outcome in outcomes],
        "scales": [outcome.loss_scale for outcome in outcomes],
        "rates": [outcome.learning_rate for outcome in outcomes],
        "weights": weights,
    }


def adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def not_a_number(rank: int, mode: str) -> dict[str, Any]:
    """Insert a NaN on process 0 in the first step."""
    problem = tensor_problem(n=12)
    before = flat_weights(problem.model)
    poison(problem.model, math.nan, lambda: rank == 0)
    training = Training(mode, problem, 2, optimizer=adamw)
    message = ""
    try:
        next(training.steps())
    except TrainingStopped as error:
        message = str(error)
    return {"message": message, "unchanged": torch.equal(flat_weights(training.model), before)}


def saved_step(folder: Path) -> torch.Tensor:
    """Save the first step of a model with dropout; return its gradient."""
    torch.manual_seed(5)
    training = Training("fp32", dropout_problem(), 2, micro_batches=3)
    step_batch = next(training.batches.epoch(0))
    start = StepRandomState.now(training.accelerator.device)
    loss = training.problem.loss
    losses = accumulate_gradient(training.accelerator, training.model, loss, step_batch)
    save_step(
        folder, training.accelerator, training.model, step_batch, step=1, mode="fp32",
        loss_scale=None, start=start, losses=losses,
    )  # fmt: skip
    return flat_gradient(training.model)


def dropout_problem() -> Problem:
    problem = tensor_problem(n=12)
    return replace(problem, model=torch.nn.Sequential(problem.model, torch.nn.Dropout(0.3)))


def skipped_steps(rank: int) -> tuple[list[bool], torch.Tensor]:
    """Skip the second of three steps, in which process 0 has a NaN; return the weights, too."""
    problem, counter = tensor_problem(n=12), itertools.count()
    poison(problem.model, math.nan, lambda: next(counter) == 1 and rank == 0)
    training = Training("bf16", problem, 2, skip_nonfinite=True)
    skipped = [step.outcome.skipped for step in training.steps()]
    return skipped, flat_weights(training.model)


def evaluated() -> list[tuple[int, int, list[int], list[list[int]], torch.Tensor]]:
    """Evaluate 1 to 17 examples in batches of 1 to 5, each time after a training step."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(BufferedModel())
    results = []
    for n, batch_size in itertools.product(range(1, 18), range(1, 6)):
        # A forward pass with gradients makes the next one broadcast the buffers.
        model(torch.ones(1, 4)).sum().backward()
        predictions = evaluate(accelerator, model, CountedTask(n), "test", batch_size=batch_size)
        confusion = torch.zeros(3, 3, dtype=torch.int64)
        labels, predicted = predictions.labels, predictions.predicted
        confusion.index_put_(
            (torch.from_numpy(labels), torch.from_numpy(predicted)),
            torch.ones(n, dtype=torch.int64),
            accumulate=True,
        )
        probabilities = torch.from_numpy(predictions.probabilities)
        ids = predictions.example_ids.tolist()
        results.append((n, batch_size, ids, confusion.tolist(), probabilities))
    return results


def micro_batches_that_fit(rank: int) -> int:
    """Search with memory for six examples on process 0 and for two on process 1."""
    problem = tensor_problem(n=12)
    training = Training("fp32", problem, 6)

    def loss(model: torch.nn.Module, micro_batch: MicroBatch) -> torch.Tensor:
        if len(micro_batch.ids) > (6, 2)[rank]:
            raise torch.OutOfMemoryError("planted")
        return problem.loss(model, micro_batch)

    step_batches = fit_micro_batches(training.accelerator, problem.model, loss, training.batches)
    training.batches = step_batches
    next(training.steps())  # the search must not disturb the communication
    return step_batches.micro_batches


def time_limits(rank: int) -> list[bool]:
    """Poll a time limit that has passed on neither process, and then on process 1 only."""
    stop, reached = StopSignalMonitor(Accelerator(cpu=True)), []
    for earlier in (0.0, 100.0 * rank):
        limit = TimeLimit(60.0, time.perf_counter(), earlier)
        stop.poll(limit)
        reached.append(limit.is_reached)
    return reached


def stop_requests(rank: int) -> list[str]:
    """Poll twice; between the polls, process 1 receives a signal."""
    stop, results = StopSignalMonitor(Accelerator(cpu=True)), []
    with stop.listening():
        for poll in range(2):
            if (rank, poll) == (1, 1):
                signal.raise_signal(signal.SIGUSR1)
            try:
                stop.poll()
                results.append("none")
            except StopRequested as request:
                results.append(str(request))
    return results


def votes(rank: int) -> list[float | str]:
    """Vote with the loss of a step, before which process 1 has received a signal."""
    stop, limit = StopSignalMonitor(Accelerator(cpu=True)), TimeLimit(60.0, time.perf_counter())
    with stop.listening():
        if rank == 1:
            signal.raise_signal(signal.SIGUSR1)
        loss = torch.tensor(1.0 + rank)
        total, *counts = _reduced(stop.accelerator, loss, stop.votes(limit))
        try:
            stop.decide([float(count) for count in counts], limit)
        except StopRequested as request:
            return [float(total), str(request)]
    return [float(total), "none"]


def main(tiny_bert: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    rank = Accelerator(cpu=True).process_index
    results: dict[str, Any] = {"evaluated": evaluated()}
    for mode, name, micro_batches in itertools.product(("fp32", "fp16"), (*NAMES, *PARTS), (1, 2)):
        results[f"{mode} {name} {micro_batches}"] = trained(
            mode,
            problem_named(name, tiny_bert),
            batch_size=EFFECTIVE // 2 // micro_batches,
            micro_batches=micro_batches,
        )
    for family in MEDIA:
        results[family] = trained(
            "fp32", media_problem(folder / family, family), batch_size=2, micro_batches=3
        )
    results["overflow"] = overflow(rank)
    results["nan fp32"], results["nan bf16"] = (
        not_a_number(rank, "fp32"),
        not_a_number(rank, "bf16"),
    )
    results["skipped_steps"] = skipped_steps(rank)
    results["saved_step"] = saved_step(folder / "step-1")
    results["time_limits"] = time_limits(rank)
    results["stop_requests"] = stop_requests(rank)
    results["votes"] = votes(rank)
    results["micro_batches"] = micro_batches_that_fit(rank)
    torch.save(results, folder / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("default")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
