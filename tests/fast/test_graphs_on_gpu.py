"""CUDA graphs of real steps: the same weights as without them, and what refuses a capture."""

import gc
from functools import partial

import pytest
import torch
from test_graphs import TASKS, trained

from ampft.fast.graphed_update import GraphedUpdate
from ampft.fast.graphs import CudaRecorder
from ampft.fast.queue_timer import QueueTimer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("fresh_accelerate"),
]
CUDA = torch.device("cuda", 0)
# Kernels of a GPU may add in another order from run to run.
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-2}


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["texts", "words", "images"])
def test_a_training_by_graphs(tmp_path, monkeypatch, name, mode):
    task = TASKS[name](tmp_path)
    # In float32, no kernel that computes the whole row drops weights, and groups have no graph.
    options = {"mode": mode, "device": CUDA, "epochs": 4, "dropout": 0.1 * (mode != "fp32")}
    _, outcomes, state, graphs = trained(task, CudaRecorder(CUDA), **options)
    assert graphs.reason is None, graphs.reason
    assert graphs.lines == []
    assert graphs.replayed > 3
    assert graphs.update.replayed > 3
    monkeypatch.setattr("ampft.fast.graphs.MAX_GRAPHS", 0)
    monkeypatch.setattr(GraphedUpdate, "_may_capture", lambda self: False)
    plain = trained(task, CudaRecorder(CUDA), **options)
    assert [each.skipped for each in outcomes] == [each.skipped for each in plain[1]]
    for one, other in zip(outcomes, plain[1], strict=True):
        assert one.loss == pytest.approx(other.loss, rel=TOLERANCE[mode], abs=TOLERANCE[mode])
    # The generator has advanced alike, so that a resumed run draws the same masks.
    assert torch.equal(state, plain[2])


def test_the_times_of_queueing_and_computing_are_measured(tmp_path):
    timer = QueueTimer(partial(torch.cuda.Event, enable_timing=True))
    task = TASKS["texts"](tmp_path)
    options = {"mode": "bf16", "device": CUDA, "epochs": 4}
    *_, graphs = trained(task, CudaRecorder(CUDA), timer=timer, **options)
    choice = graphs.as_dict()["choice"]
    assert 0 < choice["queue_seconds"] < 1
    assert 0 < choice["device_seconds"] < 1
    assert (graphs.replayed > 0) == choice["is_launch_bound"]


def test_a_refused_capture_leaves_a_device_that_works(tmp_path, monkeypatch):
    """What the check before the first step does not see is refused by CUDA itself."""
    task = TASKS["texts"](tmp_path)
    original = type(task).loss

    def waits(self, model, micro_batch):
        loss = original(self, model, micro_batch)
        torch.cuda.synchronize()
        return loss

    monkeypatch.setattr(type(task), "loss", waits)
    before, recorder = private_pools(), CudaRecorder(CUDA)
    *_, graphs = trained(task, recorder, mode="bf16", device=CUDA, epochs=2)
    assert graphs.reason is not None
    assert graphs.replayed == 0
    del graphs
    assert private_pools() == before  # no memory is reserved for the capture
    monkeypatch.setattr(type(task), "loss", original)
    *_, graphs = trained(task, recorder, mode="bf16", device=CUDA, epochs=2)
    assert graphs.replayed > 0
    assert private_pools() != before


def private_pools():
    """Return the pools of graphs that hold memory."""
    gc.collect()
    torch.cuda.empty_cache()
    pools = {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}
    return pools - {(0, 0)}
