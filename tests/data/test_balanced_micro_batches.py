from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampft.data.step_batches import balanced_micro_batches
from ampft.errors import InputError


def cost(lengths, part, padded):
    return len(part) * lengths[part].max() if padded else lengths[part].sum()


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    k=st.integers(1, 6),
    padded=st.booleans(),
)
def test_the_largest_cost_is_minimal(lengths, k, padded):
    lengths = np.array(lengths)
    parts = balanced_micro_batches(lengths, k, padded)
    assert len(parts) == min(k, len(lengths))
    assert all(part.size and part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(len(lengths)))
    order = np.argsort(-lengths, kind="stable")
    assert np.array_equal(np.concatenate(parts), order)
    minimum = min(
        max(cost(lengths, part, padded) for part in np.split(order, list(cuts)))
        for cuts in combinations(range(1, len(lengths)), len(parts) - 1)
    )
    assert max(cost(lengths, part, padded) for part in parts) == minimum


def test_the_same_lengths_give_the_same_micro_batches():
    lengths = np.random.default_rng(0).integers(1, 128, 64)
    first, second = (balanced_micro_batches(lengths, 4, padded=True) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_an_empty_step_batch_has_no_micro_batches():
    assert balanced_micro_batches(np.array([], dtype=np.int64), 3, padded=True) == []


def test_sorting_saves_padding():
    lengths = np.tile([4, 128], 16)
    parts = balanced_micro_batches(lengths, 4, padded=True)
    padded = sum(cost(lengths, part, padded=True) for part in parts)
    assert padded < 0.7 * lengths.size * lengths.max()


@pytest.mark.parametrize(
    ("lengths", "k", "message"), [([3], 0, "k: received 0"), ([3, 0], 1, "received 0 at index 1")]
)
def test_bad_arguments_are_named(lengths, k, message):
    with pytest.raises(InputError, match=message):
        balanced_micro_batches(np.array(lengths), k, padded=True)
