"""Autocast's casts of the weights, made once for all micro-batches of a step."""

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from accelerate.utils import DistributedType
from exact_step import Training, flat_weights, text_problem
from tiny_text import tiny_task
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.training.step import shared_autocast_cache

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

MICRO_BATCHES = 3


class CastCounter(TorchDispatchMode):
    """Counts how often each of some tensors is cast to another dtype."""

    def __init__(self, tensors):
        super().__init__()
        self.counts = Counter()
        self._tensors = {id(tensor) for tensor in tensors}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and id(args[0]) in self._tensors:
            self.counts[id(args[0])] += 1
        return func(*args, **(kwargs or {}))


def nothing_kept(accelerator, model, step_batch):
    return nullcontext()


def training(
    folder, mode, keep_casts=shared_autocast_cache, *, micro_batches=MICRO_BATCHES, **settings
):
    return Training(
        mode,
        text_problem(tiny_task(folder, train=24, **settings)),
        batch_size=12 // micro_batches,
        micro_batches=micro_batches,
        keep_casts=keep_casts,
    )


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("keep_casts", "times"), [(shared_autocast_cache, 1), (nothing_kept, MICRO_BATCHES)]
)
def test_a_weight_is_cast_once_in_a_step(tiny_bert, mode, keep_casts, times):
    subject = training(tiny_bert, mode, keep_casts)
    with CastCounter(subject.model.parameters()) as casts:
        next(subject.steps())
    assert casts.counts
    assert set(casts.counts.values()) == {times}


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_gradients_and_weights_are_those_without_it_bit_for_bit(tiny_bert, mode):
    subjects = [
        training(tiny_bert, mode, keep_casts)
        for keep_casts in (shared_autocast_cache, nothing_kept)
    ]
    kept, plain = (list(subject.steps(epochs=2)) for subject in subjects)
    assert len(kept) == len(plain) == 4  # later ones would differ if an old cast stayed
    for one, other in zip(kept, plain, strict=True):
        assert torch.equal(one.gradient, other.gradient)
        assert one.outcome == other.outcome
    assert torch.equal(*(flat_weights(subject.model) for subject in subjects))


def forward_passes_cast(subject, number, *, within):
    """Return how often each weight is cast in some forward passes of the first micro-batch."""
    step_batch = next(subject.batches.epoch(0))
    micro_batch = step_batch.micro_batches[0]
    context = within(subject.accelerator, subject.model, step_batch)
    with CastCounter(subject.model.parameters()) as casts, context:
        for _ in range(number):
            assert not torch.is_autocast_enabled("cpu")
            subject.problem.loss(subject.model, micro_batch)
    return set(casts.counts.values())


def test_casts_go_with_the_context(tiny_bert):
    subject = training(tiny_bert, "bf16")
    assert forward_passes_cast(subject, 2, within=shared_autocast_cache) == {1}
    assert forward_passes_cast(subject, 1, within=nothing_kept) == {1}  # none was left


def test_a_single_micro_batch_keeps_nothing(tiny_bert):
    subject = training(tiny_bert, "bf16", micro_batches=1)
    assert forward_passes_cast(subject, 2, within=shared_autocast_cache) == {2}


def test_checkpointed_models_keep_nothing(tiny_bert):
    subject = training(tiny_bert, "bf16", gradient_checkpointing=True)
    assert forward_passes_cast(subject, 2, within=shared_autocast_cache) == {2}


def test_sharded_weights_keep_no_whole_copies(tiny_bert, monkeypatch):
    subject = training(tiny_bert, "bf16")
    monkeypatch.setattr(subject.accelerator.state, "distributed_type", DistributedType.FSDP)
    assert forward_passes_cast(subject, 2, within=shared_autocast_cache) == {2}


def test_a_repeated_step_casts_anew(tiny_bert):
    subject = training(tiny_bert, "bf16")
    step_batch = next(subject.batches.epoch(0))
    with CastCounter(subject.model.parameters()) as casts:
        for _ in range(2):
            with shared_autocast_cache(subject.accelerator, subject.model, step_batch):
                for micro_batch in step_batch:
                    subject.problem.loss(subject.model, micro_batch)
    assert set(casts.counts.values()) == {2}  # once for each attempt, not once for all
