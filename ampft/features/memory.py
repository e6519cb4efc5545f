"""Peak memory of a run, its parts, and how it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ampft.features.feature import Feature, SavedFeature, StepRecord
from ampft.machine import resident_peak

if TYPE_CHECKING:
    import torch


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
