"""The one switch for TF32, and the measurement that tells whether it is on.

PyTorch has two interfaces for this setting, and reading the old one after writing the new one
raises. ampft uses the new one alone (`fp32_precision` of each operator) and never the old one
(`allow_tf32`, `torch.set_float32_matmul_precision`). Each operator is set by name, since a value
left at `none` inherits from its backend and from the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ampft.errors import InputError
from ampft.precision.resolve import Precision

# oneDNN is pinned too: with `tf32` or `bf16` there, float32 products on a CPU lose bits.
_CUDA_OPERATORS = (("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))
_CPU_OPERATORS = (("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"))

# One bit below the ten that TF32 keeps of a float32's fraction, and above float32's last.
PROBE = 1.0 + 2.0**-12


def _wanted(precision: Precision) -> dict[tuple[str, str], str]:
    on_gpu = "tf32" if precision.row.has_fast_float32 else "ieee"
    return {
        **dict.fromkeys(_CUDA_OPERATORS, on_gpu),
        **dict.fromkeys(_CPU_OPERATORS, "ieee"),
    }


def apply_float32_policy(precision: Precision) -> None:
    """Let float32 products be exact float32, except under `tf32`.

    Under `bf16` and `fp16` too: what autocast leaves in float32 stays float32.
    """
    for (backend, operator), value in _wanted(precision).items():
        torch._C._set_fp32_precision_setter(backend, operator, value)


@contextmanager
def float32_policy(precision: Precision) -> Iterator[None]:
    """Apply the policy of a precision; what was set before is back afterwards."""
    before = {
        operator: torch._C._get_fp32_precision_getter(*operator) for operator in _wanted(precision)
    }
    apply_float32_policy(precision)
    try:
        yield
    finally:
        for operator, value in before.items():
            torch._C._set_fp32_precision_setter(*operator, value)


def verify_float32_policy(precision: Precision, device: torch.device) -> None:
    """Check that nothing has changed the policy since, `Accelerator.prepare` for one.

    Args:
        precision: What `apply_float32_policy` was called with.
        device: Where the probe is multiplied; only a CUDA device has something to tell.

    Raises:
        InputError: A setting differs, or the hardware computes otherwise than it is set.
    """
    for (backend, operator), value in _wanted(precision).items():
        found = torch._C._get_fp32_precision_getter(backend, operator)
        if found != value:
            raise InputError(
                f"mode {precision.mode}: float32 {operator} of {backend} was changed to {found!r}, "
                f"it has to be {value!r}. Something in this process set TF32 after ampft: remove "
                f"`allow_tf32`, `set_float32_matmul_precision` or a compile backend that sets it."
            )
    if device.type == "cuda":
        ran_in_tf32 = float32_product_loses_bits(device)
        if ran_in_tf32 != precision.row.has_fast_float32:
            raise InputError(
                f"mode {precision.mode}: a float32 product on {device} "
                f"{'lost' if ran_in_tf32 else 'kept'} the bit that TF32 drops. The environment "
                f"(NVIDIA_TF32_OVERRIDE?) overrides the setting: unset it."
            )


def float32_product_loses_bits(device: torch.device, size: int = 128) -> bool:
    """Return whether (1 + 2^-12) · 1 comes back as less than that from a matrix product.

    Args:
        device: Where to multiply.
        size: Rows and columns; large enough for a tensor-core kernel to be chosen.
    """
    # Autocast would turn the probe into 16 bits and answer another question.
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        left = torch.full((size, size), PROBE, device=device)
        product = left @ torch.eye(size, device=device)
        return bool((product != PROBE).any().item())
