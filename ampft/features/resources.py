"""Time and memory of a run, and how far it used the machine."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ampft.features.feature import Feature, SavedFeature, StepRecord
from ampft.machine import resident_peak
from ampft.text.json_io import NotNegative

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import nn

    from ampft.engine.ending import TimeLimit
    from ampft.precision.resolve import Precision


@dataclass(frozen=True)
class Durations:
    """The seconds of a run, and those for which checkpoints stopped the training."""

    total_seconds: NotNegative
    checkpoint_seconds: NotNegative


FORWARD = 1 / 3  # share of the forward pass in the time of a gradient
FIRST_STEPS = 2  # steps of a process whose time says nothing about the others
# What predicting may take longer than expected, and what saving the model and the results takes.
MARGIN, SAVING = 1.2, 2.0


def seconds_after_training(rows: int, row: float) -> float:
    """Return the seconds to keep for what follows the training: predictions and files.

    Args:
        rows: Number of rows to predict.
        row: Seconds per row.
    """
    return SAVING + MARGIN * rows * row


@dataclass
class TrainingClock(Feature):
    """The duration of a run over all its processes, which is kept within `--max_time`."""

    name = "clock"

    # Limit of the duration, and the time so far, without work that was lost between a checkpoint
    # and a kill.
    limit: TimeLimit
    max_time: str | None  # The limit as the user wrote it.
    total_steps: int  # Optimizer steps of the whole training.
    effective_batch_size: int = 1  # Examples of a step.
    validation_rows: int = 0  # Rows of the validation split, which are predicted once more.
    final_rows: int = 0  # Rows of the final split.
    checkpoint_seconds: float = 0.0  # Time for which checkpoints stopped the training.
    _steps: int = 0
    _timed: int = 0  # Steps of this process.
    _row: float = math.inf  # Seconds to predict a row.

    @contextmanager
    def around_gradient(self, step: int) -> Iterator[None]:
        """Measure a gradient, from which the time of a prediction follows."""
        started = time.perf_counter()
        yield
        self._timed += 1
        if self._timed > FIRST_STEPS:
            gradient = time.perf_counter() - started
            self._reserve(FORWARD * gradient / self.effective_batch_size)

    @contextmanager
    def around_evaluation(self) -> Iterator[None]:
        """Measure the predictions of the validation split."""
        started = time.perf_counter()
        yield
        if self.validation_rows:
            self._reserve((time.perf_counter() - started) / self.validation_rows)

    def _reserve(self, row: float) -> None:
        self._row = min(self._row, row)
        rows = self.validation_rows + self.final_rows
        self.limit.reserved = seconds_after_training(rows, self._row) if rows else 0.0

    def after_step(self, record: StepRecord) -> Mapping[str, float]:
        self._steps = record.number
        return {}

    @property
    def should_stop(self) -> bool:
        """Whether a process has reached the limit."""
        return self.limit.is_reached

    def timings(self, timings: Mapping[str, Any]) -> Mapping[str, Any]:
        return vars(self.state())

    def record(self) -> Mapping[str, Any]:
        """Return why the run ended, if the limit is the reason."""
        if not self.limit.is_reached:
            return {}
        reason = (
            f"--max_time {self.max_time} ended the training after step {self._steps} of "
            f"{self.total_steps}, so that the run ends in time. The learning rate schedule was "
            f"planned for {self.total_steps} steps."
        )
        return {"reason": reason}

    def state(self) -> Durations:
        """Return the durations so far."""
        return Durations(self.limit.elapsed, self.checkpoint_seconds)

    def restore(self, saved: SavedFeature) -> None:
        """Continue with the durations of earlier processes."""
        self.limit.earlier = saved.state.total_seconds
        self.checkpoint_seconds = saved.state.checkpoint_seconds
        self._steps = saved.step


@dataclass(frozen=True)
class PeakMemory:
    """Peak memory of a run and its parts, in bytes; `None` where it cannot be measured."""

    peak: int | None  # Resident set of the process on a CPU, allocated tensors on a GPU.
    # `peak` after the imports and before the model was loaded; `None` on a GPU.
    baseline: int | None
    reserved: int | None  # Peak of the memory that the GPU's allocator held; `None` on a CPU.
    protocol: str  # Description of how the numbers were measured.
    weights: int | None = None  # Parameters of the model.
    gradients: int | None = None  # Gradients of the first step.
    optimizer_state: int | None = None  # Optimizer state after the first step that was applied.
    # Largest number of bytes that the first step saved for backward at one time.
    activations: int | None = None
    rest: int | None = None  # `peak` minus the baseline, if any, and minus the four parts above.

    def split(
        self, *, weights: int, gradients: int, optimizer_state: int, activations: int
    ) -> PeakMemory:
        """Return the peak with its parts in bytes, and the rest that they do not explain."""
        protocol = (
            f"{self.protocol}; weights, gradients and optimizer state: bytes of their tensors; "
            "activations: unique storages saved for backward, without parameters, the maximum over "
            "the micro-batches of the first step, which need not be the largest step"
        )
        rest = None
        if self.peak is not None:
            parts = weights + gradients + optimizer_state + activations
            rest = self.peak - (self.baseline or 0) - parts
            if rest < 0:
                protocol += f"; rest: 0, because the parts exceed the peak by {-rest} bytes"
                rest = 0
        return replace(
            self,
            protocol=protocol,
            weights=weights,
            gradients=gradients,
            optimizer_state=optimizer_state,
            activations=activations,
            rest=rest,
        )


def process_memory(baseline: int | None) -> PeakMemory:
    """Return the peak memory of this process, for a run on a CPU.

    Args:
        baseline: `resident_peak()` after the imports and before the model was loaded.
    """
    peak = resident_peak()
    protocol = (
        "VmHWM of the process after training and evaluation; baseline: VmHWM after the imports"
        if peak is not None
        else "not measured: this system has no /proc/self/status"
    )
    return PeakMemory(peak=peak, baseline=baseline, reserved=None, protocol=protocol)


def device_memory(statistics: Mapping[str, int]) -> PeakMemory:
    """Return the peak memory of a GPU.

    Args:
        statistics: `torch.cuda.memory_stats()`; empty before the device is first used.
    """
    return PeakMemory(
        peak=statistics.get("allocated_bytes.all.peak", 0),
        baseline=None,
        reserved=statistics.get("reserved_bytes.all.peak", 0),
        protocol="peak of the tensors allocated on the GPU of the main process; "
        "reserved: peak of the memory that its allocator held",
    )


@dataclass
class PeakMemoryMonitor(Feature):
    """The peak memory of a run over all its processes, on the training device."""

    name = "memory"

    device: torch.device  # Device of the training.
    baseline: int | None  # As for `process_memory`.
    _earlier: PeakMemory | None = None

    @property
    def peak(self) -> PeakMemory:
        """Peak memory so far: the largest over all parts of the run."""
        if self.device.type == "cuda":
            import torch

            now = device_memory(torch.cuda.memory_stats(self.device))
        else:
            now = process_memory(self.baseline)
        earlier = self._earlier
        return now if earlier is None or (now.peak or 0) >= (earlier.peak or 0) else earlier

    def after_step(self, record: StepRecord) -> Mapping[str, float | None]:
        """Return the peak so far in MiB."""
        peak = self.peak.peak
        return {"memory_mib": None if peak is None else peak / 2**20}

    def state(self) -> PeakMemory:
        """Return the peak so far."""
        return self.peak

    def restore(self, saved: SavedFeature) -> None:
        """Continue with the peak of earlier processes."""
        self._earlier = saved.state


# Seconds of one product, chosen such that the whole measurement takes less than a second.
MAX_PRODUCT_SECONDS = 0.2

PROTOCOL = (
    "matrix_rate_gflops: square products in the compute dtype, fastest of several, in the same "
    "process with the same threads, after training; flops_per_token: 6 x the weights of the "
    "encoder's matrices (forward 2, backward 4; without embeddings, biases, norms, pooler, head "
    "and products of attention scores), although running without padding saves some and "
    "checkpointing repeats some; utilisation: tokens_per_second x flops_per_token / (matrix rate "
    "x processes)"
)


@dataclass(frozen=True)
class Utilisation:
    """The utilisation of the machine by a training."""

    # 10^9 operations per second of a large matrix product in one process; None if the mode is
    # emulated or torch has no plain product in it (fp8).
    matrix_rate_gflops: float | None
    # Floating-point operations per token in training; None if examples have no tokens.
    flops_per_token: int | None
    # Rate of the training divided by the rate of matrix products in all processes; None if one of
    # the other two is.
    utilisation: float | None
    utilisation_protocol: str = PROTOCOL  # Description of the measurement.


def measure_utilisation(
    flops: int,
    precision: Precision,
    device: torch.device,
    *,
    tokens_per_second: float | None,
    num_processes: int,
) -> Utilisation:
    """Measure the matrix product rate of this process, and return the utilisation of a training.

    Args:
        flops: Floating-point operations per token, from `flops_per_token` of the trained model.
        precision: Precision of the run, whose TF32 policy must be in force.
        tokens_per_second: Tokens per second in all processes; None if examples have no tokens.
        num_processes: Number of processes that trained together.
    """
    from ampft.precision.matrix_rate import measure_matrix_rate

    rate = None
    if not precision.is_emulated and not precision.properties.replaces_layers:
        rate = measure_matrix_rate(
            device, precision.compute_dtype, name=precision.mode, max_seconds=MAX_PRODUCT_SECONDS
        ).gflops
    if tokens_per_second is None:
        return Utilisation(rate, None, None)
    utilisation = None
    if rate is not None:
        utilisation = tokens_per_second * flops / (rate * 1e9 * num_processes)
    return Utilisation(rate, flops, utilisation)


def flops_per_token(model: nn.Module) -> int:
    """Return the floating-point operations of a training step per token: 6 N if all is trained.

    A weight takes part in one multiplication and one addition in the forward pass, and in twice as
    many in the backward pass, for the gradients of its input and of itself. N is the number of
    weights in the matrices of the encoder, without embeddings, which are looked up, and without
    biases and norms. The head and the pooler are not counted, because they act on one token per
    text. A frozen weight has no gradient, and takes no part in the backward pass if nothing that
    comes before it is trained. Source: Kaplan et al. (2020), "Scaling Laws for Neural Language
    Models", section 2.1; the term that grows with the context is omitted, as it is there.

    Args:
        model: A model of transformers, whose `base_model` is the encoder, or any other module,
            which is counted as a whole.
    """
    from torch import nn

    from ampft.models.four_bit import weight_counts

    encoder = getattr(model, "base_model", model)
    excluded = {
        id(parameter)
        for name, module in encoder.named_modules()
        if isinstance(module, nn.Embedding) or name.rpartition(".")[2] == "pooler"
        for parameter in module.parameters()
    }
    operations, above_trained, counts = 0, False, weight_counts(encoder)
    for parameter in encoder.parameters():
        if parameter.ndim >= 2 and id(parameter) not in excluded:
            trains = parameter.requires_grad
            per_weight = 2 + 2 * trains + 2 * (trains or above_trained)
            operations += per_weight * counts[parameter]
        above_trained |= parameter.requires_grad
    return operations


class UtilisationMeasurement(Feature):
    """Measures, after training, the share of the rate of matrix products that it reached."""

    name = "utilisation"

    def __init__(
        self, accelerator: Accelerator, model: nn.Module, precision: Precision, *, has_tokens: bool
    ) -> None:
        """Count the operations per token, before adapters can be merged.

        Args:
            model: Model without what Accelerate added.
        """
        self._accelerator, self._precision, self._has_tokens = accelerator, precision, has_tokens
        self._flops = flops_per_token(model)

    def timings(self, timings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the utilisation, its parts and its protocol."""
        measured = measure_utilisation(
            self._flops,
            self._precision,
            self._accelerator.device,
            tokens_per_second=timings["tokens_per_second"] if self._has_tokens else None,
            num_processes=self._accelerator.num_processes,
        )
        return asdict(measured)
