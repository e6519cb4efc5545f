"""Switches TF32 on or off, measures whether it is on, and switches sums in 16 bits off.

PyTorch has two interfaces for this setting, and reading the old one (`allow_tf32`,
`torch.get_float32_matmul_precision`) raises where the new one (`fp32_precision` of each operator)
disagrees. Both are written, because `torch.backends.cudnn.flags` and compiled code read
the old one. The new one is verified. Each operator is set by name, because an operator left at
`none` inherits the setting of its backend or of the process.

By default cuBLAS may add the parts of a 16-bit product in 16 bits, and torch.float16 sums can be
allowed in all of it. Both are switched off in every mode, so that sums are float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from ampft.errors import InputError
from ampft.precision.resolve import Precision

# oneDNN is pinned too: set to `tf32` or `bf16`, it drops bits of float32 products on a CPU.
_CUDA_OPERATORS = (("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))
_CPU_OPERATORS = (("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"))

# Switches of 16-bit sums, as torch._C names them after `_get_` and `_set_`.
_ROUNDED_SUMS = (
    "cublas_allow_fp16_reduced_precision_reduction",
    "cublas_allow_bf16_reduced_precision_reduction",
    "cublas_allow_fp16_accumulation",
    "cpu_allow_fp16_reduced_precision_reduction",
)

# The fraction's only set bit is the 12th: beyond the 10 bits of TF32, within the 23 of float32.
PROBE = 1.0 + 2.0**-12


def _settings(precision: Precision) -> dict[tuple[str, str], str]:
    """Return the value of `fp32_precision` for each pair of backend and operator."""
    on_gpu = "tf32" if precision.properties.allows_tf32 else "ieee"
    return {**dict.fromkeys(_CUDA_OPERATORS, on_gpu), **dict.fromkeys(_CPU_OPERATORS, "ieee")}


def apply_float32_policy(precision: Precision) -> None:
    """Make float32 products exact float32, except under `tf32`, and all sums float32.

    This includes `bf16` and `fp16`: what autocast leaves in float32 is computed in float32.
    """
    _write(_settings(precision))
    for switch in _ROUNDED_SUMS:
        getattr(torch._C, f"_set_{switch}")(False)


def sums_may_be_rounded() -> bool:
    """Return whether PyTorch allows products in 16 bits to be added in 16 bits."""
    return any(_values(switch)[0] for switch in _ROUNDED_SUMS)


def _values(switch: str) -> tuple[bool, ...]:
    """Return a switch, and for some also whether a product may be split into several sums."""
    values = getattr(torch._C, f"_get_{switch}")()
    return values if isinstance(values, tuple) else (values,)


def _write(settings: Mapping[tuple[str, str], str]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Please use the new API settings")
        # The old interface first, because it also writes the new one.
        torch._C._set_cublas_allow_tf32(settings["cuda", "matmul"] == "tf32")
        torch._C._set_cudnn_allow_tf32(settings["cuda", "conv"] == "tf32")
    for (backend, operator), value in settings.items():
        torch._C._set_fp32_precision_setter(backend, operator, value)


@contextmanager
def float32_policy(precision: Precision) -> Iterator[None]:
    """Apply the policy of a precision, and restore the previous settings on exit."""
    with float32_settings_restored():
        apply_float32_policy(precision)
        yield


@contextmanager
def float32_settings_restored() -> Iterator[None]:
    """Restore the settings of both interfaces, and of sums in 16 bits, on exit."""
    operators = (*_CUDA_OPERATORS, *_CPU_OPERATORS)
    previous = {operator: torch._C._get_fp32_precision_getter(*operator) for operator in operators}
    switches = {switch: _values(switch) for switch in _ROUNDED_SUMS}
    try:
        yield
    finally:
        _write(previous)
        for switch, values in switches.items():
            getattr(torch._C, f"_set_{switch}")(*values)


def verify_float32_policy(precision: Precision, device: torch.device) -> None:
    """Check that the policy is still in force, for example after `Accelerator.prepare`.

    Args:
        precision: The precision that `apply_float32_policy` was called with.
        device: Device of the run; a CUDA device is also probed with a product.

    Raises:
        InputError: A setting was changed, or the hardware does not follow it.
    """
    for (backend, operator), value in _settings(precision).items():
        current = torch._C._get_fp32_precision_getter(backend, operator)
        # Nothing inherits TF32 if the setting is still `none` after inheritance.
        if ("ieee" if current == "none" else current) != value:
            raise InputError(
                f"mode {precision.mode}: float32 {operator} of {backend} was changed to "
                f"{current!r}; it must be {value!r}. Something in this process set TF32 after "
                f"ampft did. Remove `allow_tf32`, `set_float32_matmul_precision` or the compile "
                f"backend that sets it."
            )
    if sums_may_be_rounded():
        raise InputError(
            f"mode {precision.mode}: sums of products in 16 bits were allowed after ampft did not "
            "allow them. Remove what sets `allow_fp16_reduced_precision_reduction`, "
            "`allow_bf16_reduced_precision_reduction` or `allow_fp16_accumulation`."
        )
    if device.type == "cuda":
        ran_in_tf32 = float32_product_loses_bits(device)
        if ran_in_tf32 != precision.properties.allows_tf32:
            raise InputError(
                f"mode {precision.mode}: a float32 product on {device} "
                f"{'lost' if ran_in_tf32 else 'kept'} the bit that TF32 drops, so something "
                f"overrides the setting. If the environment variable NVIDIA_TF32_OVERRIDE is set, "
                f"unset it."
            )


def float32_product_loses_bits(device: torch.device, size: int = 1024) -> bool:
    """Return whether a float32 matrix product loses the last bit of 1 + 2^-12, as TF32 does.

    Args:
        size: Rows and columns of the matrices, large enough that cuBLAS chooses a kernel with
            TF32 if it may.
    """
    # Under autocast the operands would have 16 bits, and the product would say nothing of TF32.
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        left = torch.full((size, size), PROBE, device=device)
        product = left @ torch.eye(size, device=device)
        return bool((product != PROBE).any().item())
