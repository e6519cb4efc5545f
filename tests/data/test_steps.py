"""Which examples make an optimizer step, in which order, on which process."""

import itertools
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampft.data.step_batches import StepBatches, TensorExamples, balanced_micro_batches
from ampft.errors import InputError
from ampft.tasks.loss import summed_cross_entropy


@dataclass(frozen=True)
class NumberedExamples:
    """Examples whose only input is their id, of unequal lengths and weights."""

    lengths: np.ndarray
    weights: np.ndarray

    def collate(self, ids):
        return {"labels": torch.from_numpy(ids)}


def numbered(n):
    rng = np.random.default_rng(n)
    return NumberedExamples(rng.integers(1, 129, n), rng.choice([0.5, 1.0, 3.0], n))


def effective_batches(batches, epoch=0):
    return [step_batch.effective_ids.tolist() for step_batch in batches.epoch(epoch)]


def contents(step_batch):
    """Everything on which a step depends; `wait_seconds` is a measurement."""
    micro_batches = [
        (m.ids.tolist(), m.counted, m.is_last, m.inputs["labels"].tolist()) for m in step_batch
    ]
    weight, length = step_batch.effective_weight, step_batch.effective_length
    return (step_batch.epoch, step_batch.step, step_batch.effective_ids.tolist(), weight, length,
            micro_batches)  # fmt: skip


sizes = {
    "n": st.integers(1, 60),
    "effective": st.integers(1, 24),
    "world_size": st.integers(1, 5),
    "micro_batches": st.integers(1, 5),
    "padded": st.booleans(),
    "seed": st.integers(0, 2**31),
    "epoch": st.integers(0, 3),
}


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(**sizes)
def test_the_sequence_depends_only_on_seed_epoch_and_effective_size(
    n, effective, world_size, micro_batches, padded, seed, epoch
):
    examples = numbered(n)
    alone = StepBatches(examples, effective, seed=seed)
    expected = effective_batches(alone, epoch)
    assert sorted(itertools.chain.from_iterable(expected)) == list(range(n))
    assert [len(ids) for ids in expected[:-1]] == [effective] * (len(expected) - 1)
    ranks = [
        list(
            StepBatches(
                examples,
                effective,
                micro_batches=micro_batches,
                seed=seed,
                rank=rank,
                world_size=world_size,
                padded=padded,
            ).epoch(epoch)
        )
        for rank in range(world_size)
    ]
    for ids, *shares in zip(expected, *ranks, strict=True):
        assert all(share.effective_ids.tolist() == ids for share in shares)
        assert sorted(np.concatenate([share.ids for share in shares])) == sorted(ids)
        assert all(share.effective_weight == examples.weights[ids].sum() for share in shares)
        assert all(share.effective_length == examples.lengths[ids].sum() for share in shares)
        assert len({len(share.micro_batches) for share in shares}) == 1
        assert max(len(share.ids) for share in shares) - min(len(s.ids) for s in shares) <= 1
        for share in shares:
            check_micro_batches(share, micro_batches)


def check_micro_batches(share, limit):
    """Check that each has an example for the model, and that only the last synchronizes."""
    assert 1 <= len(share.micro_batches) <= limit
    assert [micro.is_last for micro in share][:-1] == [False] * (len(share.micro_batches) - 1)
    assert share.micro_batches[-1].is_last
    for micro_batch in share:
        assert len(micro_batch.ids) >= 1
        assert micro_batch.inputs["labels"].tolist() == micro_batch.ids.tolist()
        assert micro_batch.counted or len(micro_batch.ids) == 1


def test_seed_epoch_and_size_each_change_the_sequence():
    # Negative control: the sequences above are not constant.
    batches = StepBatches(numbered(50), 8, seed=1)
    expected = effective_batches(batches)
    assert effective_batches(batches) == expected
    assert effective_batches(batches, epoch=1) != expected
    assert effective_batches(replace(batches, seed=2)) != expected
    assert effective_batches(replace(batches, effective_batch_size=9)) != expected


