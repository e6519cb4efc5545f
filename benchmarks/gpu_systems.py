"""Systems that train the same batches on a GPU: the Trainer, Accelerate's loop, and ampft.

All of them train on the batches of `Job.step_batches` in their order and repeat them pass by pass,
except that length grouping composes its batches of the same texts, once.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from gpu_jobs import Job, Turn
from gpu_models import MODELS, SkippedError
from random_texts import pad
from torch import nn
from torch.utils.data import DataLoader, Subset
from transformers import (
    PrinterCallback,
    Trainer,
    TrainingArguments,
    default_data_collator,
    get_scheduler,
    set_seed,
)
from transformers.trainer_pt_utils import get_length_grouped_indices

import ampft
from ampft.engine.optimizer import OptimizerSettings, ScheduleSettings
from ampft.engine.out_of_memory import release_memory, reset_peak_memory
from ampft.engine.step import replace_update_call
from ampft.fast.graphed_update import GraphedUpdate
from ampft.fast.graphs import CudaRecorder, GraphedGradient
from ampft.fast.packing.families import packing_support
from ampft.fast.packing.install import install_packing, with_layout
from ampft.fast.packing.verification import grouped_attention_reason
from ampft.fast.queue_timer import QueueTimer
from ampft.fast.static_shapes import StaticShapes
from ampft.kinds.logits import forward_logits
from ampft.models.freezing import cache_frozen_casts

LEARNING_RATE = 5e-5
MOST_STEPS = 10**6  # of a schedule; a turn ends earlier


def train_with_trainer(
    job: Job,
    turn: Turn,
    *,
    attention: str | None = None,
    grouped: bool = False,
    compiled: bool = False,
) -> None:
    """Train with `transformers.Trainer` and its defaults, AdamW fused in one kernel among them.

    Args:
        job: The training.
        turn: Its turn.
        attention: Implementation of attention; None for the default of the model.
        grouped: Whether batches are composed of texts of similar length.
        compiled: Whether the model is compiled.
    """
    precision, scale = job.precision(), job.scale
    if attention == "flash_attention_2":
        _check_flash_attention(job)
    if compiled and not scale.on_gpu:
        raise SkippedError("a rehearsal without a GPU does not compile, which takes half a minute")
    if job.mode == "fp16" and not scale.on_gpu:
        raise SkippedError("the Trainer has no fp16 on a CPU")
    order = grouped_order(job) if grouped else order_of(job)
    set_seed(0)
    model = job.model()
    if attention is not None:
        model.set_attn_implementation(attention)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=job.batch_size,
            learning_rate=LEARNING_RATE,
            max_steps=MOST_STEPS,
            bf16=job.mode == "bf16",
            fp16=job.mode == "fp16",
            use_cpu=not scale.on_gpu,
            train_sampling_strategy="sequential",
            torch_compile=compiled,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Subset(job.examples(), order),
            data_collator=collator_of(job),
            callbacks=[turn],
        )
        trainer.remove_callback(PrinterCallback)
        with ampft.numerics(precision):  # the arguments can have allowed TF32
            trainer.train()


def order_of(job: Job) -> list[int]:
    """Return the examples of a pass in the order of `Job.step_batches`."""
    batches = job.step_batches()
    return [int(i) for step in range(len(batches)) for i in batches.effective_ids(0, step)]


def grouped_order(job: Job) -> list[int]:
    """Return the examples of a pass, texts of similar length next to each other."""
    generator = torch.Generator().manual_seed(0)
    lengths = job.examples().lengths.tolist()
    order: list[int] = get_length_grouped_indices(lengths, job.batch_size, generator=generator)
    return order


def collator_of(job: Job) -> Any:
    """Return what makes a batch of rows."""
    return pad if MODELS[job.size].patches is None else default_data_collator


def train_with_tuned_trainer(job: Job, turn: Turn) -> None:
    """Train with the Trainer as its documentation tunes it for speed.

    Texts of similar length are in one batch, and attention is flash attention 2 where it is
    installed, and otherwise torch's own, which has the same kernel.
    """
    has_flash = find_spec("flash_attn") is not None and job.mode in ("bf16", "fp16")
    attention = "flash_attention_2" if has_flash and job.scale.on_gpu else None
    train_with_trainer(job, turn, attention=attention, grouped=True)


def train_with_accelerate(job: Job, turn: Turn) -> None:
    """Train with the loop of Accelerate's `examples/nlp_example.py`."""
    if job.mode == "fp16" and not job.scale.on_gpu:
        raise SkippedError("Accelerate has no fp16 on a CPU")
    precision = job.precision()
    with ampft.numerics(precision):
        accelerator = Accelerator(
            mixed_precision=job.mode if job.mode in ("bf16", "fp16") else "no",
            cpu=not job.scale.on_gpu,
        )
        set_seed(0)
        model = job.model()
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        schedule = get_scheduler("linear", optimizer, 0, MOST_STEPS)
        loader: Any = DataLoader(
            Subset(job.examples(), order_of(job)),
            batch_size=job.batch_size,
            collate_fn=collator_of(job),
        )
        model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
        turn.begin()
        while True:
            for batch in loader:
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                if turn.step_ended():
                    return


