"""Checks of numerics on a GPU: kernels, gradients, sums in 16 bits, memory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gpu_turns import Job, Scale, SkippedError, summed_loss
from tiny_encoders import ENCODERS, loss_and_gradient, right_padded, tiny  # type: ignore[import-not-found]
from torch import Tensor, nn

import ampft
from ampft.emulation import Emulation
from ampft.engine.out_of_memory import OutOfMemoryRetries, release_memory
from ampft.fast.packing.install import install_packing
from ampft.fast.packing.packed_attention import choose_kernel
from ampft.fast.packing.verification import grouped_attention_reason
from ampft.precision.matrix_rate import measure_matrix_rate
from ampft.precision.tf32 import float32_settings_restored

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = tuple(sorted(ENCODERS))
FAMILY_LENGTHS = (5, 17, 1, 17)
CHOICE = "ampft.fast.packing.packed_attention.choose_kernel"
LOSS_SCALE = 1024.0
MEMORY_SHARE = 0.6  # of what the whole step batch takes beyond the model
GPU_TESTS = ("-m", "gpu", "-n", "0", "-q", "-p", "no:cacheprovider")


def attention_kernels(scale: Scale, mode: str, family: str) -> dict[str, object]:
    """Return the attention kernels of a tiny model of a family, and what its check says.

    Raises:
        SkippedError: The device does not have the mode.
    """
    precision = Job(scale, mode, next(iter(scale.sizes)), 1, (1, 1)).precision()
    kernels: set[str] = set()

    def choose_and_record(*args: Any, **options: Any) -> Any:
        kernel = choose_kernel(*args, **options)
        kernels.add(kernel.__name__)
        return kernel

    model = tiny(family).to(scale.device)
    batch = {
        name: tensor.to(scale.device)
        for name, tensor in right_padded(model, FAMILY_LENGTHS).items()
    }
    install_packing(model)
    autocast = torch.autocast(
        scale.device.type, precision.compute_dtype, enabled=precision.uses_autocast
    )
    with ampft.numerics(precision), autocast:
        note = grouped_attention_reason(model, model, batch)
        with patch(CHOICE, choose_and_record), scale.device:
            gradient = loss_and_gradient(model, batch)[2]
    return {
        "kernels": sorted(kernels),
        "check": note or "passed",
        "gradient_is_finite": bool(gradient.isfinite().all()),
    }


def run_program(words: list[str], seconds: float) -> dict[str, object]:
    """Run Python with these arguments in the repository; return its exit code and last lines.

    Raises:
        subprocess.TimeoutExpired: It did not end in time, and was ended.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        # A file and a group of processes: children that survive would keep a pipe open.
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            exit_code = process.wait(seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        output.seek(0)
        lines = output.read().strip().splitlines()
    return {"exit_code": exit_code, "last_lines": lines[-40:]}


def gradient_of(job: Job, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the whole gradient of one batch without dropout, on the CPU, float64.

    float16 products are emulated on a CPU, where the loss is scaled as on a GPU.
    """
    model = job.model().to(device).eval()
    batch = job.texts().collate(_first_ids(job))
    autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    with autocast:
        loss = summed_loss(model, _micro_batch(job, batch)) / job.batch_size
    (loss * LOSS_SCALE).backward()
    parts = [parameter.grad.flatten().cpu().double() for parameter in _trained(model)]
    return torch.cat(parts) / LOSS_SCALE


def _first_ids(job: Job) -> Any:
    return _step_batches(job).effective_ids(0, 0)


def _step_batches(job: Job) -> ampft.StepBatches:
    return ampft.StepBatches(job.texts(), effective_batch_size=job.batch_size)


def _micro_batch(job: Job, inputs: Any) -> ampft.MicroBatch:
    return ampft.MicroBatch(_first_ids(job), inputs, counted=True, is_last=True)


def _trained(model: nn.Module) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.grad is not None]


def error_between(one: Tensor, other: Tensor) -> float:
    """Return the norm of the difference of two gradients, divided by the norm of the second."""
    return float((one - other).norm() / other.norm())


def compare_emulation(job: Job) -> dict[str, object]:
    """Return the relative errors between fp16 gradients: emulated, native, and of float32."""
    cpu = torch.device("cpu")
    exact = gradient_of(job, cpu, torch.float32)
    with Emulation(torch.float16):
        emulated = gradient_of(job, cpu, torch.float16)
    row: dict[str, object] = {"emulated_to_fp32": error_between(emulated, exact)}
    if not job.scale.on_gpu:
        return row | {"native": "skipped: no native fp16 without a GPU"}
    with ampft.numerics(job.precision()):
        native = gradient_of(job, job.scale.device, torch.float16)
    return row | {
        "native_to_fp32": error_between(native, exact),
        "native_to_emulated": error_between(native, emulated),
    }


@contextmanager
def sums_in_16_bits(allowed: bool) -> Iterator[None]:
    """Allow or forbid that products in 16 bits are added in 16 bits."""
    matmul = torch.backends.cuda.matmul
    with float32_settings_restored():
        matmul.allow_fp16_reduced_precision_reduction = allowed
        matmul.allow_bf16_reduced_precision_reduction = allowed
        yield


def compare_sums(job: Job) -> dict[str, object]:
    """Return gradient error and rate of products with sums in 16 bits allowed and forbidden."""
    precision, scale = job.precision(), job.scale
    if precision.emulates_binary16:
        raise SkippedError("the emulation of fp16 always sums in float32")
    with ampft.numerics(precision):
        exact = gradient_of(job, scale.device, torch.float32)
    row: dict[str, object] = {}
    for allowed in (True, False):
        name = "allowed" if allowed else "forbidden"
        with sums_in_16_bits(allowed):
            gradient = gradient_of(job, scale.device, precision.compute_dtype)
            rate = measure_matrix_rate(
                scale.device, precision.compute_dtype, name=job.mode, max_seconds=scale.rate_seconds
            )
        row |= {f"error_{name}": error_between(gradient, exact), f"gflops_{name}": rate.gflops}
    return row


def retry_out_of_memory(job: Job) -> dict[str, object]:
    """Return the error of a gradient that was computed again after memory had run out.

    On a GPU the process may use only a share of the memory that the whole step batch takes. On a
    CPU, which cannot refuse memory, large micro-batches raise the error themselves.
    """
    device = job.scale.device
    model = job.model().to(device).eval()
    batches = _step_batches(job)
    step_batch = next(batches.epoch(0))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    limit = _limit_of_memory(model, step_batch, device)
    whole = _flat(model)
    model.zero_grad()
    lines: list[str] = []
    retries = OutOfMemoryRetries(model, batches, True, "", lines.append)
    largest = None if job.scale.on_gpu else job.batch_size // 2
    with limited_memory(device, limit), ampft.numerics(job.precision()):
        compute = partial(_accumulate, model, largest=largest)
        used, _ = retries.gradient(compute, step_batch)
    if len(used.micro_batches) == 1:
        raise RuntimeError("memory did not run out: nothing was tested")
    return {
        "micro_batches": len(used.micro_batches),
        "error": error_between(_flat(model), whole),
        "lines": lines,
    }


def _limit_of_memory(model: nn.Module, step_batch: ampft.StepBatch, device: torch.device) -> float:
    """Compute the gradient of a step batch; return the share of memory that it will not fit in."""
    if device.type != "cuda":
        _accumulate(model, step_batch, largest=None)
        return 1.0
    release_memory(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    _accumulate(model, step_batch, largest=None)
    peak = torch.cuda.max_memory_allocated(device)
    total = torch.cuda.get_device_properties(device).total_memory
    return (before + MEMORY_SHARE * (peak - before)) / total


@contextmanager
def limited_memory(device: torch.device, share: float) -> Iterator[None]:
    """Limit this process to a share of the memory of a GPU."""
    if device.type != "cuda":
        yield
        return
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(share, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _accumulate(
    model: nn.Module, step_batch: ampft.StepBatch, *, largest: int | None
) -> list[Tensor]:
    losses = []
    for micro_batch in step_batch:
        if largest is not None and len(micro_batch.ids) > largest:
            raise torch.OutOfMemoryError("out of memory, as a GPU would say")
        loss = summed_loss(model, micro_batch) / step_batch.effective_weight
        loss.backward()
        losses.append(loss.detach())
    return losses


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten().cpu().double() for parameter in _trained(model)])
