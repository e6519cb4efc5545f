"""Predictions in plain float32 by a model that is trained in another precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ampft.errors import InputError
from ampft.models.weights import cast_in_place
from ampft.precision.emulation import emulation_suspended
from ampft.precision.modes import BASELINE
from ampft.precision.resolve import Precision
from ampft.precision.tf32 import apply_float32_policy

if TYPE_CHECKING:
    from accelerate import Accelerator


def check_float32_possible(precision: Precision) -> None:
    """Check that `--evaluate_fp32` is possible: the model was not changed for its precision.

    Raises:
        InputError: fp8 has replaced layers.
    """
    if precision.properties.replaces_layers:
        raise InputError(
            "--evaluate_fp32: fp8 replaces layers of the model, so that the same model cannot "
            "predict in float32. Remove the flag, and predict with the saved model: ampft predict "
            "--mixed_precision fp32."
        )


@contextmanager
def in_float32(
    accelerator: Accelerator, model: nn.Module, precision: Precision
) -> Iterator[nn.Module]:
    """Yield the model without autocast, TF32 and emulation, which are restored afterwards.

    Args:
        accelerator: Accelerator that prepared `model`.
        model: Model. Its bfloat16 weights are float32 in the context, with exactly equal values.
        precision: Precision of the run.
    """
    plain: Any = accelerator.unwrap_model(model, keep_torch_compile=False)
    # Accelerate stores the forward pass that it wraps in autocast; fp32 and tf32 have no wrapper.
    wrapped, original = plain.__dict__.get("forward"), plain.__dict__.get("_original_forward")
    is_16_bit = precision.storage_dtype != torch.float32
    apply_float32_policy(replace(precision, mode=BASELINE))
    try:
        if original is not None:
            plain.forward = original
        if is_16_bit:
            cast_in_place(plain, torch.float32)
        with emulation_suspended(), torch.autocast(accelerator.device.type, enabled=False):
            yield plain
    finally:
        if is_16_bit:
            cast_in_place(plain, precision.storage_dtype)
        if original is not None:
            plain.forward = wrapped
        apply_float32_policy(precision)
