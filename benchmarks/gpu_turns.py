"""Turns of training on random texts, by ampft and by the Trainer, with time, memory and energy.

Needs neither `datasets` nor a tokenizer nor pretrained weights.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from accelerate.state import AcceleratorState, GradientState
from operators import bert
from random_texts import RandomTexts, lengths_of_texts, pad, random_texts
from torch import nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

import ampft
from ampft.engine.optimizer import OptimizerSettings, ScheduleSettings
from ampft.engine.out_of_memory import release_memory, reset_peak_memory
from ampft.engine.step import replace_update_call
from ampft.errors import InputError
from ampft.fast.graphed_update import GraphedUpdate
from ampft.fast.graphs import CudaRecorder, GraphedGradient
from ampft.fast.packing.install import install_packing, with_layout
from ampft.fast.packing.verification import grouped_attention_reason
from ampft.fast.static_shapes import StaticShapes
from ampft.kinds.logits import forward_logits
from ampft.precision.matrix_rate import measure_matrix_rate

LEARNING_RATE = 5e-5
WARMUP_STEPS = 5
# Until all buckets of tokens have occurred, and their graphs are captured and compared.
GRAPH_WARMUP_STEPS = 40
TEXTS = 2048
COPIES = ("cudaMemcpyAsync", "cudaMemsetAsync")
LAUNCHES = (
    *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"),
    "cudaGraphLaunch",  # of all kernels of a graph
)


class SkippedError(Exception):
    """Something that cannot be measured here; the message is the reason."""


@dataclass(frozen=True)
class Scale:
    """How large and how long measurements are."""

    device: torch.device  # Device of all measurements.
    sizes: dict[str, tuple[int, int]]  # Layers and width of each model by name.
    vocabulary: int  # Number of token ids.
    batch_sizes: tuple[int, ...]  # Batch sizes, in examples.
    # Mean and maximum length of the texts, in tokens, of each case.
    tokens: tuple[tuple[int, int], ...]
    steps: int  # Timed steps per turn.
    # Seconds after which a turn ends even if it has fewer steps, but at least two.
    turn_seconds: float
    rate_seconds: float  # Limit on a single matrix product, when the rate is measured.

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a CUDA device."""
        return self.device.type == "cuda"


@dataclass(frozen=True)
class Job:
    """A training that systems run in turns."""

    scale: Scale  # Scale of the measurements.
    mode: str  # Mode of precision.
    size: str  # Name of the size of the model.
    batch_size: int  # Batch size, in examples.
    tokens: tuple[int, int]  # Mean and maximum length of the texts, in tokens.

    @property
    def name(self) -> str:
        """The job in words."""
        mean, longest = self.tokens
        length = f"{mean} tokens" if mean == longest else f"{mean} of {longest} tokens"
        return f"{self.size}, {self.mode}, batch {self.batch_size}, {length}"

    def texts(self) -> RandomTexts:
        """Return the training texts."""
        return texts_of(self.tokens, self.scale.vocabulary, max(TEXTS, 8 * self.batch_size))

    def model(self) -> Any:
        """Return a new copy of the model, on the CPU."""
        return copy.deepcopy(model_of(self.scale.sizes[self.size], self.scale.vocabulary))

    def precision(self) -> ampft.Precision:
        """Return the precision.

        Raises:
            SkippedError: The device does not have it.
        """
        try:
            return ampft.resolve(self.mode, self.scale.device)
        except InputError as error:
            raise SkippedError(str(error)) from error


@cache
def texts_of(tokens: tuple[int, int], vocabulary: int, number: int) -> RandomTexts:
    """Return random texts of a mean and a maximum length."""
    mean, longest = tokens
    return random_texts(lengths_of_texts(number, mean, longest=longest), vocabulary)


@cache
def model_of(shape: tuple[int, int], vocabulary: int) -> Any:
    """Return the model of a size, with the same random weights each time."""
    torch.manual_seed(0)
    return bert(*shape, vocabulary=vocabulary)


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@cache
def energy_meter() -> Callable[[], float] | None:
    """Return a function that reads the energy of GPU 0 in joules; None without NVML."""
    if find_spec("pynvml") is None:
        return None
    import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    except pynvml.NVMLError:
        return None
    return lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1000


