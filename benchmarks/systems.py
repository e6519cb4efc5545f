"""The same training by different systems: each trains a few steps and returns when each ended.

All take the same model with the same initial weights, the same examples, effective batch, precision
and learning rate. None is told to log, save or evaluate.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

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
from work import StepClock, Work, epochs, padded_batches, task_and_model, task_of

import ampft
from ampft.training.optimizer import OptimizerSettings, ScheduleSettings

LEARNING_RATE = 5e-5
TUNING_STEPS = 8


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
    task, model = task_and_model(work, seed)
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
    return trainer(work, seed, fused=True, micro_batches=best_micro_batches(work))


_BEST: dict[tuple[Any, ...], int] = {}


def best_micro_batches(work: Work) -> int:
    """Return 1, 2 or 4, whichever takes the Trainer least time; found out once for a work."""
    tuning = replace(work, steps=TUNING_STEPS, clock=StepClock)

    def seconds(micro_batches: int) -> float:
        ends = trainer(tuning, 0, fused=True, micro_batches=micro_batches)
        return ends[-1] - ends[1]

    if _key(work) not in _BEST:
        _BEST[_key(work)] = min((1, 2, 4), key=seconds)
    return _BEST[_key(work)]


def already_tuned(work: Work, micro_batches: int) -> None:
    """Let the tuned Trainer take what another process has found out."""
    _BEST[_key(work)] = micro_batches


def _key(work: Work) -> tuple[Any, ...]:
    return id(work.data), work.model, work.mode, work.batch_size, work.max_length


def accelerate_loop(work: Work, seed: int) -> list[float]:
    """Train with the loop of Accelerate's `examples/nlp_example.py`."""
    fresh_state()
    task, model = task_and_model(work, seed)
    clock = work.clock()
    accelerator = Accelerator(mixed_precision="bf16" if work.mode == "bf16" else "no")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = get_scheduler("linear", optimizer, 0, work.steps)
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, padded_batches(work, task), schedule
    )
    model.train()
    for batch in epochs(loader, work.steps):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()
        clock.on_step_end(model=model)
    return clock.ends


def fabric(work: Work, seed: int) -> list[float]:
    """Train with the loop of Lightning Fabric's documentation."""
    from lightning.fabric import Fabric

    fresh_state()
    task, model = task_and_model(work, seed)
    clock = work.clock()
    precision: Any = "bf16-mixed" if work.mode == "bf16" else "32-true"
    peer = Fabric(accelerator="auto", devices=1, precision=precision)
    model, optimizer = peer.setup(model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE))
    schedule = get_scheduler("linear", optimizer.optimizer, 0, work.steps)
    model.train()
    for batch in epochs(peer.setup_dataloaders(padded_batches(work, task)), work.steps):
        loss = model(**batch).loss
        peer.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()
        clock.on_step_end(model=model)
    return clock.ends


def this_project(
    work: Work,
    seed: int,
    *,
    remove_padding: bool = True,
    micro_batches: int = 1,
    casts: Callable[..., AbstractContextManager[object]] = ampft.shared_autocast_cache,
    compiled: bool = False,
) -> list[float]:
    """Train with the loop of `recipes/classify.py`."""
    fresh_state()
    precision = ampft.resolve(work.mode, ampft.training_device())
    accelerator = ampft.make_accelerator(precision, gradient_accumulation_steps=micro_batches)
    set_seed(seed)
    task = task_of(work, remove_padding)
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
    if compiled:
        model = torch.compile(model)
    model.train()
    clock = work.clock()
    with ampft.numerics(precision):
        for epoch in range(-(-work.steps // len(batches))):
            for step_batch in batches.epoch(epoch, stop=work.steps - len(clock.ends)):
                losses = []
                with casts(accelerator, model, step_batch):
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


PADDED = ("ampft (padded)", "ampft (padded and compiled)", "ampft (sorted micro-batches)")

SYSTEMS: dict[str, Callable[[Work, int], list[float]]] = {
    "trainer": trainer,
    "trainer (tuned)": tuned_trainer,
    "trainer (length grouping)": lambda work, seed: trainer(work, seed, grouped=True, fused=True),
    "accelerate loop": accelerate_loop,
    "fabric loop": fabric,
    "ampft (padded)": lambda work, seed: this_project(work, seed, remove_padding=False),
    "ampft (padded and compiled)": lambda work, seed: this_project(
        work, seed, remove_padding=False, compiled=True
    ),
    "ampft (sorted micro-batches)": lambda work, seed: this_project(
        work, seed, remove_padding=False, micro_batches=4
    ),
    "ampft (4 micro-batches)": lambda work, seed: this_project(work, seed, micro_batches=4),
    "ampft (4 micro-batches cast anew)": lambda work, seed: this_project(
        work, seed, micro_batches=4, casts=lambda *_: nullcontext()
    ),
    "trainer (compiled)": lambda work, seed: trainer(work, seed, fused=True, compiled=True),
    "ampft": this_project,
}


def named_systems(names: str) -> list[str]:
    """Return the systems of a command line, comma separated."""
    systems = names.split(",")
    unknown = set(systems) - set(SYSTEMS)
    if unknown or "ampft" not in systems:
        raise SystemExit(f"--systems: ampft and any of {', '.join(SYSTEMS)}; not {unknown or ''}")
    return systems


WITHOUT_PADDING = frozenset(
    name for name in SYSTEMS if name.startswith("ampft") and name not in PADDED
)


def prepare(name: str, work: Work) -> None:
    """Do what a system needs once and what is not its training: tokens, imports, tuning."""
    task_of(work, name in WITHOUT_PADDING)
    if name == "fabric loop":
        importlib.import_module("lightning.fabric")
    if name == "trainer (tuned)":
        best_micro_batches(work)
