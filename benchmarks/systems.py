"""The same training by different systems: each trains a few steps and returns when each ended.

All take the same model with the same initial weights, the same examples, effective batch, precision
and learning rate. None is told to log, save or evaluate.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_scheduler,
)

import ampft
from ampft.tasks.task import TaskSettings
from ampft.tasks.text import text_task
from ampft.training.optimizer import OptimizerSettings, ScheduleSettings

LEARNING_RATE = 5e-5
TUNING_STEPS = 8


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


def fresh_state() -> None:
    """Forget the Accelerator of the system before: Accelerate keeps one per process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def trainer(
    work: Work,
    seed: int,
    *,
    grouped: bool = False,
    fused: bool = False,
    micro_batches: int = 1,
    compiled: bool = False,
) -> list[float]:
    """Train with `transformers.Trainer`."""
    fresh_state()
    task, model = _task_and_model(work, seed)
    clock = work.clock()
    rows = task.examples("train").rows.add_column("labels", task.examples("train").labels.tolist())
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=work.batch_size // micro_batches,
            gradient_accumulation_steps=micro_batches,
            learning_rate=LEARNING_RATE,
            max_steps=work.steps,
            bf16=work.mode == "bf16",
            use_cpu=not torch.cuda.is_available(),
            train_sampling_strategy="group_by_length" if grouped else "random",
            optim="adamw_torch_fused" if fused else "adamw_torch",
            torch_compile=compiled,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            seed=seed,
            disable_tqdm=True,
        )
        peer = Trainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            data_collator=DataCollatorWithPadding(task.tokenizer),
            callbacks=[clock],
        )
        peer.remove_callback(PrinterCallback)
        peer.train()
    return clock.ends


def tuned_trainer(work: Work, seed: int) -> list[float]:
    """Train with the Trainer, fused AdamW, and the number of micro-batches that is fastest."""
    return trainer(work, seed, fused=True, micro_batches=_best_micro_batches(work))


@cache
def _best_micro_batches(work: Work) -> int:
    """Return 1, 2 or 4, whichever takes least time for the same few steps."""
    tuning = replace(work, steps=TUNING_STEPS)

    def seconds(micro_batches: int) -> float:
        ends = trainer(tuning, 0, fused=True, micro_batches=micro_batches)
        return ends[-1] - ends[1]

    return min((1, 2, 4), key=seconds)


def accelerate_loop(work: Work, seed: int) -> list[float]:
    """Train with the loop of Accelerate's `examples/nlp_example.py`."""
    fresh_state()
    task, model = _task_and_model(work, seed)
    clock = work.clock()
    accelerator = Accelerator(mixed_precision="bf16" if work.mode == "bf16" else "no")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = get_scheduler("linear", optimizer, 0, work.steps)
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, _loader(work, task), schedule
    )
    model.train()
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()
        clock.on_step_end(model=model)
        if len(clock.ends) == work.steps:
            break
    return clock.ends


def fabric(work: Work, seed: int) -> list[float]:
    """Train with the loop of Lightning Fabric's documentation."""
    from lightning.fabric import Fabric

    fresh_state()
    task, model = _task_and_model(work, seed)
    clock = work.clock()
    precision: Any = "bf16-mixed" if work.mode == "bf16" else "32-true"
    peer = Fabric(accelerator="auto", devices=1, precision=precision)
    model, optimizer = peer.setup(model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE))
    schedule = get_scheduler("linear", optimizer.optimizer, 0, work.steps)
    model.train()
    for batch in peer.setup_dataloaders(_loader(work, task)):
        loss = model(**batch).loss
        peer.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()
        clock.on_step_end(model=model)
        if len(clock.ends) == work.steps:
            break
    return clock.ends