class Turn(TrainerCallback):
    """Measures a turn, step by step; the Trainer and the other loops call it after each step.

    The device is synchronized only before the first and after the last timed step.

    Attributes:
        first_step: Seconds until the end of the first step.
        step: Mean seconds of a timed step.
        joules: Energy of a timed step; None without a meter.
        timed: Number of timed steps.
        notes: What a system says about itself.
        warmup: Steps before the timed ones.
    """

    def __init__(self, scale: Scale) -> None:
        self.warmup = WARMUP_STEPS
        self.first_step = self.step = 0.0
        self.joules: float | None = None
        self.timed = 0
        self.notes: dict[str, object] = {}
        self._scale = scale
        self._steps = 0
        self._begin = time.perf_counter()
        self._energy = 0.0

    @property
    def most_steps(self) -> int:
        """Largest number of steps, including the warm-up."""
        return self.warmup + self._scale.steps

    def step_ended(self) -> bool:
        """Record the end of a step; return whether the turn is over."""
        self._steps += 1
        meter = energy_meter() if self._scale.on_gpu else None
        if self._steps == 1:
            synchronize(self._scale.device)
            self.first_step = time.perf_counter() - self._begin
        if self._steps == self.warmup:
            synchronize(self._scale.device)
            self._begin, self._energy = time.perf_counter(), meter() if meter else 0.0
        self.timed = self._steps - self.warmup
        elapsed = time.perf_counter() - self._begin
        is_late = self.timed >= 2 and elapsed >= self._scale.turn_seconds
        if self.timed < self._scale.steps and not is_late:
            return False
        synchronize(self._scale.device)
        self.step = (time.perf_counter() - self._begin) / self.timed
        self.joules = (meter() - self._energy) / self.timed if meter else None
        return True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Stop the Trainer when the turn is over."""
        del args, state
        control.should_training_stop = self.step_ended()
        return control


class LaunchCount(Turn):
    """Counts the kernels that the host launches in one step after the warm-up.

    Attributes:
        launches: Number of launches of kernels; 0 on a device without launches.
        copies: Number of copies and fills by the device.
    """

    def __init__(self, scale: Scale) -> None:
        super().__init__(scale)
        self.launches = self.copies = 0
        activities = [torch.profiler.ProfilerActivity.CPU]
        activities += [torch.profiler.ProfilerActivity.CUDA] * scale.on_gpu
        self._profiler = torch.profiler.profile(activities=activities)

    @property
    def most_steps(self) -> int:
        """Number of steps: the warm-up and the counted step."""
        return self.warmup + 1

    def step_ended(self) -> bool:
        """Begin to count after the warm-up, and stop after the next step."""
        self._steps += 1
        synchronize(self._scale.device)
        if self._steps == self.warmup:
            self._profiler.start()
        if self._steps <= self.warmup:
            return False
        self._profiler.stop()
        events = self._profiler.events() or ()
        self.launches = sum(event.name in LAUNCHES for event in events)
        self.copies = sum(event.name in COPIES for event in events)
        return True


def train_with_trainer(
    job: Job, turn: Turn, *, attention: str = "sdpa", grouped: bool = False, compiled: bool = False
) -> None:
    """Train with `transformers.Trainer` and fused AdamW."""
    precision, scale = job.precision(), job.scale
    if attention == "flash_attention_2":
        _check_flash_attention(job)
    if compiled and not scale.on_gpu:
        raise SkippedError("a rehearsal without a GPU does not compile, which takes half a minute")
    if job.mode == "fp16" and not scale.on_gpu:
        raise SkippedError("the Trainer has no fp16 on a CPU")
    set_seed(0)
    model = job.model()
    model.set_attn_implementation(attention)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=job.batch_size,
            learning_rate=LEARNING_RATE,
            max_steps=turn.most_steps,
            bf16=job.mode == "bf16",
            fp16=job.mode == "fp16",
            use_cpu=not scale.on_gpu,
            train_sampling_strategy="group_by_length" if grouped else "random",
            optim="adamw_torch_fused",
            torch_compile=compiled,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=job.texts(),
            data_collator=pad,
            callbacks=[turn],
        )
        trainer.remove_callback(PrinterCallback)
        with ampft.numerics(precision):  # the arguments can have allowed TF32
            trainer.train()


def _check_flash_attention(job: Job) -> None:
    if find_spec("flash_attn") is None:
        raise SkippedError("flash_attn is not installed")
    if job.mode not in ("bf16", "fp16") or not job.scale.on_gpu:
        raise SkippedError("flash attention needs 16 bits and a CUDA device")


def train_with_ampft(
    job: Job, turn: Turn, *, by_graphs: bool = False, compiled: bool = False
) -> nn.Module:
    """Train with the loop of `recipes/classify.py`; return the model."""
    if by_graphs:
        turn.warmup = min(GRAPH_WARMUP_STEPS, 10 * job.scale.steps)
    if (by_graphs or compiled) and not job.scale.on_gpu:
        raise SkippedError("a rehearsal without a GPU has no CUDA graphs, and does not compile")
    if compiled:
        os.environ["ACCELERATE_DYNAMO_BACKEND"] = "INDUCTOR"  # restored by `run_turn`
    precision, texts = job.precision(), job.texts()
    with ampft.numerics(precision):
        accelerator = ampft.make_accelerator(precision)
        set_seed(0)
        model = job.model()
        install_packing(model)
        batches = ampft.StepBatches.for_process(
            accelerator, texts, batch_size=job.batch_size, padded=False
        )
        batches = replace(batches, finish=partial(with_layout, model))
        optimizer = ampft.make_optimizer(model, OptimizerSettings(LEARNING_RATE), precision)
        schedule = ampft.make_schedule(optimizer, turn.most_steps, ScheduleSettings())
        prepared, optimizer = accelerator.prepare(model, optimizer)
        example = dict(texts.collate(batches.effective_ids(0, 0)))
        del example["labels"]
        on_device = {name: tensor.to(job.scale.device) for name, tensor in example.items()}
        turn.notes["attention"] = (
            grouped_attention_reason(prepared, model, on_device) or "as chosen"
        )
        prepared.train()
        graphs: tuple[GraphedGradient, GraphedUpdate] | None = None
        shapes = StaticShapes(model, job.tokens[1])
        if by_graphs or compiled:
            batches = replace(batches, finish=shapes.shaped)
        if by_graphs:
            device = job.scale.device
            gradient = GraphedGradient(model, device, shapes, CudaRecorder(device), print)
            graphs = gradient, GraphedUpdate(gradient, accelerator, optimizer.optimizer)
        _run_steps(accelerator, prepared, optimizer, schedule, batches, turn, graphs)
        if graphs is not None:
            turn.notes["graphs"] = graphs[0].as_dict() | graphs[1].as_dict()
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
    for epoch in range(turn.most_steps):
        for step_batch in batches.epoch(epoch):
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
    "trainer (flash attention 2)": lambda job, turn: train_with_trainer(
        job, turn, attention="flash_attention_2"
    ),
    "trainer (length grouping)": lambda job, turn: train_with_trainer(job, turn, grouped=True),
    "trainer (compiled)": lambda job, turn: train_with_trainer(job, turn, compiled=True),
    "ampft": train_with_ampft,
    "ampft (compiled)": lambda job, turn: train_with_ampft(job, turn, compiled=True),
    "ampft (graphs)": lambda job, turn: train_with_ampft(job, turn, by_graphs=True),
}


def start_afresh(device: torch.device) -> None:
    """Forget what the turn before has left: Accelerate's state, compiled code and memory."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    release_memory(device)
    reset_peak_memory(device)


