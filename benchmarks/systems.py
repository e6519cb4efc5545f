"""The same training job in several systems: each function trains and returns the end of each step.

All use the same model with the same initial weights, the same examples, effective batch size,
precision and learning rate. None of them logs, saves or evaluates.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import set_seed
from transformers import (
    DataCollatorWithPadding,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    get_scheduler,
)
from workload import (
    Workload,
    cached_task,
    load_task_and_model,
    padded_batches,
    repeat_epochs,
    token_rows,
)

import ampft
from ampft.engine.optimizer import OptimizerSettings, ScheduleSettings

LEARNING_RATE = 5e-5
TUNING_STEPS = 8


def reset_accelerate_state() -> None:
    """Reset the state that Accelerate keeps per process, so that the next system starts afresh."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def train_with_trainer(
    workload: Workload, seed: int, *, grouped: bool = False, micro_batches: int = 1
) -> list[float]:
    """Train with `transformers.Trainer`."""
    reset_accelerate_state()
    task, model = load_task_and_model(workload, seed)
    clock = workload.clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=workload.batch_size // micro_batches,
            gradient_accumulation_steps=micro_batches,
            learning_rate=LEARNING_RATE,
            max_steps=workload.steps,
            bf16=workload.mode == "bf16",
            use_cpu=not torch.cuda.is_available(),
            train_sampling_strategy="group_by_length" if grouped else "random",
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            seed=seed,
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=token_rows(task),
            data_collator=DataCollatorWithPadding(task.inputs.tokenizer),
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return clock.ends


def train_with_tuned_trainer(workload: Workload, seed: int) -> list[float]:
    """Train with the Trainer and the fastest number of micro-batches."""
    return train_with_trainer(workload, seed, micro_batches=tune_micro_batches(workload))


_TUNED_MICRO_BATCHES: dict[tuple[Any, ...], int] = {}


def tune_micro_batches(workload: Workload) -> int:
    """Return the number of micro-batches, of 1, 2 and 4, with which the Trainer is fastest.

    It is measured once per workload and process.
    """
    tuning = replace(workload, steps=TUNING_STEPS)

    def seconds(micro_batches: int) -> float:
        ends = train_with_trainer(tuning, 0, micro_batches=micro_batches)
        return ends[-1] - ends[1]

    if _tuning_key(workload) not in _TUNED_MICRO_BATCHES:
        _TUNED_MICRO_BATCHES[_tuning_key(workload)] = min((1, 2, 4), key=seconds)
    return _TUNED_MICRO_BATCHES[_tuning_key(workload)]


def set_tuned_micro_batches(workload: Workload, micro_batches: int) -> None:
    """Set what `tune_micro_batches` returns to what another process has measured."""
    _TUNED_MICRO_BATCHES[_tuning_key(workload)] = micro_batches


def _tuning_key(workload: Workload) -> tuple[Any, ...]:
    return (
        id(workload.data),
        workload.model,
        workload.mode,
        workload.batch_size,
        workload.max_length,
    )


def train_with_accelerate(workload: Workload, seed: int) -> list[float]:
    """Train with the loop of Accelerate's `examples/nlp_example.py`."""
    reset_accelerate_state()
    task, model = load_task_and_model(workload, seed)
    clock = workload.clock()
    accelerator = Accelerator(mixed_precision="bf16" if workload.mode == "bf16" else "no")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = get_scheduler("linear", optimizer, 0, workload.steps)
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, padded_batches(workload, task), schedule
    )
    model.train()
    for batch in repeat_epochs(loader, workload.steps):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()
        clock.on_step_end(model=model)
    return clock.ends


