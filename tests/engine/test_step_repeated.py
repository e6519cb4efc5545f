"""A step that runs out of memory is repeated in smaller micro-batches with the same result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from exact_step import GRADIENT_TOLERANCE, flat_gradient, relative_error
from full_memory import EFFECTIVE, Full, examples, loss, network
from torch import Tensor, nn

from ampft.data.step_batches import StepBatch, StepBatches
from ampft.engine.out_of_memory import (
    OutOfMemory,
    OutOfMemoryRetries,
    RandomAndBufferSnapshot,
    explain_out_of_memory,
    is_out_of_memory,
)

pytestmark = pytest.mark.usefixtures("quick_garbage_collection")


@dataclass
class Trained:
    """Results of a training: gradients and micro-batches per step, printed lines and buffers."""

    gradients: list[Tensor] = field(default_factory=list)
    micro_batches: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)


def trained(
    model: nn.Sequential,
    *,
    before_step: Callable[[int, OutOfMemoryRetries], None] = lambda step, retries: None,
    can_repeat: bool = True,
) -> Trained:
    """Train two epochs of three steps as in the recipe, with SGD."""
    result = Trained()

    def compute(step_batch: StepBatch) -> list[Tensor]:
        losses = []
        for micro_batch in step_batch:
            part = loss(model, micro_batch) / step_batch.effective_weight
            part.backward()
            losses.append(part.detach())
        return losses

    batches = StepBatches(examples(), EFFECTIVE, seed=5)
    retries = OutOfMemoryRetries(model, batches, can_repeat, "Do something.", result.lines.append)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(7)
    model.train()
    for epoch in range(2):
        for step_batch in retries.step_batches.epoch(epoch):
            before_step(len(result.micro_batches), retries)
            used, losses = retries.gradient(compute, step_batch)
            assert len(losses) == len(used.micro_batches)
            assert sorted(used.ids) == sorted(step_batch.effective_ids)
            result.gradients.append(flat_gradient(model))
            result.micro_batches.append(len(losses))
            optimizer.step()
            optimizer.zero_grad()
    result.buffers = [buffer.clone() for buffer in model.buffers()]
    return result


def failing_from(step: int, where: str) -> Trained:
    full = Full(EFFECTIVE, where)

    def shrink(now: int, retries: OutOfMemoryRetries) -> None:
        full.rows = 3 if now >= step else EFFECTIVE

    return trained(network(full), before_step=shrink)


def split_from(step: int) -> Trained:
    """Train without running out of memory, in four micro-batches from `step` on."""

    def split(now: int, retries: OutOfMemoryRetries) -> None:
        if now == step:
            retries.step_batches = replace(retries.step_batches, micro_batches=4)

    return trained(network(Full(EFFECTIVE)), before_step=split)


def equal(one: Trained, other: Trained) -> bool:
    pairs = zip(one.gradients + one.buffers, other.gradients + other.buffers, strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_repeated_step_equals_one_with_as_many_micro_batches_bit_for_bit(where):
    # Because of dropout and batch norm, random state and running statistics must be restored.
    failed, twin = failing_from(1, where), split_from(1)
    assert failed.micro_batches == twin.micro_batches
    assert failed.micro_batches[:2] == [1, 4]
    assert set(failed.micro_batches[1:]) == {4}
    assert equal(failed, twin)
    expected = "memory     ran out in epoch 1, step 2: this step"
    assert [line[: len(expected)] for line in failed.lines] == [expected] * 2
    assert failed.lines[-1].endswith("all later ones now use 4 micro-batches")


@pytest.mark.parametrize("omitted", ["random", "buffers", "gradients"])
def test_state_that_is_not_restored_changes_the_result(monkeypatch, omitted):
    # Negative control, one part of the state at a time.
    restore = RandomAndBufferSnapshot.restore

    def restore_partly(snapshot: RandomAndBufferSnapshot) -> None:
        if omitted == "random":
            snapshot._random = torch.get_rng_state()
        elif omitted == "buffers":
            snapshot._buffers = []
        gradients = [p.grad for p in snapshot._model.parameters()]
        restore(snapshot)
        if omitted == "gradients":
            for parameter, gradient in zip(snapshot._model.parameters(), gradients, strict=True):
                parameter.grad = gradient

    monkeypatch.setattr(RandomAndBufferSnapshot, "restore", restore_partly)
    assert not equal(failing_from(1, "backward"), split_from(1))


def test_without_dropout_the_gradient_equals_that_of_the_unsplit_step():
    failed = trained(network(Full(3), dropout=0.0, norm=False))
    unsplit = trained(network(Full(EFFECTIVE), dropout=0.0, norm=False))
    assert failed.micro_batches[0] == 4
    assert unsplit.micro_batches == [1] * 6
    for actual, expected in zip(failed.gradients, unsplit.gradients, strict=True):
        assert relative_error(actual, expected) <= GRADIENT_TOLERANCE["fp32"]


def test_the_error_of_a_step_that_may_not_be_repeated_gives_advice():
    with pytest.raises(OutOfMemory, match=r"of memory: CUDA out of memory\. Do something\."):
        trained(network(Full(3)), can_repeat=False)


def test_a_single_example_that_does_not_fit_ends_the_run():
    with pytest.raises(OutOfMemory, match=r"single example: .*--gradient_checkpointing"):
        trained(network(Full(0), norm=False))


def test_other_errors_are_not_caught():
    def fail(step: int, retries: OutOfMemoryRetries) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trained(network(Full(3)), before_step=fail)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize(
    "message",
    [
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
        "FIND was unable to find an engine to execute this computation after trying 8 plans.",
    ],
)
def test_a_convolution_without_room_for_its_workspace_is_out_of_memory(message):
    assert is_out_of_memory(RuntimeError(message))


def test_out_of_memory_errors_outside_of_steps_have_a_message_too():
    with pytest.raises(OutOfMemory, match="--per_device_eval_batch_size"), explain_out_of_memory():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
    with pytest.raises(RuntimeError, match="shapes"), explain_out_of_memory():
        raise RuntimeError("shapes cannot be multiplied")
