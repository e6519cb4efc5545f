"""A step that runs out of memory is repeated in smaller micro-batches as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from exact_step import GRADIENT_TOLERANCE, flat_gradient, relative_error
from full_memory import EFFECTIVE, Full, examples, loss, network
from torch import Tensor, nn

from ampft.data.steps import StepBatch, StepBatches
from ampft.training.out_of_memory import (
    OutOfMemory,
    OutOfMemoryRetries,
    Snapshot,
    explain_out_of_memory,
    is_out_of_memory,
)


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
    before_step: Callable[[int, OutOfMemoryRetries], None] = lambda step, retries: None,
    repeats: bool = True,
) -> Trained:
    """Train two epochs of three steps as the recipe does, with SGD."""
    found = Trained()

    def compute(step_batch: StepBatch) -> list[Tensor]:
        losses = []
        for micro_batch in step_batch:
            part = loss(model, micro_batch) / step_batch.effective_weight
            part.backward()
            losses.append(part.detach())
        return losses

    batches = StepBatches(examples(), EFFECTIVE, seed=5)
    retries = OutOfMemoryRetries(model, batches, repeats, "Do something.", found.said.append)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(7)
    model.train()
    for epoch in range(2):
        for step_batch in retries.step_batches.epoch(epoch):
            before_step(len(found.cuts), retries)
            used, losses = retries.gradient(compute, step_batch)
            assert len(losses) == len(used.micro_batches)
            assert sorted(used.ids) == sorted(step_batch.effective_ids)
            found.gradients.append(flat_gradient(model))
            found.cuts.append(len(losses))
            optimizer.step()
            optimizer.zero_grad()
    found.buffers = [buffer.clone() for buffer in model.buffers()]
    return found


def failing_from(step: int, where: str) -> Trained:
    full = Full(EFFECTIVE, where)

    def shrink(now: int, retries: OutOfMemoryRetries) -> None:
        full.rows = 3 if now >= step else EFFECTIVE

    return trained(network(full), before_step=shrink)


def cut_from(step: int) -> Trained:
    """The twin: never out of memory, and cut into four from `step` on."""

    def cut(now: int, retries: OutOfMemoryRetries) -> None:
        if now == step:
            retries.step_batches = replace(retries.step_batches, micro_batches=4)

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
    assert [line[:35] for line in failed.said] == ["memory     ran out: epoch 1, step 2"] * 2
    assert failed.said[-1].endswith("in 4 micro-batches; later steps are cut likewise")


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
    assert not equal(failing_from(1, "backward"), cut_from(1))


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
    with pytest.raises(OutOfMemory, match=r"single example: .*--gradient_checkpointing"):
        trained(network(Full(0), norm=False))


def test_other_errors_pass():
    def wrong(step: int, retries: OutOfMemoryRetries) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trained(network(Full(3)), before_step=wrong)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_memory_that_runs_out_elsewhere_has_a_message_too():
    with pytest.raises(OutOfMemory, match="--per_device_eval_batch_size"), explain_out_of_memory():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
    with pytest.raises(RuntimeError, match="shapes"), explain_out_of_memory():
        raise RuntimeError("shapes cannot be multiplied")
