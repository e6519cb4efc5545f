"""Trainings that systems run in turns on a GPU, and the clocks of a turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from gpu_models import SkippedError, examples_of, gflop_of_step, gigabytes_of_update, model_of
from transformers import TrainerCallback

import ampft
from ampft.errors import InputError

SETTLING_PASSES = 2
LAUNCHES = (
    *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"),
    "cudaGraphLaunch",  # of all kernels of a graph
)
COPIES = ("Memcpy", "Memset")
ATTENTION = ("attention", "flash", "fmha")  # parts of names of its operators and kernels


@dataclass(frozen=True)
class Scale:
    """How large and how long measurements are."""

    device: torch.device  # Device of all measurements.
    is_tiny: bool  # Whether models have their tiny size.
    batches: int  # Batches of a pass.
    turn_seconds: float  # Seconds after which no further pass is timed; one always is.
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
    size: str  # Name of the model in `MODELS`.
    tokens: tuple[int, int]  # Mean and maximum length of the texts, in tokens.
    batch_size: int = 32  # Batch size, in examples.

    @property
    def name(self) -> str:
        """The job in words."""
        mean, longest = self.tokens
        length = f"{mean} tokens" if mean == longest else f"{mean} of {longest} tokens"
        return f"{self.size}, {self.mode}, batch {self.batch_size}, {length}"

    def examples(self) -> Any:
        """Return the examples of a pass."""
        number = self.scale.batches * self.batch_size
        return examples_of(self.size, self.tokens, number, is_tiny=self.scale.is_tiny)

    def step_batches(self) -> ampft.StepBatches:
        """Return the batches of epoch 0, on which every system trains in each pass."""
        return ampft.StepBatches(self.examples(), self.batch_size, padded=False)

    def model(self) -> Any:
        """Return a new copy of the model, on the CPU.

        Raises:
            SkippedError: It needs a package that is missing.
        """
        return model_of(self.size, is_tiny=self.scale.is_tiny)

    def precision(self) -> ampft.Precision:
        """Return the precision.

        Raises:
            SkippedError: The device does not have it.
        """
        try:
            return ampft.resolve(self.mode, self.scale.device)
        except InputError as error:
            raise SkippedError(str(error)) from error

    def work(self) -> dict[str, float]:
        """Return 10^9 operations of a step, and 10^9 bytes that its update moves."""
        model = self.model()
        return {
            "gflop": gflop_of_step(model, self.examples().lengths, self.batch_size),
            "gigabytes": gigabytes_of_update(model),
        }


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
    """Times the passes of a turn; the Trainer and the other loops call it after each step.

    The device is synchronized only between passes.

    Attributes:
        first_step: Seconds of the first step, compiling included.
        cold_step: Mean seconds of a step of the first pass.
        warm_steps: Mean seconds of a step of each timed pass.
        joules: Energy of a timed step; None without a meter.
        notes: What a system says about itself.
    """

    def __init__(self, scale: Scale) -> None:
        self.first_step = self.cold_step = 0.0
        self.warm_steps: list[float] = []
        self.joules: float | None = None
        self.notes: dict[str, object] = {}
        self.scale = scale
        self._steps = 0
        self._begin = self._first_timed = 0.0
        self._energy = 0.0

    def begin(self) -> None:
        """Begin the first pass: the model is prepared."""
        synchronize(self.scale.device)
        self._begin = time.perf_counter()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin the first pass of the Trainer."""
        self.begin()

    def step_ended(self) -> bool:
        """Record the end of a step; return whether the turn is over."""
        self._steps += 1
        if self._steps == 1:
            synchronize(self.scale.device)
            self.first_step = time.perf_counter() - self._begin
        passes, rest = divmod(self._steps, self.scale.batches)
        return rest == 0 and self.pass_ended(passes)

    def pass_ended(self, passes: int) -> bool:
        """Record the end of a pass, counted from 1; return whether the turn is over."""
        synchronize(self.scale.device)
        now, meter = time.perf_counter(), energy_meter() if self.scale.on_gpu else None
        seconds, self._begin = (now - self._begin) / self.scale.batches, now
        if passes == 1:
            self.cold_step = seconds
        if passes == 1 + SETTLING_PASSES:
            self._first_timed, self._energy = now, meter() if meter else 0.0
        if passes <= 1 + SETTLING_PASSES:
            return False
        self.warm_steps.append(seconds)
        if now - self._first_timed < self.scale.turn_seconds:
            return False
        steps = len(self.warm_steps) * self.scale.batches
        self.joules = (meter() - self._energy) / steps if meter else None
        return True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Stop the Trainer when the turn is over."""
        del args, state
        control.should_training_stop = self.step_ended()
        return control


class ProfiledTurn(Turn):
    """Counts the kernels of the first pass after the settling ones.

    Attributes:
        counts: Mean number of launches by the host, of kernels and of copies per step, and the
            names of attention's operators and kernels.
    """

    def __init__(self, scale: Scale) -> None:
        super().__init__(scale)
        self.counts: dict[str, object] = {}
        activities = [torch.profiler.ProfilerActivity.CPU]
        activities += [torch.profiler.ProfilerActivity.CUDA] * scale.on_gpu
        self._profiler = torch.profiler.profile(activities=activities)

    def pass_ended(self, passes: int) -> bool:
        """Begin to count after the settling passes, and stop after the next pass."""
        synchronize(self.scale.device)
        if passes == 1 + SETTLING_PASSES:
            self._profiler.start()
        if passes <= 1 + SETTLING_PASSES:
            return False
        self._profiler.stop()
        events = list(self._profiler.events() or ())
        of_device = [e.name for e in events if e.device_type.name == "CUDA"]
        copies = sum(name.startswith(COPIES) for name in of_device)
        launches = sum(event.name in LAUNCHES for event in events)
        named = {e.name for e in events if any(part in e.name.lower() for part in ATTENTION)}
        self.counts = {"attention": sorted(named)}
        if self.scale.on_gpu:
            numbers = {"launches": launches, "kernels": len(of_device) - copies, "copies": copies}
            self.counts |= {name: number / self.scale.batches for name, number in numbers.items()}
        return True
