"""Dropout of every family: the masks themselves, and that no precision changes them."""

import copy
from contextlib import nullcontext

import pytest
import torch
from tiny_encoders import ENCODERS, LONGEST, loss_and_gradient, relative_error, right_padded, tiny

from ampft.emulation import Emulation
from ampft.fast.packing import cpu_kernels
from ampft.fast.packing.install import install_packing

FP32_TOLERANCE = 1e-6
# Other masks change the gradient far more than rounding does.
MAX_SHARE_OF_ROUNDING = 0.25


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_dropout_equals_that_of_transformers_with_the_same_masks(name, monkeypatch):
    """Without padding, both paths have the same elements in the same order."""
    packed = tiny(name)
    twin = copy.deepcopy(packed)
    twin.set_attn_implementation("eager")
    cpu_kernels.install_fast_dropout(twin.base_model)
    install_packing(packed, trim_last_layer=False)
    batch = right_padded(packed, [LONGEST] * 3)

    def draw_as_packed(weights, p=0.5, training=True, inplace=False):
        return cpu_kernels.dropout(weights, p) if training and p > 0 else weights

    # Heads, and the attention of the twin, call this function.
    monkeypatch.setattr(torch.nn.functional, "dropout", draw_as_packed)
    torch.manual_seed(7)
    actual = loss_and_gradient(packed, batch)
    torch.manual_seed(7)
    expected = loss_and_gradient(twin, batch)
    for one, other in zip(actual, expected, strict=True):
        assert relative_error(one, other) <= FP32_TOLERANCE
    torch.manual_seed(8)
    assert relative_error(loss_and_gradient(packed, batch)[2], expected[2]) > 1e4 * FP32_TOLERANCE


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_masks_do_not_depend_on_the_precision(name):
    model = tiny(name)
    install_packing(model)
    batch = right_padded(model, [3, 17, 17, 1, 30])

    def run(dtype, context=nullcontext, seed=7):
        torch.manual_seed(seed)
        with context(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            return loss_and_gradient(model, batch)[2], torch.get_rng_state()

    exact, state = run(torch.float32)
    limit = MAX_SHARE_OF_ROUNDING * relative_error(run(torch.float32, seed=8)[0], exact)
    for rounded, other_state in (
        run(torch.bfloat16),
        run(torch.float16, lambda: Emulation(torch.float16)),
    ):
        assert torch.equal(state, other_state)
        assert relative_error(rounded, exact) <= limit
