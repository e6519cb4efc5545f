"""A step that runs out of memory is repeated in smaller micro-batches as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from exact_step import GRADIENT_TOLERANCE, flat_gradient, relative_error
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ampft.data.steps import MicroBatch, StepBatches
from ampft.data.tensors import TensorExamples
from ampft.training.attempts import Attempts, OutOfMemory, Snapshot, is_out_of_memory
from ampft.training.fitting import fewest_micro_batches

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

EXAMPLES, EFFECTIVE = 36, 12
PLENTY = 2**40


class Full(nn.Module):
    """Stands for a device on which only so many rows fit, in the forward or backward pass."""

    def __init__(self, rows: int, where: str = "forward") -> None:
        super().__init__()
        self.rows, self.where = rows, where

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.rows and self.where == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0")
        if len(x) > self.rows and x.requires_grad:
            x.register_hook(_raise)
        return x


def _raise(gradient: Tensor) -> Tensor:
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")


def network(full: Full, *, dropout: float = 0.5, norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.BatchNorm1d(16, track_running_stats=True) if norm else nn.Tanh(),
        full,
        nn.Dropout(dropout),
        nn.Linear(16, 4),
    )


def examples() -> TensorExamples:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(4, (EXAMPLES,), generator=generator)
    return TensorExamples({"x": torch.randn(EXAMPLES, 8, generator=generator), "labels": labels})


def loss(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    logits = model(micro_batch.inputs["x"])
    return cross_entropy(logits, micro_batch.inputs["labels"], reduction="sum")


@dataclass
class Trained:
    """What a training left: gradients and cuts per step, buffers, lines for the user."""

    gradients: list[Tensor] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)


def trained(
    model: nn.Sequential,
    *,
    before_step: Callable[[int, Attempts], None] = lambda step, attempts: None,
    repeats: bool = True,
) -> Trained:
    """Train two epochs of three steps as the recipe does, with SGD."""
    found = Trained()
    batches = StepBatches(examples(), EFFECTIVE, seed=5)
    attempts = Attempts(model, batches, repeats, "Do something.", found.said.append)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(7)
    model.train()
    for epoch in range(2):
        for step_batch in attempts.step_batches.epoch(epoch):
            before_step(len(found.cuts), attempts)
            attempt = attempts.of(step_batch)
            for micro_batch in attempt:
                with attempt:
                    part = loss(model, micro_batch) / step_batch.effective_weight
                    part.backward()
                    attempt.losses.append(part.detach())
            assert len(attempt.losses) == len(attempt.step_batch.micro_batches)
            assert sorted(attempt.step_batch.ids) == sorted(step_batch.effective_ids)
            found.gradients.append(flat_gradient(model))
            found.cuts.append(len(attempt.losses))
            optimizer.step()
            optimizer.zero_grad()
    found.buffers = [buffer.clone() for buffer in model.buffers()]
    return found


def failing_from(step: int, where: str) -> Trained:
    full = Full(EFFECTIVE, where)

    def shrink(now: int, attempts: Attempts) -> None:
        full.rows = 3 if now >= step else EFFECTIVE

    return trained(network(full), before_step=shrink)


def cut_from(step: int) -> Trained:
    """The twin: never out of memory, and cut into four from `step` on."""

    def cut(now: int, attempts: Attempts) -> None:
        if now == step:
            attempts.step_batches = replace(attempts.step_batches, micro_batches=4)

    return trained(network(Full(EFFECTIVE)), before_step=cut)


def equal(one: Trained, other: Trained) -> bool:
    pairs = zip(one.gradients + one.buffers, other.gradients + other.buffers, strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_repeated_step_is_bit_for_bit_that_of_the_same_cut(where):
    # Dropout and batch norm: random state and running statistics have to be put back.
    failed, twin = failing_from(1, where), cut_from(1)
    assert failed.cuts == twin.cuts
    assert failed.cuts[:2] == [1, 4]
    assert set(failed.cuts[1:]) == {4}
    assert equal(failed, twin)
    assert [line.split(" is ")[0] for line in failed.said] == ["ran out: epoch 1, step 2"] * 2
    assert failed.said[-1].endswith("in 4 micro-batches, and so are the steps that follow")


@pytest.mark.parametrize("forgotten", ["random", "buffers", "gradients"])
def test_what_is_not_put_back_would_show(monkeypatch, forgotten):
    # Negative control, one part of the state at a time.
    whole = Snapshot.restore

    def partly(snapshot: Snapshot) -> None:
        if forgotten == "random":
            snapshot._random = torch.get_rng_state()
        elif forgotten == "buffers":
            snapshot._buffers = []
        gradients = [p.grad for p in snapshot._model.parameters()]
        whole(snapshot)
        if forgotten == "gradients":
            for parameter, gradient in zip(snapshot._model.parameters(), gradients, strict=True):
                parameter.grad = gradient

    monkeypatch.setattr(Snapshot, "restore", partly)
    assert not equal(failing_from(1, "backward"), cut_from(1)) or forgotten == "random"
    if forgotten == "random":
        full = Full(EFFECTIVE, "backward")  # the masks of the failed pass were drawn before it
        full.rows = 3
        assert not equal(trained(network(full)), cut_from(0))


def test_without_dropout_the_gradient_is_that_of_the_whole_step():
    failed = trained(network(Full(3), dropout=0.0, norm=False))
    whole = trained(network(Full(EFFECTIVE), dropout=0.0, norm=False))
    assert failed.cuts[0] == 4
    assert whole.cuts == [1] * 6
    for found, expected in zip(failed.gradients, whole.gradients, strict=True):
        assert relative_error(found, expected) <= GRADIENT_TOLERANCE["fp32"]


def test_a_step_that_may_not_be_repeated_says_what_to_do():
    with pytest.raises(OutOfMemory, match=r"ran out: CUDA out of memory\. Do something\."):
        trained(network(Full(3)), repeats=False)


def test_a_single_example_that_does_not_fit_ends_the_run():
    with pytest.raises(OutOfMemory, match="single example: .*--gradient_checkpointing"):
        trained(network(Full(0), norm=False))


def test_other_errors_pass():
    def wrong(step: int, attempts: Attempts) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trained(network(Full(3)), before_step=wrong)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


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
