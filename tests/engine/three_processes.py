"""The script of each of three processes on two nodes, started by torchrun once per node.

torchrun --nnodes 2 --node_rank RANK ... three_processes.py TINY_BERT RESULTS
"""

from __future__ import annotations

import faulthandler
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from exact_step import Training, flat_gradient, flat_weights, tensor_problem
from two_processes import EFFECTIVE, evaluated, not_a_number, overflow, problem_named, trained

from ampft.arguments import parse_classify_arguments
from ampft.engine.step import accumulate_gradient
from ampft.runs.train import train

TRAININGS = [("fp32", "padded"), ("fp16", "padding-free")]
RUN_NAME = "run"
SECONDS_UNTIL_HUNG = 300


def fewer_examples_than_processes() -> dict[str, Any]:
    """Train two epochs on two examples, so that one process never has any."""
    training = Training("fp32", tensor_problem(n=2), 1)
    steps = list(training.steps(epochs=2))
    return {
        "ids": [step.ids for step in steps],
        "gradients": [step.gradient for step in steps],
        "weights": flat_weights(training.model),
    }


def gradients(tiny_bert: Path, start: int) -> list[torch.Tensor]:
    """Compute the gradients of an epoch's steps from step `start` on, always with one model."""
    training = Training("fp32", problem_named("padded", tiny_bert), EFFECTIVE // 3)
    found = []
    for step_batch in training.batches.epoch(0, start=start):
        accumulate_gradient(training.accelerator, training.model, training.problem.loss, step_batch)
        found.append(flat_gradient(training.model))
        training.prepared.zero_grad()
    return found


def run_flags(tiny_bert: Path, data: Path, output_dir: Path, processes: int) -> list[str]:
    """Return flags of a run whose weights stay as they are, so that reports can be compared."""
    settings = {
        "model_name_or_path": tiny_bert,
        "train_file": data / "train.csv",
        "validation_file": data / "validation.csv",
        "test_file": data / "test.csv",
        "output_dir": output_dir,
        "learning_rate": 0,
        "num_train_epochs": 1,
        "per_device_train_batch_size": EFFECTIVE // processes,
        "cpu_threads": 1,
    }
    return [*(f"--{name}={value}" for name, value in settings.items()), "--use_cpu"]


def forget_accelerators() -> None:
    """Begin again, with the same process group."""
    AcceleratorState._reset_state()
    GradientState._reset_state()


def main(tiny_bert: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    rank = Accelerator(cpu=True).process_index
    results: dict[str, Any] = {
        "node": int(os.environ["GROUP_RANK"]),
        "evaluated": evaluated(),
        "overflow": overflow(rank),
        "nan": not_a_number(rank, "bf16"),
        "fewer": fewer_examples_than_processes(),
        "gradients": [gradients(tiny_bert, start) for start in (0, 1)],
    }
    for mode, name in TRAININGS:
        results[f"{mode} {name}"] = trained(
            mode, problem_named(name, tiny_bert), batch_size=EFFECTIVE // 3, micro_batches=1
        )
    torch.save(results, folder / f"rank{rank}.pt")
    forget_accelerators()
    train(parse_classify_arguments(run_flags(tiny_bert, folder, folder / RUN_NAME, 3)))


if __name__ == "__main__":
    warnings.simplefilter("default")
    faulthandler.dump_traceback_later(SECONDS_UNTIL_HUNG, exit=True)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
