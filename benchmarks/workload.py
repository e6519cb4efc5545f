"""The training job of a benchmark, and the tokens, batches and models that systems get for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

import datasets
import torch
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    TrainerCallback,
)

from ampft.fast.packing.install import KERNEL_CACHE_CAPACITIES
from ampft.tasks.task import make_task
from ampft.tasks.task_settings import TaskSettings

TORCH_CAPACITY = "1024"  # kernels; the default of oneDNN and of ideep


class StepClock(TrainerCallback):
    """Records the end time of every optimizer step."""

    read: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        """Record the time. The Trainer calls this; the other loops call it themselves."""
        del model  # for subclasses
        self.ends.append(self.read())


class ProcessorClock(StepClock):
    """Records processor time, which other programs on the machine hardly change."""

    read = staticmethod(time.process_time)


@dataclass(frozen=True, eq=False)
class Workload:
    """A training job: data, model, precision and size, the same for every system."""

    data: Any  # Training texts with labels.
    model: str  # Folder of the model.
    mode: str  # "fp32", "bf16", or "fp16", which on a CPU only ampft runs.
    batch_size: int  # Effective batch size, in examples.
    max_length: int  # Maximum length of a text, in tokens.
    steps: int  # Number of optimizer steps.
    # Factory of the callback that is called with the model at the end of every step.
    clock: type[StepClock] = StepClock


def use_torch_kernel_cache_limits() -> None:
    """Cache as many compiled kernels as torch does by default; ampft would cache fewer."""
    os.environ |= {name: os.environ.get(name, TORCH_CAPACITY) for name in KERNEL_CACHE_CAPACITIES}


_TASKS: dict[tuple[int, str, int, bool], Any] = {}


def cached_task(workload: Workload, *, remove_padding: bool) -> Any:
    """Return the task of a workload; its texts are tokenized once per process."""
    key = (id(workload.data), workload.model, workload.max_length, remove_padding)
    if key not in _TASKS:
        settings = TaskSettings(
            model_name_or_path=workload.model,
            max_seq_length=workload.max_length,
            padding=not remove_padding,
        )
        _TASKS[key] = make_task(workload.data, settings)
    return _TASKS[key]


def mean_tokens(workload: Workload) -> float:
    """Return the mean number of tokens of a training example."""
    return float(cached_task(workload, remove_padding=True).examples("train").lengths.mean())


def repeat_epochs(loader: Any, steps: int) -> Iterator[Any]:
    """Yield one batch per step, over as many epochs as the steps take."""
    return islice(chain.from_iterable(repeat(loader)), steps)


def token_rows(task: Any) -> datasets.Dataset:
    """Return the tokens and labels of the training texts, as other systems take them."""
    examples = task.examples("train")
    return examples.inputs.rows.add_column("labels", examples.targets.tolist())


def padded_batches(workload: Workload, task: Any) -> DataLoader[Any]:
    """Return a loader of randomly composed batches, padded as in Accelerate's examples."""
    collator = DataCollatorWithPadding(task.inputs.tokenizer)
    return DataLoader(
        token_rows(task), shuffle=True, batch_size=workload.batch_size, collate_fn=collator
    )


def load_task_and_model(workload: Workload, seed: int) -> tuple[Any, Any]:
    """Return the task and the model as transformers loads it, without ampft's changes."""
    task = cached_task(workload, remove_padding=False)
    set_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(
        task.inputs.model_path, num_labels=len(task.label_names), dtype=torch.float32
    )
    return task, model
