"""Autocast's casts of the weights, made once for all micro-batches of a step."""

from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from accelerate.utils import DistributedType
from exact_step import Training, text_problem
from tiny_text import tiny_task
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.training.step import casts_kept

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


def nothing_kept(accelerator):
    return nullcontext()


def training(folder, mode, keep_casts, **settings):
    task = tiny_task(folder, train=24, **settings)
    return Training(
        mode, text_problem(task), batch_size=4, micro_batches=MICRO_BATCHES, keep_casts=keep_casts
    )


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
@pytest.mark.parametrize(("keep_casts", "times"), [(casts_kept, 1), (nothing_kept, MICRO_BATCHES)])
def test_a_weight_is_cast_once_in_a_step(tiny_bert, mode, keep_casts, times):
    subject = training(tiny_bert, mode, keep_casts)
    with CastCounter(subject.model.parameters()) as casts:
        next(subject.steps())
    assert casts.counts
    assert set(casts.counts.values()) == {times}


@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}], ids=["plain", "again"])
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_gradients_and_weights_are_those_without_it_bit_for_bit(tiny_bert, mode, settings):
    kept = list(training(tiny_bert, mode, casts_kept, **settings).steps(epochs=2))
    plain = list(training(tiny_bert, mode, nothing_kept, **settings).steps(epochs=2))
    assert len(kept) == len(plain) == 4  # later ones would differ if an old cast stayed
    for one, other in zip(kept, plain, strict=True):
        assert torch.equal(one.gradient, other.gradient)
        assert one.outcome == other.outcome


def test_no_autocast_is_left_on_and_no_cast_stays(tiny_bert):
    subject = training(tiny_bert, "bf16", casts_kept)
    with casts_kept(subject.accelerator):
        assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


def test_sharded_weights_keep_no_whole_copies(tiny_bert, monkeypatch):
    subject = training(tiny_bert, "bf16", casts_kept)
    monkeypatch.setattr(subject.accelerator.state, "distributed_type", DistributedType.FSDP)
    assert isinstance(casts_kept(subject.accelerator), nullcontext)
