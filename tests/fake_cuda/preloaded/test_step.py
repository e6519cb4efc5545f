"""The optimizer step of every family and mode on a CUDA device that computes nothing."""

from itertools import product

import pytest
import torch
from fake_cuda import (
    CUDA,
    Copies,
    OperatorCounter,
    cuda_autocast,
    fake_mode,
    layout_of_host_mask,
    outputs,
    precision_of,
    to_cuda,
)
from representatives import TEXT_FAMILIES, full_except
from tiny_encoders import ENCODERS, right_padded, tiny, without_dropout
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError as DeviceMismatch

from ampft.engine import bfloat16_adamw
from ampft.engine.optimizer import OptimizerSettings, make_optimizer
from ampft.fast.packing.install import install_packing
from ampft.models.weights import cast_in_place
from ampft.precision.executed import ProductRecorder, precision_contradiction
from ampft.precision.modes import MODES
from ampft.precision.tf32 import float32_policy

# Families whose code is that of Llama or T5, as far as a device is concerned.
SAME_CODE = {"eurobert", "gemma", "gpt_neox", "mistral", "mt5", "phi", "qwen3"}
# transformers copies buckets of distances or their limits to the device in every forward pass.
WAITING = {"deberta-v3", "mpnet"}


def take_step(name, mode, *, dropout=True, token_buckets=None):
    """Return the precision and the recorded step of a packed model, during which nothing waits."""
    precision = precision_of(mode)
    model = tiny(name) if dropout else without_dropout(tiny(name))
    # With fillers, the layout is made on the device, which has no values for unequal lengths.
    batch = right_padded(model, [5, 17, 1, 17] if token_buckets is None else [17, 17])
    with fake_mode(), float32_policy(precision):
        layout = layout_of_host_mask(batch["attention_mask"], device=CUDA)
        cast_in_place(to_cuda(model), precision.storage_dtype)
        handle = install_packing(model, token_buckets=token_buckets)
        batch = {key: value.to(CUDA) for key, value in batch.items()}
        optimizer = make_optimizer(model, OptimizerSettings(learning_rate=1e-3), precision)
        recorder, copies = ProductRecorder(precision), Copies()
        with recorder, copies:
            dtype = precision.compute_dtype if precision.uses_autocast else torch.float32
            with cuda_autocast(dtype):
                logits = outputs(model, batch, packing=layout)
            logits.float().sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        executed = recorder.census(model, optimizer)
    assert handle.paths == {"packed": 1}
    assert logits.device == CUDA
    assert copies.waits == [] or name in WAITING
    return precision, executed


@pytest.fixture(autouse=True)
def _generator_on_the_cpu(monkeypatch):
    """A fake device has no generators, and a fake tensor draws nothing."""
    monkeypatch.setattr(bfloat16_adamw, "_generator", lambda *_: torch.Generator())


@pytest.mark.usefixtures("capability", "no_probe")
@pytest.mark.parametrize(
    ("name", "mode"),
    full_except(
        product(sorted(set(ENCODERS) - SAME_CODE), [mode for mode in MODES if mode != "fp8"]),
        [
            *(("bert", mode) for mode in MODES if mode != "fp8"),
            *product(TEXT_FAMILIES[1:], ("fp16", "bf16")),
        ],
    ),
)
def test_every_family_steps_in_every_mode(name, mode):
    precision, executed = take_step(name, mode)
    assert executed.rows
    assert precision_contradiction(precision, executed) is None


@pytest.mark.usefixtures("capability", "no_probe")
@pytest.mark.parametrize("name", ["bert", "deberta-v3"])
def test_fillers_are_made_on_the_device(name):
    _, executed = take_step(name, "bf16", token_buckets=64)
    assert executed.rows


@pytest.mark.usefixtures("capability", "no_probe")
@pytest.mark.parametrize("name", ["bert", "modernbert, mean"])
def test_flash_attention_is_recorded(name):
    _, executed = take_step(name, "bf16", dropout=False)
    attention = {row.inputs[0] for row in executed.rows if row.kind == "attention"}
    assert attention == {"bfloat16"}


@pytest.mark.parametrize("mode", ["bf16-true-kahan", "bf16-true-stochastic"])
def test_the_optimizer_needs_few_operators_and_no_copies_from_the_host(mode):
    precision = precision_of(mode)
    model = tiny("bert")
    with fake_mode():
        cast_in_place(to_cuda(model), torch.bfloat16)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer = make_optimizer(model, OptimizerSettings(learning_rate=1e-3), precision)
        optimizer.step()  # creates its state
        with OperatorCounter() as operators:
            optimizer.step()
    # Two groups, for weights with and without decay, whatever the number of tensors.
    assert len(list(model.parameters())) > 40
    assert operators.count < 80
    assert operators.devices == {CUDA}


def test_a_tensor_left_on_the_cpu_is_refused():
    with fake_mode() as mode:
        left, right = torch.empty(2, 2, device=CUDA), mode.from_tensor(torch.ones(2, 2))
        with pytest.raises(DeviceMismatch, match="cuda:0 and cpu"):
            left @ right
