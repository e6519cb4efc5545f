"""What a benchmark trains, and how each system gets its tokens, its batches and its model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

import torch
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    TrainerCallback,
)

from ampft.models.packing.install import KERNEL_CACHE_CAPACITIES
from ampft.tasks.task import TaskSettings, make_task

TORCHS_CAPACITY = "1024"


class StepClock(TrainerCallback):
    """Notes the end of every optimizer step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        """Called by the Trainer; called by hand elsewhere."""
        del model  # of use to those who look at more than time
        self.ends.append(time.perf_counter())


@dataclass(frozen=True, eq=False)
class Work:
    """What is trained: data, model, precision and size, the same for every system.

    Attributes:
        data: Texts.
        model: Folder of the model.
        mode: "fp32" or "bf16" (fp16 for this project alone: the others do not run it on a CPU).
        batch_size: Effective batch.
        max_length: Tokens.
        steps: Optimizer steps.
        clock: Makes what is told, with the model, that a step has ended.
    """

    data: Any
    model: str
    mode: str
    batch_size: int
    max_length: int
    steps: int
    clock: Callable[[], StepClock] = StepClock


def limits_of_torch() -> None:
    """Keep as many compiled kernels as torch does: ampft's limits are not for its peers."""
    os.environ |= {name: os.environ.get(name, TORCHS_CAPACITY) for name in KERNEL_CACHE_CAPACITIES}


_TASKS: dict[tuple[int, str, int, bool], Any] = {}


def padded_task(work: Work) -> Any:
    """Return the tokens of the work and its model, both as they are without this project's path."""
    return task_of(work, False)


def task_of(work: Work, remove_padding: bool) -> Any:
    """Return the tokens of the work, made once, and its model."""
    key = (id(work.data), work.model, work.max_length, remove_padding)
    if key not in _TASKS:
        settings = TaskSettings(
            model_name_or_path=work.model,
            max_seq_length=work.max_length,
            remove_padding=remove_padding,
        )
        _TASKS[key] = make_task(work.data, settings)
    return _TASKS[key]


def mean_tokens(work: Work) -> float:
    """Return the mean number of tokens of a training example."""
    return float(task_of(work, True).examples("train").lengths.mean())


def epochs(loader: Any, steps: int) -> Iterator[Any]:
    """Yield batches of as many epochs as the steps take."""
    return islice(chain.from_iterable(repeat(loader)), steps)


def padded_batches(work: Work, task: Any) -> DataLoader[Any]:
    """Return the loader of Accelerate's and Fabric's examples."""
    rows = task.examples("train").rows.add_column("labels", task.examples("train").labels.tolist())
    collator = DataCollatorWithPadding(task.tokenizer)
    return DataLoader(rows, shuffle=True, batch_size=work.batch_size, collate_fn=collator)


def task_and_model(work: Work, seed: int) -> tuple[Any, Any]:
    """Return the tokens and a model as users of the library load it: no hooks, no packing."""
    task = padded_task(work)
    set_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(
        task.model_path, num_labels=len(task.label_names), dtype=torch.float32
    )
    return task, model
