"""The optimizer step of every family and mode on a CUDA device that computes nothing."""

import dataclasses

import pytest
import torch
from fake_cuda import CUDA, cuda_autocast, fake_mode, to_cuda
from tiny_encoders import ENCODERS, right_padded, tiny, without_dropout
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError as DeviceMismatch

import ampft.precision.executed as executed_module
from ampft.models.packing.install import install_packing
from ampft.models.packing.layout import pack_layout
from ampft.models.weights import cast_in_place
from ampft.precision.executed import ProductRecorder, contradiction
from ampft.precision.modes import MODES, TABLE
from ampft.precision.resolve import Precision
from ampft.training.optimizer import OptimizerSettings, make_optimizer

# fp8 replaces layers by those of torchao.
UNTESTED = ("fp8", "bf16-true-kahan", "bf16-true-stochastic")


def precision_of(mode):
    row = TABLE[mode]
    storage, compute = getattr(torch, row.storage), getattr(torch, row.compute)
    return Precision(mode, "cuda", storage, compute, row.needs_scaler, "native", "fake")


def take_step(name, mode, *, dropout=True):
    """Return the recorded step of a packed model, its logits and its loss scale."""
    precision = precision_of(mode)
    model = tiny(name) if dropout else without_dropout(tiny(name))
    batch = right_padded(model, [5, 17, 1, 17])
    layout = pack_layout(batch["attention_mask"])
    with fake_mode():
        cast_in_place(to_cuda(model), precision.storage_dtype)
        handle = install_packing(model)
        batch = {key: value.to(CUDA) for key, value in batch.items()}
        fields = {key: getattr(layout, key).to(CUDA) for key in ("tokens", "columns", "first")}
        layout = dataclasses.replace(layout, **fields)
        optimizer = make_optimizer(model, OptimizerSettings(learning_rate=1e-3), precision)
        recorder = ProductRecorder(precision)
        with recorder:
            dtype = precision.compute_dtype if precision.uses_autocast else torch.float32
            with cuda_autocast(dtype):
                logits = model(**batch, packing=layout).logits
            logits.float().sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        executed = recorder.census(model, optimizer)
    assert handle.paths == {"packed": 1}
    assert logits.device == CUDA
    return precision, executed


@pytest.fixture
def _no_probe(monkeypatch):
    """Without the probe of TF32, which reads a result that a fake device does not have."""
    monkeypatch.setattr(executed_module, "float32_product_loses_bits", lambda device: None)


@pytest.mark.usefixtures("capability", "_no_probe")
@pytest.mark.parametrize("mode", [m for m in MODES if m not in UNTESTED])
@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_every_family_steps_in_every_mode(name, mode):
    precision, executed = take_step(name, mode)
    assert executed.rows
    assert contradiction(precision, executed) is None


@pytest.mark.usefixtures("capability", "_no_probe")
@pytest.mark.parametrize("name", ["bert", "modernbert, mean"])
def test_flash_attention_is_recorded(name):
    _, executed = take_step(name, "bf16", dropout=False)
    attention = {row.inputs[0] for row in executed.rows if row.kind == "attention"}
    assert attention == {"bfloat16"}


def test_a_tensor_left_on_the_cpu_is_refused():
    with fake_mode() as mode:
        left, right = torch.empty(2, 2, device=CUDA), mode.from_tensor(torch.ones(2, 2))
        with pytest.raises(DeviceMismatch, match="cuda:0 and cpu"):
            left @ right
