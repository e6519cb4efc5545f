"""The loss of a micro-batch on a CUDA device: the host waits for nothing."""

import numpy as np
import pytest
import torch
from fake_cuda import Copies, fake_mode, layout_of_host_mask, on_cuda, to_cuda
from tiny_text import save_tiny_bert, tiny_task

from ampft.data.step_batches import MicroBatch
from ampft.engine.step import _skipped_on_device
from ampft.fast.packing import install


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
    assert copies.waits == []


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_layout_of_the_collating_thread_needs_no_pinning(monkeypatch, tmp_path, is_prepared):
    monkeypatch.setattr(install, "pack_layout", layout_of_host_mask)
    task = tiny_task(save_tiny_bert(tmp_path), train=8)
    model, pinned = task.load_model().model, []
    ids = np.arange(8)
    batch = MicroBatch(ids, task.examples("train").collate(ids), counted=True, is_last=True)
    with fake_mode(), Copies() as copies:
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(1) or tensor)
        if is_prepared:
            batch = install.with_layout(to_cuda(model), batch)
            assert pinned.pop()
        task.loss(to_cuda(model), batch).backward()
    assert bool(pinned) != is_prepared
    assert copies.waits == []


def test_no_scalar_is_read_before_the_update():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([weight], fused=True)
    with fake_mode(), Copies() as copies:
        optimizer.param_groups[0]["params"] = [parameter := torch.nn.Parameter(on_cuda(weight))]
        parameter.grad = on_cuda(weight)
        loss = parameter.grad.sum()
        with _skipped_on_device(optimizer, loss, parameter.grad.norm()):
            optimizer.step()
    assert copies.to_host == []
    assert not hasattr(optimizer, "found_inf")
