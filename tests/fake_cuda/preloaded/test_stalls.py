"""The loss of a micro-batch on a CUDA device: the host waits for nothing."""

import dataclasses

import numpy as np
import pytest
import torch
from fake_cuda import CUDA, fake_mode, on_cuda, to_cuda
from tiny_text import save_tiny_bert, tiny_task
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.data.steps import MicroBatch
from ampft.models.packing import install
from ampft.training.step import _skipped_on_device


class Copies(TorchDispatchMode):
    """Records the operators that copy between the host and the device."""

    def __init__(self):
        super().__init__()
        self.to_device, self.to_host = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.ops.aten._to_copy.default and args[0].device != result.device:
            to_device = result.device == CUDA
            (self.to_device if to_device else self.to_host).append(kwargs)
        return result


def layout_of_host_mask(mask, *, device=None):
    """`pack_layout`, which reads values, so that it must not see a fake tensor."""
    assert not isinstance(mask, FakeTensor), "the mask was read back from the device"
    with unset_fake_temporarily():
        # Without groups of unequal lengths, whose indices depend on values too.
        layout = pack_layout(mask, group_cost=0.0)
    fields = ("tokens", "columns", "first")
    moved = {name: getattr(layout, name).to(device, non_blocking=True) for name in fields}
    return dataclasses.replace(layout, **moved)


pack_layout = install.pack_layout


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize("class_weights", [None, "balanced"])
def test_a_packed_micro_batch_is_never_waited_for(monkeypatch, tmp_path, class_weights):
    monkeypatch.setattr(install, "pack_layout", layout_of_host_mask)
    task = tiny_task(save_tiny_bert(tmp_path), train=8, class_weights=class_weights)
    model = task.load_model().model
    ids = np.arange(8)
    batch = MicroBatch(ids, task.examples("train").collate(ids), counted=True, is_last=True)
    with fake_mode(), Copies() as copies:
        task.loss(to_cuda(model), batch).backward()
    assert copies.to_device
    assert all(copy["non_blocking"] for copy in copies.to_device)
    assert copies.to_host == []


def test_no_scalar_is_read_before_the_update():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([weight], fused=True)
    with fake_mode(), Copies() as copies:
        optimizer.param_groups[0]["params"] = [parameter := torch.nn.Parameter(on_cuda(weight))]
        parameter.grad = on_cuda(weight)
        loss = parameter.grad.sum()
        with _skipped_on_device(optimizer, loss, parameter.grad.norm()) as skips:
            assert skips
            optimizer.step()
    assert copies.to_host == []
    assert not hasattr(optimizer, "found_inf")