def run_turn(system: str, job: Job, turn: Turn) -> None:
    """Train once with a system; variables that it sets in the environment are restored."""
    job.precision()  # an unsupported mode is said before anything is prepared
    start_afresh(job.scale.device)
    with patch.dict(os.environ):
        SYSTEMS[system](job, turn)


def measure_turn(system: str, job: Job) -> dict[str, object]:
    """Return seconds, peak memory and energy per step of a system in one turn.

    It trains twice, on the same batches. Libraries plan kernels for each new shape, so that the
    first training is cold. `step_seconds` are those of the second, in which each shape has been
    seen; compiled systems, which compile again, train once.
    """
    turn = cold = Turn(job.scale)
    run_turn(system, job, cold)
    if not system.endswith("(compiled)"):
        turn = Turn(job.scale)
        run_turn(system, job, turn)
    peak = torch.cuda.max_memory_allocated(job.scale.device) if job.scale.on_gpu else None
    return {
        "step_seconds": turn.step,
        "steps": turn.timed,
        "cold_step_seconds": cold.step,
        "first_step_seconds": cold.first_step,
        "peak_bytes": peak,
        "joules_per_step": turn.joules,
        **turn.notes,
    }


def count_launches(system: str, job: Job) -> dict[str, object]:
    """Return the number of kernels that a system launches in a step.

    Raises:
        SkippedError: The device has no launches.
    """
    turn = LaunchCount(job.scale)
    run_turn(system, job, turn)
    if not job.scale.on_gpu:
        raise SkippedError("only CUDA devices have launches to count")
    if turn.launches == 0:
        raise RuntimeError("torch.profiler has seen no launch")
    return {"launches": turn.launches, "copies": turn.copies}


def measure_rate(job: Job) -> dict[str, object]:
    """Return the rate of large matrix products in the mode of a job, in 10^9 operations/s."""
    precision = job.precision()
    with ampft.numerics(precision):
        rate = measure_matrix_rate(
            job.scale.device,
            precision.compute_dtype,
            name=job.mode,
            max_seconds=job.scale.rate_seconds,
        )
    return {"gflops": rate.gflops, "matrix_size": rate.size}


def gflop_per_step(job: Job) -> float:
    """Return 10^9 operations of a step: 6 per real token and weight of a layer's linear modules."""
    layers = job.model().bert.encoder
    weights = sum(m.weight.numel() for m in layers.modules() if isinstance(m, nn.Linear))
    return float(6 * weights * job.texts().lengths.mean() * job.batch_size / 1e9)