def this_project(
    work: Work,
    seed: int,
    *,
    remove_padding: bool = True,
    micro_batches: int = 1,
    casts: Callable[[Any], AbstractContextManager[object]] = ampft.casts_kept,
    compiled: bool = False,
) -> list[float]:
    """Train with the loop of `recipes/classify.py`."""
    fresh_state()
    precision = ampft.resolve(work.mode, ampft.training_device())
    accelerator = ampft.make_accelerator(precision, gradient_accumulation_steps=micro_batches)
    set_seed(seed)
    task = _task(work, remove_padding)
    loaded = ampft.cast_weights(task.load_model(), precision)
    batches = ampft.StepBatches.for_process(
        accelerator,
        task.examples("train"),
        batch_size=work.batch_size // micro_batches,
        seed=seed,
        padded=not loaded.padding_free,
    )
    optimizer = ampft.make_optimizer(loaded.model, OptimizerSettings(LEARNING_RATE), precision)
    schedule = ampft.make_schedule(optimizer, work.steps, ScheduleSettings())
    model, optimizer = accelerator.prepare(loaded.model, optimizer)
    model = torch.compile(model, dynamic=True) if compiled else model
    model.train()
    clock = work.clock()
    with ampft.numerics(precision):
        for epoch in range(-(-work.steps // len(batches))):
            for step_batch in batches.epoch(epoch, stop=work.steps - len(clock.ends)):
                losses = []
                with casts(accelerator):
                    for micro_batch in step_batch:
                        with ampft.synchronized_last(accelerator, model, micro_batch):
                            loss = task.loss(model, micro_batch) / step_batch.effective_weight
                            losses.append(ampft.backward(accelerator, loss))
                ampft.apply_step(
                    accelerator, model, optimizer, schedule, losses=losses, max_grad_norm=1.0
                )
                optimizer.zero_grad()
                clock.on_step_end(model=model)
    return clock.ends


SYSTEMS: dict[str, Callable[[Work, int], list[float]]] = {
    "trainer": trainer,
    "trainer (tuned)": tuned_trainer,
    "trainer (length grouping)": lambda work, seed: trainer(work, seed, grouped=True, fused=True),
    "accelerate loop": accelerate_loop,
    "fabric loop": fabric,
    "ampft (padded)": lambda work, seed: this_project(work, seed, remove_padding=False),
    "ampft (sorted micro-batches)": lambda work, seed: this_project(
        work, seed, remove_padding=False, micro_batches=4
    ),
    "ampft (4 micro-batches)": lambda work, seed: this_project(work, seed, micro_batches=4),
    "ampft (4 micro-batches cast anew)": lambda work, seed: this_project(
        work, seed, micro_batches=4, casts=lambda accelerator: nullcontext()
    ),
    "trainer (compiled)": lambda work, seed: trainer(work, seed, fused=True, compiled=True),
    "ampft (compiled)": lambda work, seed: this_project(work, seed, compiled=True),
    "ampft": this_project,
}

_TASKS: dict[tuple[int, str, int, bool], Any] = {}


def padded_task(work: Work) -> Any:
    """Return the tokens of the work and its model, both as they are without this project's path."""
    return _task(work, False)


def _task(work: Work, remove_padding: bool) -> Any:
    key = (id(work.data), work.model, work.max_length, remove_padding)
    if key not in _TASKS:  # tokens are made once for all systems
        settings = TaskSettings(
            model_name_or_path=work.model,
            max_seq_length=work.max_length,
            remove_padding=remove_padding,
        )
        _TASKS[key] = text_task(work.data, settings)
    return _TASKS[key]


def mean_tokens(work: Work) -> float:
    """Return the mean number of tokens of a training example."""
    return float(_task(work, True).examples("train").lengths.mean())


def _loader(work: Work, task: Any) -> DataLoader[Any]:
    rows = task.examples("train").rows.add_column("labels", task.examples("train").labels.tolist())
    collator = DataCollatorWithPadding(task.tokenizer)
    return DataLoader(rows, shuffle=True, batch_size=work.batch_size, collate_fn=collator)


def _task_and_model(work: Work, seed: int) -> tuple[Any, Any]:
    """Return the tokens and a model as users of the library load it: no hooks, no packing."""
    task = padded_task(work)
    set_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(
        task.model_path, num_labels=len(task.label_names), dtype=torch.float32
    )
    return task, model
