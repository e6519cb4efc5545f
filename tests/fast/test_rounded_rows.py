"""Rows filled up where oneDNN compiles a kernel for each shape: nothing else changes."""

import copy

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from tiny_encoders import ENCODERS, loss_and_gradient, relative_error, right_padded, tiny
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.fast.packing import install
from ampft.fast.packing.install import ROUNDED_TO, install_packing
from ampft.fast.packing.layout import pack_layout
from ampft.models.pretrained import enable_gradient_checkpointing

LENGTHS = [3, 17, 17, 1, 30]  # 68 tokens
FP32_TOLERANCE = 1e-6

has_native_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="needs AVX512 for native bfloat16"
)


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_masks_logits_and_gradients_are_those_without_fillers(name, monkeypatch):
    """With dropout: both draw the same masks, and leave the generator in the same state."""
    plain, filled = tiny(name), tiny(name)
    install_packing(plain)
    handle = install_packing(filled)
    monkeypatch.setattr(handle, "_compiles_kernels", lambda device: True)
    batch = right_padded(plain, LENGTHS)
    results, states = [], []
    for model in (plain, filled):
        torch.manual_seed(3)
        results.append(loss_and_gradient(model, batch))
        states.append(torch.get_rng_state())
    for one, other in zip(*results, strict=True):
        assert relative_error(one, other) <= FP32_TOLERANCE
    assert torch.equal(*states)


def test_dropout_of_adapters_that_are_added_later_draws_nothing_for_fillers_either(monkeypatch):
    """It drew one mask per filler, so that every later mask was another one."""
    results, states = [], []
    for is_filled in (False, True):
        torch.manual_seed(0)
        model = tiny("bert")
        handle = install_packing(model)
        monkeypatch.setattr(handle, "_compiles_kernels", lambda device, filled=is_filled: filled)
        adapters = LoraConfig(r=2, lora_dropout=0.5, target_modules=["query", "value", "dense"])
        inject_adapter_in_model(adapters, model)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight)
        model.train()
        torch.manual_seed(3)
        results.append(loss_and_gradient(model, right_padded(model, LENGTHS)))
        states.append(torch.get_rng_state())
    for one, other in zip(*results, strict=True):
        assert relative_error(one, other) <= FP32_TOLERANCE
    assert torch.equal(*states)


def test_the_layout_has_fillers_that_attention_does_not_read():
    layout = pack_layout(torch.arange(30) < torch.tensor(LENGTHS)[:, None])
    rounded = layout.rounded(64)
    assert (rounded.total, rounded.attended, rounded.fillers) == (128, 68, 60)
    assert rounded.groups == layout.groups
    assert layout.rounded(34) is layout
    tokens = torch.arange(5 * 30.0).view(5, 30)
    row = rounded.gather(tokens)
    assert row.shape == (1, 128)
    expected = tokens * (torch.arange(30) < torch.tensor(LENGTHS)[:, None])
    assert torch.equal(rounded.scatter(row), expected)
    cells = [part for (part,) in rounded.cells([row.squeeze(0)])]
    assert torch.equal(rounded.row_of(cells)[:68], row[0, :68])
    assert not rounded.row_of(cells)[68:].any()


class _Rows(TorchDispatchMode):
    """Collects the numbers of rows of matrix products."""

    def __init__(self):
        super().__init__()
        self.rows = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
            self.rows |= {each.shape[0] for each in args if each.ndim == 2}
        return function(*args, **(kwargs or {}))


def rows_of(model, dtype):
    batch = right_padded(model, LENGTHS)
    with _Rows() as seen, torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        loss_and_gradient(model, batch)
    return seen.rows


@has_native_bfloat16
@pytest.mark.parametrize("autocast", [True, False])
def test_only_native_bfloat16_is_rounded(autocast, monkeypatch):
    model = tiny("bert")
    model = model if autocast else model.bfloat16()
    plain = copy.deepcopy(model)
    install_packing(model)
    dtype = torch.bfloat16 if autocast else torch.float32
    assert {2 * ROUNDED_TO} <= rows_of(model, dtype)
    if autocast:
        assert 2 * ROUNDED_TO not in rows_of(model, torch.float32)
    monkeypatch.setattr(install, "_multiplies_bfloat16_natively", lambda: False)
    install_packing(plain)
    assert 2 * ROUNDED_TO not in rows_of(plain, dtype)


@has_native_bfloat16
def test_layers_that_run_again_are_not_rounded():
    """Their dropout would not know the number of fillers in the backward pass."""
    model = tiny("bert")
    enable_gradient_checkpointing(model)
    model.train()
    install_packing(model)
    assert 2 * ROUNDED_TO not in rows_of(model, torch.bfloat16)