def test_a_process_without_examples_gets_a_dummy():
    ranks = [StepBatches(numbered(9), 8, micro_batches=2, rank=r, world_size=2) for r in (0, 1)]
    with_example, without = ([*batches.epoch(0)][-1] for batches in ranks)
    assert with_example.ids.tolist() == with_example.effective_ids.tolist()
    (dummy,) = without.micro_batches
    assert (dummy.counted, dummy.is_last, without.ids.tolist()) == (False, True, [])
    assert dummy.ids.tolist() == with_example.ids.tolist()


@pytest.mark.parametrize("start", [0, 1, 4, 6, 7])
def test_an_epoch_continues_from_any_step(start):
    batches = StepBatches(numbered(50), 8, micro_batches=3, seed=4)
    whole = [contents(step_batch) for step_batch in batches.epoch(2)]
    assert len(whole) == len(batches) == 7
    assert [contents(step_batch) for step_batch in batches.epoch(2, start=start)] == whole[start:]
    some = [contents(step_batch) for step_batch in batches.epoch(2, start=start, stop=5)]
    assert some == whole[start:5]
    assert [batches.effective_ids(2, step).tolist() for step in range(7)] == [w[2] for w in whole]


@pytest.mark.filterwarnings(
    # Workers are forked, which Python 3.12 and later warn of in a process with threads.
    "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
)
def test_workers_change_nothing():
    batches = StepBatches(numbered(50), 8, micro_batches=3, seed=4)
    ahead = replace(batches, num_workers=2)
    found = [contents(step_batch) for step_batch in ahead.epoch(1, start=1)]
    assert found == [contents(step_batch) for step_batch in batches.epoch(1, start=1)]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
)
def test_the_loader_does_not_change_the_random_numbers_of_dropout(num_workers):
    batches = StepBatches(numbered(10), 4, num_workers=num_workers)
    before = torch.get_rng_state()
    list(batches.epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=40),
    k=st.integers(1, 8),
    padded=st.booleans(),
)
def test_balanced_micro_batches_partition(lengths, k, padded):
    parts = balanced_micro_batches(np.array(lengths), k, padded=padded)
    assert len(parts) == min(k, len(lengths))
    assert all(len(part) for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))


def test_tensor_examples_weigh_one_and_cost_the_same():
    examples = TensorExamples({"x": torch.arange(12.0).reshape(6, 2), "labels": torch.arange(6)})
    assert examples.weights.tolist() == [1.0] * 6
    assert examples.lengths.tolist() == [1] * 6
    rows = examples.collate(np.array([4, 1]))
    assert rows["x"].tolist() == [[8.0, 9.0], [2.0, 3.0]]
    assert rows["labels"].tolist() == [4, 1]


