"""The largest micro-batches that fit: found by trying, without a trace, by all processes alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate.utils import DistributedType
from full_memory import EFFECTIVE, EXAMPLES, Full, examples, loss, network
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ampft.data.steps import MicroBatch, StepBatches
from ampft.errors import InputError
from ampft.training.auto_micro_batch import fewest_micro_batches, fit_micro_batches

PLENTY = 2**40  # bytes


@pytest.mark.parametrize(("rows", "expected"), [(12, 1), (11, 2), (5, 4), (2, 8), (1, 12)])
@pytest.mark.parametrize("room", [None, PLENTY])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_fewest_micro_batches_that_fit_are_found(rows, expected, room, where):
    model = network(Full(rows, where), norm=False)
    found = fewest_micro_batches(model, loss, StepBatches(examples(), EFFECTIVE), room=room)
    assert found == expected


@pytest.mark.parametrize(("rows", "room"), [(0, None), (0, PLENTY), (12, 0)])
def test_nothing_fits(rows, room):
    model = network(Full(rows), norm=False)
    assert fewest_micro_batches(model, loss, StepBatches(examples(), EFFECTIVE), room=room) is None


@pytest.mark.parametrize("room", [None, PLENTY])
def test_the_search_leaves_no_trace(room):
    model = network(Full(5), norm=room is None).eval()  # batch norm refuses a single example
    torch.manual_seed(1)
    random, buffers = torch.get_rng_state(), [buffer.clone() for buffer in model.buffers()]
    batches = StepBatches(examples(), EFFECTIVE)
    assert fewest_micro_batches(model, loss, batches, room=room) in (4, 8)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(map(torch.equal, model.buffers(), buffers))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module.training for module in model.modules())


def accelerator(**more: object) -> SimpleNamespace:
    """What `fit_micro_batches` asks of one process on a CPU."""
    parts = {"distributed_type": DistributedType.NO, "device": torch.device("cpu")}
    calls = {"num_processes": 1, "wait_for_everyone": lambda: None, "gather": lambda own: own}
    return SimpleNamespace(**(parts | calls | more))


def test_the_step_batches_stay_in_all_but_their_cut():
    batches = StepBatches(examples(), EFFECTIVE, micro_batches=3, seed=8)
    found = fit_micro_batches(accelerator(), network(Full(7), norm=False), loss, batches)
    assert found == replace(batches, micro_batches=2)


def test_too_little_memory_is_refused_before_the_training(monkeypatch):
    monkeypatch.setattr("ampft.training.auto_micro_batch.headroom", lambda processes: 100)
    with pytest.raises(InputError, match=r"not even single examples fit.*--gradient_checkpointing"):
        fit_micro_batches(
            accelerator(), network(Full(12)), loss, StepBatches(examples(), EFFECTIVE)
        )


def test_sharded_weights_are_refused():
    sharded = accelerator(distributed_type=DistributedType.FSDP)
    with pytest.raises(InputError, match=r"FSDP shards .* --gradient_accumulation_steps by hand"):
        fit_micro_batches(sharded, network(Full(12)), loss, StepBatches(examples(), EFFECTIVE))


@dataclass(frozen=True)
class Lengths:
    """Examples that have lengths and are their ids."""

    lengths: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        return np.ones(len(self.lengths))

    def collate(self, ids: np.ndarray) -> dict[str, Tensor]:
        return {"x": torch.from_numpy(ids)}


@pytest.mark.parametrize("padded", [False, True])
def test_what_is_tried_costs_as_much_as_any_step(padded):
    lengths = np.random.default_rng(0).integers(1, 60, 101)
    batches = StepBatches(Lengths(lengths), 16, padded=padded)
    for cut in (1, 2, 3, 8, 16):
        most, tried = batches.largest_cost(cut), batches.costliest(cut)
        assert max(lengths[part.ids].max() for part in tried) == lengths.max()
        assert max(_cost(lengths[part.ids], padded) for part in tried) == most
        for step_batch in replace(batches, micro_batches=cut).epoch(0):
            assert all(_cost(lengths[part.ids], padded) <= most for part in step_batch)


def _cost(lengths: np.ndarray, padded: bool) -> int:
    return len(lengths) * lengths.max() if padded else lengths.sum()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_search_meets_the_real_limit():
    wide = nn.Sequential(nn.Linear(8, 2**20), nn.ReLU(), nn.Linear(2**20, 4)).cuda()
    most = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(2**28 / most)

    def on_device(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        logits = model(micro_batch.inputs["x"].cuda())
        return cross_entropy(logits, micro_batch.inputs["labels"].cuda(), reduction="sum")

    batches = StepBatches(examples(), EXAMPLES)
    found = fewest_micro_batches(wide, on_device, batches, room=None)
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert found is not None
    assert 1 < found < EXAMPLES
