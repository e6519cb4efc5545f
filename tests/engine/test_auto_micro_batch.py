"""The search for the largest micro-batches that fit, which leaves the model unchanged."""

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

from ampft.data.step_batches import MicroBatch, StepBatches
from ampft.engine.out_of_memory import MicroBatchTrial, fit_micro_batches
from ampft.errors import InputError

PLENTY = 2**40  # bytes

pytestmark = pytest.mark.usefixtures("quick_garbage_collection")


@pytest.mark.parametrize(("rows", "expected"), [(12, 1), (11, 2), (5, 4), (2, 8), (1, 12)])
@pytest.mark.parametrize("budget", [None, PLENTY])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_fewest_micro_batches_that_fit_are_found(rows, expected, budget, where):
    model = network(Full(rows, where), norm=False)
    batches = StepBatches(examples(), EFFECTIVE)
    assert MicroBatchTrial(model, loss, batches).fewest_micro_batches(budget) == expected


@pytest.mark.parametrize(("rows", "budget"), [(0, None), (0, PLENTY), (12, 0)])
def test_nothing_fits(rows, budget):
    model = network(Full(rows), norm=False)
    batches = StepBatches(examples(), EFFECTIVE)
    assert MicroBatchTrial(model, loss, batches).fewest_micro_batches(budget) is None


@pytest.mark.parametrize("averages_weights", [False, True])
def test_the_average_of_the_weights_needs_memory_too(averages_weights):
    model = network(Full(12), norm=False)
    kept = 3 * sum(parameter.nbytes for parameter in model.parameters())
    batches = StepBatches(examples(), EFFECTIVE)
    trial = MicroBatchTrial(model, loss, batches, averages_weights=averages_weights)
    found = trial.fewest_micro_batches(kept)
    assert (found is None) == averages_weights


@pytest.mark.parametrize("budget", [None, PLENTY])
def test_the_search_restores_everything(budget):
    def drawing_loss(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        np.random.random()  # noqa: NPY002 # as SpecAugment of transformers does
        return loss(model, micro_batch)

    model = network(Full(5), norm=budget is None).eval()  # batch norm rejects a single example
    torch.manual_seed(1)
    random, buffers = torch.get_rng_state(), [buffer.clone() for buffer in model.buffers()]
    numpy_random = np.random.get_state()  # noqa: NPY002
    batches = StepBatches(examples(), EFFECTIVE)
    assert MicroBatchTrial(model, drawing_loss, batches).fewest_micro_batches(budget) in (4, 8)
    assert torch.equal(torch.get_rng_state(), random)
    assert str(np.random.get_state()) == str(numpy_random)  # noqa: NPY002
    assert all(map(torch.equal, model.buffers(), buffers))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module.training for module in model.modules())


def accelerator(**changes: object) -> SimpleNamespace:
    """The attributes of an Accelerator that `fit_micro_batches` uses, for one process on a CPU."""
    parts = {"distributed_type": DistributedType.NO, "device": torch.device("cpu")}
    calls = {"num_processes": 1, "wait_for_everyone": lambda: None, "gather": lambda local: local}
    return SimpleNamespace(**(parts | calls | changes))


def test_only_the_number_of_micro_batches_changes():
    batches = StepBatches(examples(), EFFECTIVE, micro_batches=3, seed=8)
    result = fit_micro_batches(accelerator(), network(Full(7), norm=False), loss, batches)
    assert result == replace(batches, micro_batches=2)


def test_too_little_memory_is_refused_before_the_training(monkeypatch):
    monkeypatch.setattr("ampft.engine.out_of_memory.available_memory_bytes", lambda processes: 100)
    with pytest.raises(InputError, match=r"single examples do not fit.*--gradient_checkpointing"):
        fit_micro_batches(
            accelerator(), network(Full(12)), loss, StepBatches(examples(), EFFECTIVE)
        )


def test_sharded_weights_are_refused():
    sharded = accelerator(distributed_type=DistributedType.FSDP)
    with pytest.raises(
        InputError, match=r"FSDP, which shards .* set --gradient_accumulation_steps"
    ):
        fit_micro_batches(sharded, network(Full(12)), loss, StepBatches(examples(), EFFECTIVE))


@dataclass(frozen=True)
class Lengths:
    """Examples with given lengths, whose inputs are their ids."""

    lengths: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        return np.ones(len(self.lengths))

    def collate(self, ids: np.ndarray) -> dict[str, Tensor]:
        return {"x": torch.from_numpy(ids)}


@pytest.mark.parametrize("padded", [False, True])
def test_the_tried_step_costs_as_much_as_any_step(padded):
    lengths = np.random.default_rng(0).integers(1, 60, 101)
    batches = StepBatches(Lengths(lengths), 16, padded=padded)
    for number in (1, 2, 3, 8, 16):
        largest, tried = batches.largest_cost(number), batches.costliest(number)
        assert max(lengths[part.ids].max() for part in tried) == lengths.max()
        assert max(_cost(lengths[part.ids], padded) for part in tried) == largest
        for step_batch in replace(batches, micro_batches=number).epoch(0):
            assert all(_cost(lengths[part.ids], padded) <= largest for part in step_batch)


def _cost(lengths: np.ndarray, padded: bool) -> int:
    return len(lengths) * lengths.max() if padded else lengths.sum()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_search_reaches_the_real_limit():
    wide = nn.Sequential(nn.Linear(8, 2**20), nn.ReLU(), nn.Linear(2**20, 4)).cuda()
    total = torch.cuda.get_device_properties(0).total_memory
    # Weights, gradients, moments and the workspace of cuBLAS take up to 316 MiB of it.
    torch.cuda.set_per_process_memory_fraction(2**29 / total)

    def on_device(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        logits = model(micro_batch.inputs["x"].cuda())
        return cross_entropy(logits, micro_batch.inputs["labels"].cuda(), reduction="sum")

    batches = StepBatches(examples(), EXAMPLES)
    number = MicroBatchTrial(wide, on_device, batches).fewest_micro_batches(None)
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert number is not None
    assert 1 < number < EXAMPLES