def train_with_fabric(workload: Workload, seed: int) -> list[float]:
    """Train with the loop of Lightning Fabric's documentation."""
    from lightning.fabric import Fabric

    reset_accelerate_state()
    task, model = load_task_and_model(workload, seed)
    clock = workload.clock()
    precision: Any = "bf16-mixed" if workload.mode == "bf16" else "32-true"
    fabric = Fabric(accelerator="auto", devices=1, precision=precision)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE))
    schedule = get_scheduler("linear", optimizer.optimizer, 0, workload.steps)
    model.train()
    for batch in repeat_epochs(
        fabric.setup_dataloaders(padded_batches(workload, task)), workload.steps
    ):
        loss = model(**batch).loss
        fabric.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()
        clock.on_step_end(model=model)
    return clock.ends


def train_with_ampft(
    workload: Workload,
    seed: int,
    *,
    remove_padding: bool = True,
    micro_batches: int = 1,
    mode: str | None = None,
    rounds_rows: bool = True,
) -> list[float]:
    """Train with the loop of `recipes/classify.py`, in the workload's mode or in `mode`."""
    if not rounds_rows:
        with patch("ampft.fast.packing.install.ROUNDED_TO", 1):
            return train_with_ampft(workload, seed, mode=mode)
    reset_accelerate_state()
    precision = ampft.resolve(mode or workload.mode, ampft.training_device())
    accelerator = ampft.make_accelerator(precision, gradient_accumulation_steps=micro_batches)
    set_seed(seed)
    task = cached_task(workload, remove_padding=remove_padding)
    loaded = ampft.cast_weights(task.load_model(), precision)
    batches = ampft.StepBatches.for_process(
        accelerator,
        task.examples("train"),
        batch_size=workload.batch_size // micro_batches,
        seed=seed,
        padded=not loaded.padding_free,
    )
    optimizer = ampft.make_optimizer(loaded.model, OptimizerSettings(LEARNING_RATE), precision)
    schedule = ampft.make_schedule(optimizer, workload.steps, ScheduleSettings())
    model, optimizer = accelerator.prepare(loaded.model, optimizer)
    model.train()
    clock = workload.clock()
    with ampft.numerics(precision):
        for epoch in range(-(-workload.steps // len(batches))):
            for step_batch in batches.epoch(epoch, stop=workload.steps - len(clock.ends)):
                losses = []
                with ampft.shared_autocast_cache(accelerator, model, step_batch):
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


SYSTEMS: dict[str, Callable[[Workload, int], list[float]]] = {
    "trainer": train_with_trainer,
    "trainer (tuned)": train_with_tuned_trainer,
    "trainer (length grouping)": partial(train_with_trainer, grouped=True),
    "accelerate loop": train_with_accelerate,
    "fabric loop": train_with_fabric,
    "ampft (padded)": partial(train_with_ampft, remove_padding=False),
    "ampft (sorted micro-batches)": partial(
        train_with_ampft, remove_padding=False, micro_batches=4
    ),
    "ampft (fp16)": partial(train_with_ampft, mode="fp16"),
    "ampft (bf16)": partial(train_with_ampft, mode="bf16"),
    "ampft (rows as they come)": partial(train_with_ampft, rounds_rows=False),
    "ampft": train_with_ampft,
}
PADDING_FREE_SYSTEMS = (*("ampft", "ampft (fp16)", "ampft (bf16)", "ampft (rows as they come)"),)


def parse_systems(names: str) -> list[str]:
    """Return the systems of a comma-separated list.

    Raises:
        SystemExit: A system is unknown, or ampft is missing.
    """
    systems = names.split(",")
    unknown = sorted(set(systems) - set(SYSTEMS))
    if unknown:
        raise SystemExit(f"--systems: unknown: {', '.join(unknown)}. Known: {', '.join(SYSTEMS)}")
    if "ampft" not in systems:
        raise SystemExit(f"--systems {names}: add ampft, with which the others are compared")
    return systems


def prepare(name: str, workload: Workload) -> None:
    """Tokenize, import and tune for a system, so that none of this is timed."""
    cached_task(workload, remove_padding=name in PADDING_FREE_SYSTEMS)
    if name == "fabric loop":
        importlib.import_module("lightning.fabric")
    if name == "trainer (tuned)":
        tune_micro_batches(workload)
