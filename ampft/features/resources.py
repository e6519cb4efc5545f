"""Time and memory of a run: its duration and limit `--max_time`, its peak memory and the parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ampft.features.feature import Feature, SavedFeature, StepRecord
from ampft.machine import resident_peak
from ampft.text.json_io import NotNegative

if TYPE_CHECKING:
    import torch

    from ampft.training.ending import TimeLimit


@dataclass(frozen=True)
class Durations:
    """The seconds of a run, and those for which checkpoints stopped the training."""

    total_seconds: NotNegative
    checkpoint_seconds: NotNegative


class Clock(Feature):
    """The duration of a run over all its processes, which ends the training at `--max_time`.

    Attributes:
        limit: Limit of the duration, and the time so far, without work that was lost between a
            checkpoint and a kill.
        checkpoint_seconds: Time for which checkpoints stopped the training.
    """

    name = "clock"

    def __init__(self, limit: TimeLimit, max_time: str | None, total_steps: int) -> None:
        """Begin before the first step.

        Args:
            limit: Limit of the duration.
            max_time: The limit as the user wrote it.
            total_steps: Optimizer steps of the whole training.
        """
        self.limit = limit
        self.checkpoint_seconds = 0.0
        self._max_time, self._total_steps, self._steps = max_time, total_steps, 0

    def after_step(self, record: StepRecord) -> Mapping[str, float]:
        """Count the step."""
        self._steps = record.number
        return {}

    @property
    def should_stop(self) -> bool:
        """Whether a process has reached the limit."""
        return self.limit.is_reached

    def timings(self, timings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the durations."""
        del timings
        return vars(self.state())

    def record(self) -> Mapping[str, Any]:
        """Return why the run ended before its last step, if the limit is the reason."""
        if not self.limit.is_reached or self._steps >= self._total_steps:
            return {}
        reason = (
            f"--max_time {self._max_time} was reached after step {self._steps} of "
            f"{self._total_steps}. The learning rate schedule was planned for {self._total_steps} "
            "steps."
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
    """Peak memory of a run and its parts, in bytes; `None` where it cannot be measured.

    Attributes:
        peak: Resident set of the process on a CPU, allocated tensors on a GPU.
        baseline: `peak` after the imports and before the model was loaded; `None` on a GPU.
        reserved: Peak of the memory that the GPU's allocator held; `None` on a CPU.
        protocol: Description of how the numbers were measured.
        weights: Parameters of the model.
        gradients: Gradients of the first step.
        optimizer_state: Optimizer state after the first step that was applied.
        activations: Largest number of bytes that the first step saved for backward at one time.
        rest: `peak` minus the baseline, if any, and minus the four parts above.
    """

    peak: int | None
    baseline: int | None
    reserved: int | None
    protocol: str
    weights: int | None = None
    gradients: int | None = None
    optimizer_state: int | None = None
    activations: int | None = None
    rest: int | None = None

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


class MemoryUse(Feature):
    """The peak memory of a run over all its processes, on the training device."""

    name = "memory"

    def __init__(self, device: torch.device, baseline: int | None) -> None:
        """Begin with the memory that this process has used.

        Args:
            device: Device of the training.
            baseline: As for `process_memory`.
        """
        self._device, self._baseline = device, baseline
        self._earlier: PeakMemory | None = None

    @property
    def peak(self) -> PeakMemory:
        """Peak memory so far: the largest over all parts of the run."""
        if self._device.type == "cuda":
            import torch

            now = device_memory(torch.cuda.memory_stats(self._device))
        else:
            now = process_memory(self._baseline)
        earlier = self._earlier
        return now if earlier is None or (now.peak or 0) >= (earlier.peak or 0) else earlier

    def after_step(self, record: StepRecord) -> Mapping[str, float | None]:
        """Return the peak so far in MiB."""
        del record
        peak = self.peak.peak
        return {"memory_mib": None if peak is None else peak / 2**20}

    def state(self) -> PeakMemory:
        """Return the peak so far."""
        return self.peak

    def restore(self, saved: SavedFeature) -> None:
        """Continue with the peak of earlier processes."""
        self._earlier = saved.state
