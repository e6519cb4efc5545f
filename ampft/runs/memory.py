"""Peak memory of a run, and what the number means."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ampft.machine import resident_peak


@dataclass(frozen=True)
class PeakMemory:
    """The peak of a run, in bytes; `None` where it cannot be read.

    Attributes:
        peak: Resident set of the process on a CPU, allocated tensors on an accelerator.
        baseline: The same, after the imports and before the model; `None` on an accelerator.
        reserved: What the accelerator's allocator held; `None` on a CPU.
        protocol: How the numbers were taken, in words.
        weights: Of the model's parameters.
        gradients: Of the first step.
        optimizer_state: Of the first step that was applied.
        activations: Most that the first step kept for a backward pass at a time.
        rest: `peak` less the baseline, where there is one, and less the four above.
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
        """Return the peak with its parts in bytes, and with what they leave of it."""
        said = (
            f"{self.protocol}; weights, gradients and optimizer state: their tensors as they are; "
            "activations: unique storages saved for backward, without parameters, the maximum over "
            "the micro-batches of the first step, which need not be the largest step"
        )
        rest = None
        if self.peak is not None:
            parts = weights + gradients + optimizer_state + activations
            rest = self.peak - (self.baseline or 0) - parts
            if rest < 0:
                said += f"; rest: 0, since the parts add up to {-rest} bytes more than the peak"
                rest = 0
        return replace(
            self,
            protocol=said,
            weights=weights,
            gradients=gradients,
            optimizer_state=optimizer_state,
            activations=activations,
            rest=rest,
        )


def process_memory(baseline: int | None) -> PeakMemory:
    """Return the peak of this process, for a run on a CPU.

    Args:
        baseline: `resident_peak()` after the imports and before the model was loaded, bytes.
    """
    peak = resident_peak()
    protocol = (
        "VmHWM of the process after training and evaluation; baseline: the same after the imports"
        if peak is not None
        else "not measured: this system has no /proc/self/status"
    )
    return PeakMemory(peak=peak, baseline=baseline, reserved=None, protocol=protocol)


def device_memory(*, allocated: int, reserved: int) -> PeakMemory:
    """Return the peak of an accelerator.

    Args:
        allocated: Such as `torch.cuda.max_memory_allocated()`, bytes.
        reserved: Such as `torch.cuda.max_memory_reserved()`, bytes.
    """
    return PeakMemory(
        peak=allocated,
        baseline=None,
        reserved=reserved,
        protocol="peak of the tensors that the device's allocator gave out on the main process; "
        "reserved: peak of what it held",
    )
