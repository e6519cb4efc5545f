"""The check of a precision before training: the user's model and batch, in the mode and in float32.

It fails where training could not work, as `ampft doctor` judges it (`ampft.precision.harm`): the
mode overflows at every loss scale, or its gradient has another direction or size. It warns where
the gradient is much less exact than the mode usually is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ampft.data.steps import MicroBatch
from ampft.errors import InputError
from ampft.evaluation.evaluate import in_float32
from ampft.precision.accelerator import numerics
from ampft.precision.harm import GradientChange
from ampft.precision.modes import is_fp32
from ampft.precision.sharding import is_sharded
from ampft.runs.prepared import Prepared
from ampft.training.out_of_memory import Snapshot, forget_peak_memory
from ampft.training.step import ScaledGradient, finite_gradient, lowered_scales

EXAMPLES = 8
# Relative error of the whole gradient. The yardstick measures 1 to 3 % for bf16 and 0.1 to 0.3 %
# for fp16 on encoders; a few examples of a batch can have several times as much.
USUAL_ERROR = {torch.bfloat16: 0.15, torch.float16: 0.05, torch.float32: 0.02}


@dataclass(frozen=True)
class PrecisionCheck:
    """What the check found.

    Attributes:
        mode: Precision of the run.
        examples: Number of examples.
        loss: Mean loss in the mode.
        loss_float32: Mean loss in float32.
        error: Norm of the difference of the gradients, relative to that in float32.
        worst: Module with the largest relative error, and that error.
        lost: Share of the entries of the gradient that are 0 only in the mode.
        loss_scale: Loss scale at which the gradient did not overflow; None without a scaler.
        initial_scale: Loss scale with which the training begins; None without a scaler.
        usual: Largest error, relative as `error`, that is usual in the mode.
    """

    mode: str
    examples: int
    loss: float
    loss_float32: float
    error: float
    worst: tuple[str, float]
    lost: float
    loss_scale: float | None
    initial_scale: float | None
    usual: float

    @property
    def notes(self) -> list[str]:
        """The result in words, the warnings last."""
        module, error = self.worst
        notes = [
            f"{self.mode} holds on {self.examples} examples: the gradient differs from that of "
            f"float32 by {self.error:.2%} (most in {module}: {error:.2%}), the loss is "
            f"{self.loss:.4f} instead of {self.loss_float32:.4f}"
        ]
        if self.lost > 0.01:
            notes.append(f"{self.lost:.1%} of the gradient becomes 0 in {self.mode}")
        if self.loss_scale != self.initial_scale:
            notes.append(
                f"the first steps will be skipped: the gradient overflows at a loss scale of "
                f"{self.initial_scale:g}, and not at {self.loss_scale:g}"
            )
        if self.error > self.usual:
            notes.append(
                f"warning: an error of at most {self.usual:.0%} is usual. To see where it arises: "
                "ampft yardstick, or ampft doctor"
            )
        return notes


def check_precision(prepared: Prepared) -> PrecisionCheck:
    """Compare forward and backward pass of a few examples in the mode with float32.

    The model, its buffers and the random state are as before afterwards.

    Raises:
        InputError: The mode cannot train this model, or cannot be compared with float32.
    """
    accelerator, precision = prepared.accelerator, prepared.precision
    mode = precision.mode
    if is_fp32(mode) or precision.properties.replaces_layers or is_sharded(accelerator):
        reason = (
            "there is nothing to compare" if is_fp32(mode)
            else "the same weights cannot compute in float32 there"
        )  # fmt: skip
        raise InputError(
            f"--check_precision with {mode}{' and FSDP' * is_sharded(accelerator)}: {reason}. "
            "Remove the flag, or use --mixed_precision bf16 or fp16 in a process without FSDP."
        )
    model: nn.Module = accelerator.unwrap_model(prepared.model, keep_torch_compile=False)
    (step_batch,) = prepared.step_batches.epoch(0, stop=1)
    ids = step_batch.ids[:EXAMPLES]
    examples = prepared.step_batches.examples
    batch = MicroBatch(ids, examples.collate(ids), counted=True, is_last=True)
    weight = float(examples.weights[ids].sum())
    snapshot, was_training = Snapshot(model), model.training
    model.eval()
    try:
        with numerics(precision):
            initial = None if accelerator.scaler is None else accelerator.scaler.get_scale()
            scales = lowered_scales(initial)
            found = finite_gradient(partial(_gradient, prepared, model, batch, weight), scales)
            with in_float32(accelerator, model, precision) as plain:
                reference = _gradient(prepared, plain, batch, weight, 1.0)
    finally:
        model.train(was_training)
        snapshot.restore()
        forget_peak_memory(accelerator.device)
    gradient, exact = found.gradient, reference.gradient
    if not reference.is_finite:
        raise InputError(
            "--check_precision: loss or gradient is not finite in float32 either, so no precision "
            "helps. Check the data and the model: ampft doctor shows the operation."
        )
    if not found.is_finite:
        where = "" if initial is None else f" at any loss scale from {initial:g} to {scales[-1]:g}"
        raise InputError(
            f"--check_precision: {mode} does not hold: loss or gradient is not finite{where}, but "
            "both are in float32. Use --mixed_precision bf16 or fp32; ampft doctor finds the "
            "module and a cure."
        )
    change = GradientChange.of((gradient[name] for name in exact), exact.values())
    worst = _worst_module(change, list(exact))
    if change.harm is not None:
        raise InputError(
            f"--check_precision: {mode} does not hold: {change.harm}. Compared with float32, the "
            f"gradient has a cosine of {change.cosine:.2f} and {change.size:.2f} times the norm "
            f"(it differs most in {worst[0]}: {worst[1]:.0%}). Use --mixed_precision fp32; ampft "
            "doctor finds the module and a cure."
        )
    lost = sum(int(((gradient[n] == 0) & (exact[n] != 0)).sum()) for n in exact)
    return PrecisionCheck(
        mode=mode,
        examples=len(ids),
        loss=found.loss,
        loss_float32=reference.loss,
        error=change.error,
        worst=worst,
        lost=lost / max(1, sum(int((g != 0).sum()) for g in exact.values())),
        loss_scale=None if initial is None else found.scale,
        initial_scale=initial,
        usual=USUAL_ERROR.get(precision.compute_dtype, USUAL_ERROR[torch.bfloat16]),
    )


def _gradient(
    prepared: Prepared, model: nn.Module, batch: MicroBatch, weight: float, scale: float
) -> ScaledGradient:
    loss = prepared.task.loss(model, batch) / weight
    (loss * scale).backward()
    gradient = {
        name: parameter.grad.float() / scale
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return ScaledGradient(float(loss.detach()), gradient, scale)


def _worst_module(change: GradientChange, names: Sequence[str]) -> tuple[str, float]:
    """Return the module with the largest relative error of its gradient, and that error.

    A module counts only if a hundredth of the gradient is in it.
    """
    modules: dict[str, list[float]] = {}
    for name, (_, _, square, difference) in zip(names, change.sums.tolist(), strict=True):
        entry = modules.setdefault(name.rpartition(".")[0], [0.0, 0.0])
        entry[0] += difference
        entry[1] += square
    total = sum(square for _, square in modules.values()) or 1.0
    relative = {
        name: (difference / square) ** 0.5
        for name, (difference, square) in modules.items()
        if square > 1e-4 * total
    }
    worst = max(relative, key=lambda name: relative[name], default="")
    return worst, relative.get(worst, 0.0)