def _check_flash_attention(job: Job) -> None:
    if find_spec("flash_attn") is None:
        raise SkippedError("flash_attn is not installed")
    if job.mode not in ("bf16", "fp16") or not job.scale.on_gpu:
        raise SkippedError("flash attention needs 16 bits and a CUDA device")


def train_with_ampft(
    job: Job, turn: Turn, *, graphs: bool | None = None, compiled: bool = False
) -> nn.Module:
    """Train with the loop of `recipes/classify.py`; return the model.

    Args:
        job: The training.
        turn: Its turn.
        graphs: Same as `--cuda_graphs`: None lets the time of the first steps decide.
        compiled: Whether the model is compiled.
    """
    if (graphs or compiled) and not job.scale.on_gpu:
        raise SkippedError("a rehearsal without a GPU has no CUDA graphs, and does not compile")
    if compiled:
        os.environ["ACCELERATE_DYNAMO_BACKEND"] = "INDUCTOR"  # restored by `run_turn`
    precision, texts, device = job.precision(), job.examples(), job.scale.device
    with ampft.numerics(precision):
        accelerator = ampft.make_accelerator(precision)
        set_seed(0)
        model = job.model()
        if MODELS[job.size].has_adapters:
            cache_frozen_casts(model)
        is_packed = MODELS[job.size].patches is None and packing_support(model).supported
        if is_packed:
            install_packing(model)
        shapes = StaticShapes(model, job.tokens[1])
        is_shaped = job.scale.on_gpu and graphs is not False
        unshaped = partial(with_layout, model) if is_packed else None
        finish = shapes.shaped if is_shaped else unshaped
        batches = replace(
            job.step_batches(), padded=not is_packed, pinned=device.type == "cuda", finish=finish
        )
        optimizer = ampft.make_optimizer(model, OptimizerSettings(LEARNING_RATE), precision)
        schedule = ampft.make_schedule(optimizer, MOST_STEPS, ScheduleSettings())
        prepared, optimizer = accelerator.prepare(model, optimizer)
        example = dict(texts.collate(batches.effective_ids(0, 0)))
        del example["labels"]
        on_device = {name: tensor.to(device) for name, tensor in example.items()}
        if is_packed:
            turn.notes["check"] = grouped_attention_reason(prepared, model, on_device) or "passed"
        prepared.train()
        used: tuple[GraphedGradient, GraphedUpdate] | None = None
        if is_shaped and not compiled:
            event = partial(torch.cuda.Event, enable_timing=True)
            timer = None if graphs else QueueTimer(event)
            recorder = CudaRecorder(device)
            gradient = GraphedGradient(model, device, shapes, recorder, print, timer)
            used = gradient, GraphedUpdate(gradient, accelerator, optimizer.optimizer)
        _run_steps(accelerator, prepared, optimizer, schedule, batches, turn, used)
        if used is not None:
            turn.notes["graphs"] = used[0].as_dict() | used[1].as_dict()
    return model


def _run_steps(
    accelerator: Any,
    model: nn.Module,
    optimizer: Any,
    schedule: Any,
    batches: ampft.StepBatches,
    turn: Turn,
    graphs: tuple[GraphedGradient, GraphedUpdate] | None,
) -> None:
    def gradient(step_batch: ampft.StepBatch) -> ampft.Losses:
        with ampft.shared_autocast_cache(accelerator, model, step_batch):
            return ampft.accumulate_gradient(accelerator, model, summed_loss, step_batch)

    compute = gradient if graphs is None else partial(graphs[0].gradient, gradient)
    turn.begin()
    while True:
        for step_batch in batches.epoch(0):
            losses = compute(step_batch)
            with replace_update_call(None if graphs is None else graphs[1]):
                ampft.apply_step(
                    accelerator, model, optimizer, schedule, losses=losses, max_grad_norm=1.0
                )
            optimizer.zero_grad()
            if turn.step_ended():
                return


def summed_loss(model: nn.Module, micro_batch: ampft.MicroBatch) -> torch.Tensor:
    """Return the summed cross entropy of a micro-batch, a float32 scalar."""
    logits = forward_logits(model, micro_batch.inputs, packing=micro_batch.packing)
    labels = micro_batch.inputs["labels"].to(logits.device, non_blocking=True)
    return ampft.summed_cross_entropy(logits, labels)


SYSTEMS: dict[str, Callable[[Job, Turn], object]] = {
    "trainer": train_with_trainer,
    "trainer (flash attention 2)": partial(train_with_trainer, attention="flash_attention_2"),
    "trainer (tuned)": train_with_tuned_trainer,
    "accelerate loop": train_with_accelerate,
    "ampft": train_with_ampft,
    "ampft (graphs)": partial(train_with_ampft, graphs=True),
    "ampft (no graphs)": partial(train_with_ampft, graphs=False),
    "trainer (compiled)": partial(train_with_trainer, compiled=True),
    "ampft (compiled)": partial(train_with_ampft, compiled=True),
}


def run_turn(system: str, job: Job, turn: Turn) -> None:
    """Train once with a system; variables that it sets in the environment are restored."""
    job.precision()  # an unsupported mode is said before anything is prepared
    start_afresh(job.scale.device)
    with patch.dict(os.environ):
        SYSTEMS[system](job, turn)


def start_afresh(device: torch.device) -> None:
    """Forget what the turn before has left: Accelerate's state, compiled code and memory."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    release_memory(device)
    reset_peak_memory(device)
