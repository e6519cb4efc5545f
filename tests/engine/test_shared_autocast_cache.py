"""Autocast casts each weight once for all micro-batches of a step."""

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from accelerate.utils import DistributedType
from exact_step import Training, flat_weights, text_problem
from tiny_text import tiny_task
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.engine.step import shared_autocast_cache

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

MICRO_BATCHES = 3


class CastCounter(TorchDispatchMode):
    """Counts how often each of the given tensors is cast to another dtype."""

    def __init__(self, tensors):
        super().__init__()
        self.counts = Counter()
        self._tensors = {id(tensor) for tensor in tensors}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and id(args[0]) in self._tensors:
            self.counts[id(args[0])] += 1
        return func(*args, **(kwargs or {}))


def no_cache(accelerator, model, step_batch):
    return nullcontext()


def training(
    folder, mode, autocast_cache=shared_autocast_cache, *, micro_batches=MICRO_BATCHES, **settings
):
    return Training(
        mode,
        text_problem(tiny_task(folder, train=24, **settings)),
        batch_size=12 // micro_batches,
        micro_batches=micro_batches,
        autocast_cache=autocast_cache,
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("autocast_cache", "times"), [(shared_autocast_cache, 1), (no_cache, MICRO_BATCHES)]
)
def test_a_weight_is_cast_once_in_a_step(tiny_bert, mode, autocast_cache, times):
    subject = training(tiny_bert, mode, autocast_cache)
    with CastCounter(subject.model.parameters()) as casts:
        next(subject.steps())
    assert casts.counts
    assert set(casts.counts.values()) == {times}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_gradients_and_weights_do_not_change_bit_for_bit(tiny_bert, mode):
    subjects = [
        training(tiny_bert, mode, autocast_cache)
        for autocast_cache in (shared_autocast_cache, no_cache)
    ]
    cached, plain = (list(subject.steps(epochs=2)) for subject in subjects)
    assert len(cached) == len(plain) == 4  # a stale cast would change later steps
    for one, other in zip(cached, plain, strict=True):
        assert torch.equal(one.gradient, other.gradient)
        assert one.outcome == other.outcome
    assert torch.equal(*(flat_weights(subject.model) for subject in subjects))


def casts_in_forward_passes(subject, number, *, within):
    """Return how often each weight is cast in `number` forward passes of the first micro-batch."""
    step_batch = next(subject.batches.epoch(0))
    micro_batch = step_batch.micro_batches[0]
    context = within(subject.accelerator, subject.model, step_batch)
    with CastCounter(subject.model.parameters()) as casts, context:
        for _ in range(number):
            assert not torch.is_autocast_enabled("cpu")
            subject.problem.loss(subject.model, micro_batch)
    return set(casts.counts.values())


def test_casts_are_freed_with_the_context(tiny_bert):
    subject = training(tiny_bert, "bf16")
    assert casts_in_forward_passes(subject, 2, within=shared_autocast_cache) == {1}
    assert casts_in_forward_passes(subject, 1, within=no_cache) == {1}  # the cache was empty


def test_a_single_micro_batch_caches_nothing(tiny_bert):
    subject = training(tiny_bert, "bf16", micro_batches=1)
    assert casts_in_forward_passes(subject, 2, within=shared_autocast_cache) == {2}


def test_checkpointed_models_cache_nothing(tiny_bert):
    subject = training(tiny_bert, "bf16", gradient_checkpointing=True)
    assert casts_in_forward_passes(subject, 2, within=shared_autocast_cache) == {2}


def test_sharded_weights_are_not_cached(tiny_bert, monkeypatch):
    subject = training(tiny_bert, "bf16")
    monkeypatch.setattr(subject.accelerator.state, "distributed_type", DistributedType.FSDP)
    assert casts_in_forward_passes(subject, 2, within=shared_autocast_cache) == {2}


def test_a_repeated_step_casts_again(tiny_bert):
    subject = training(tiny_bert, "bf16")
    step_batch = next(subject.batches.epoch(0))
    with CastCounter(subject.model.parameters()) as casts:
        for _ in range(2):
            with shared_autocast_cache(subject.accelerator, subject.model, step_batch):
                for micro_batch in step_batch:
                    subject.problem.loss(subject.model, micro_batch)
    assert set(casts.counts.values()) == {2}  # once per attempt
