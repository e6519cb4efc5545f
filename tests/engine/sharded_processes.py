"""The script of each of two processes that shard by FSDP2; it writes its results for the tests.

torchrun --standalone --nproc_per_node 2 sharded_processes.py TINY_BERT RESULTS RECIPE ARGUMENTS
"""

from __future__ import annotations

import contextlib
import math
import os
import runpy
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import exact_step
import torch
from accelerate import Accelerator, PartialState
from exact_step import Problem, Training, flat_weights, tensor_problem
from two_processes import EFFECTIVE, adamw, problem_named, trained

from ampft.comparison.execution.trial import run_trial
from ampft.data.step_batches import MicroBatch
from ampft.engine.first_step import FirstStepMonitor
from ampft.models.weights import gather_sharded_weights, load_into_sharded_model, perturb_weights
from ampft.precision.accelerator import SHARDING_VARIABLE, forget_accelerator

TRAININGS = (
    *(("fp32", "padded"), ("fp32", "padding-free")),
    *(("bf16", "padding-free"), ("fp16", "padded"), ("bf16", "float32 modules")),
    *(("fp32", "lora"), ("bf16", "frozen")),
)
LORA = ("--lora_r=4", "--learning_rate=0.005")
AVERAGE = ("--mixed_precision=fp32", "--ema_decay=0.9", "--learning_rate=1e-3")
# So fast that the last epoch is not the best.
BEST = ("--lora_r=4", "--learning_rate=0.15", "--num_train_epochs=3")
BEST = (*BEST, "--metric_for_best_model=log_loss", "--checkpoint_total_limit=9")
REPLICATED = PartialState(cpu=True).distributed_type


in_bfloat16 = partial(exact_step.prepare_training_objects, gathers_bfloat16=True)


def set_sharding(enabled: bool) -> None:
    """Train with FSDP2, or with DistributedDataParallel, from the next Accelerator on."""
    os.environ[SHARDING_VARIABLE] = str(enabled).lower()
    PartialState().distributed_type = REPLICATED


def both_ways(mode: str, name: str, tiny_bert: Path) -> dict[str, Any]:
    results = {}
    for way in ("sharded", "replicated"):
        set_sharding(way == "sharded")
        problem = problem_named(name, tiny_bert)
        results[way] = trained(mode, problem, batch_size=EFFECTIVE // 4, micro_batches=2)
    return results


def overflow(rank: int) -> list[tuple[bool, float | None]]:
    """Make the loss of process 1 infinite in the second of three steps."""
    problem = tensor_problem(n=12)
    calls = iter(range(3))

    def loss(model: torch.nn.Module, micro_batch: MicroBatch) -> torch.Tensor:
        value = problem.loss(model, micro_batch)
        return value * math.inf if next(calls) == 1 and rank == 1 else value

    training = Training("fp16", replace(problem, loss=loss), 2, optimizer=adamw)
    return [(step.outcome.skipped, step.outcome.loss_scale) for step in training.steps()]


def state_restored(problem: Problem) -> dict[str, Any]:
    """Gather the weights, perturb them, gather them again, and load the first ones."""
    training = Training("fp32", problem, EFFECTIVE // 2)
    before = gather_sharded_weights(training.model)
    perturb_weights(training.model, seed=3)
    perturbed = gather_sharded_weights(training.model)
    load_into_sharded_model(training.model, before or {})
    return {"before": before, "perturbed": perturbed, "after": flat_weights(training.model)}


def activations(tiny_bert: Path) -> dict[str, int]:
    """Count the bytes saved for the backward pass of a step, sharded and replicated."""
    counted = {}
    for way in ("sharded", "replicated"):
        set_sharding(way == "sharded")
        training = Training("fp32", problem_named("padded", tiny_bert), EFFECTIVE // 2)
        first_step = FirstStepMonitor(training.precision)
        with first_step.measured(training.model, training.prepared):
            next(training.steps())
        counted[way] = (first_step.memory or {})["activations"]
    return counted


def trial(arguments: list[str]) -> dict[str, float]:
    """Time two modes as a comparison does before its plan."""
    modes = ("fp32", "bf16")
    result = run_trial({"classify_argv": arguments, "modes": modes, "launched": time.time()})
    return {mode: result.estimate.modes[mode].step for mode in modes}


def main(tiny_bert: Path, folder: Path, recipe: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    rank = Accelerator(cpu=True).process_index
    results: dict[str, Any] = {
        f"{mode} {name}": both_ways(mode, name, tiny_bert) for mode, name in TRAININGS
    }
    results["activations"] = activations(tiny_bert)
    set_sharding(True)
    with patch.object(exact_step, "prepare_training_objects", in_bfloat16):
        problem = problem_named("padding-free", tiny_bert)
        results["gathered in bf16"] = trained(
            "bf16", problem, batch_size=EFFECTIVE // 4, micro_batches=2
        )
    results["overflow"] = overflow(rank)
    results["state"] = state_restored(problem_named("padded", tiny_bert))
    results["trial"] = trial(list(arguments))
    torch.save(results, folder / f"rank{rank}.pt")
    fewer = [word for word in arguments if not word.startswith(("--learning_rate", "--mixed"))]
    average = (*fewer, *AVERAGE)
    for name, flags in (
        ("run", arguments),
        ("lora", (*fewer, "--mixed_precision=fp16", *LORA)),
        ("average", average),
    ):
        run(recipe, *flags, f"--output_dir={folder / name}", "--checkpointing_steps=2")
        checkpoint = folder / name / "checkpoints" / "step-2"
        resumed = f"--output_dir={folder / f'{name}-resumed'}"
        run(recipe, *flags, resumed, f"--resume_from_checkpoint={checkpoint}")
    run(recipe, *average, f"--output_dir={folder / 'average-replicated'}", sharded=False)
    best = [word for word in fewer if not word.startswith("--num_train_epochs")]
    best += ["--mixed_precision=fp32", *BEST, f"--output_dir={folder / 'best'}"]
    run(recipe, *best, "--checkpointing_steps=3")
    torch.distributed.destroy_process_group()


def run(recipe: str, *arguments: str, sharded: bool = True) -> None:
    """Train as the recipe does; the next run can use the process group again."""
    set_sharding(sharded)
    forget_accelerator()
    sys.argv = [recipe, *arguments]
    with patch("torch.distributed.destroy_process_group"), contextlib.suppress(SystemExit):
        runpy.run_path(recipe, run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