def test_class_weights_of_tensor_examples_count_in_the_effective_weight():
    labels, class_weights = torch.arange(12) % 3, torch.tensor([1.0, 2.5, 0.5])
    examples = TensorExamples(
        {"x": torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), "labels": labels},
        example_weights=class_weights[labels],
    )
    model = torch.nn.Linear(4, 3)
    for step_batch in StepBatches(examples, effective_batch_size=6, micro_batches=4).epoch(0):
        ids = step_batch.effective_ids
        assert step_batch.effective_weight == pytest.approx(float(class_weights[labels[ids]].sum()))
        model.zero_grad()
        for micro_batch in step_batch:
            logits = model(micro_batch.inputs["x"])
            targets = micro_batch.inputs["labels"]
            loss = summed_cross_entropy(logits, targets, class_weights=class_weights)
            (loss / step_batch.effective_weight).backward()
        rows = examples.collate(ids)
        whole = torch.nn.functional.cross_entropy(
            model(rows["x"]), rows["labels"], weight=class_weights
        )
        (expected,) = torch.autograd.grad(whole, [model.weight])
        torch.testing.assert_close(model.weight.grad, expected)


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        ([1.0], r"has the shape \(1,\)"), ([[1.0, 1.0]], r"has the shape \(1, 2\)"),
        ([1.0, -1.0], "has -1 at index 1"), ([float("nan"), 1.0], "has nan at index 0"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_the_examples_are_refused(weights, found):
    examples = TensorExamples({"x": torch.zeros(2, 1)}, example_weights=np.array(weights))
    with pytest.raises(InputError, match=f"{found}; it must .* for each of the 2 examples"):
        StepBatches(examples, effective_batch_size=2).epoch(0).__next__()


def collated_while_waiting(pinned):
    """Return the batches of an epoch, and how many were collated when the first one was used."""
    collated, ready = [], threading.Event()

    class Recorded(NumberedExamples):
        def collate(self, ids):
            collated.append(ids)
            if len(collated) == 2:
                ready.set()
            return super().collate(ids)

    examples = numbered(20)
    batches = StepBatches(Recorded(examples.lengths, examples.weights), 5, pinned=pinned)
    steps = batches.epoch(0)
    first = next(steps)
    ready.wait(5 if pinned else 0)
    used_at_once = len(collated)
    return [contents(first), *map(contents, steps)], used_at_once


def test_one_step_batch_is_collated_ahead_and_pinned(monkeypatch):
    pinned = []
    # Pinning needs a driver. What matters here is that every tensor passes through it.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(1) or tensor)
    plain, ahead = collated_while_waiting(False), collated_while_waiting(True)
    assert plain[0] == ahead[0]
    assert plain[1] == 1
    assert ahead[1] >= 2
    assert len(pinned) == 4


def test_an_error_while_collating_ahead_is_raised_and_an_unfinished_epoch_ends(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)

    class Broken(NumberedExamples):
        def collate(self, ids):
            raise ValueError("row 3 is broken")

    examples = numbered(20)
    with pytest.raises(ValueError, match="row 3 is broken"):
        next(StepBatches(Broken(examples.lengths, examples.weights), 5, pinned=True).epoch(0))
    steps = StepBatches(examples, 5, pinned=True).epoch(0)
    next(steps)
    steps.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("collate")]


def test_layouts_are_made_by_the_thread_that_collates_ahead(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    threads = []

    def finish(micro):
        threads.append(threading.current_thread().name)
        return replace(micro, packing=sorted(micro.inputs))

    ahead, waiting = (
        StepBatches(numbered(20), 5, pinned=pinned, finish=finish) for pinned in (True, False)
    )
    micro_batches = [micro for step_batch in ahead.epoch(0) for micro in step_batch]
    assert [micro.packing for micro in micro_batches] == [sorted(m.inputs) for m in micro_batches]
    assert threads
    assert all(name.startswith("collate") for name in threads)
    assert all(micro.packing is None for step_batch in waiting.epoch(0) for micro in step_batch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a CUDA driver")
def test_tensors_are_in_pinned_memory():
    (step_batch, *_) = StepBatches(numbered(20), 5, pinned=True).epoch(0)
    assert all(t.is_pinned() for micro in step_batch for t in micro.inputs.values())


@dataclass(frozen=True)
class _EpochNumbers:
    """Examples whose only tensor is their id plus 100 times the epoch."""

    epoch: int = 0

    @property
    def weights(self):
        return np.ones(12)

    @property
    def lengths(self):
        return np.ones(12, dtype=np.int64)

    def for_step(self, epoch, step):
        return _EpochNumbers(epoch)

    def collate(self, ids):
        return {"number": torch.from_numpy(ids + 100 * self.epoch)}


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("world_size", [1, 2])
def test_augmented_examples_know_their_epoch(micro_batches, world_size):
    for epoch in (0, 3):
        numbers = []
        for rank in range(world_size):
            batches = StepBatches(_EpochNumbers(), 12, micro_batches, 0, rank, world_size)
            (step_batch,) = batches.epoch(epoch)
            again = replace(batches, micro_batches=2).recut(step_batch)
            assert {int(m.inputs["number"][0]) // 100 for m in again} == {epoch}
            numbers += torch.cat([m.inputs["number"] for m in step_batch]).tolist()
        assert sorted(numbers) == [100 * epoch + id for id in range(12)]
