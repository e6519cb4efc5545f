import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampft.fast.packing.layout import GROUP_COST, cheapest_groups, pack_layout


def mask_of(lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_gather_and_scatter_are_inverse(lengths):
    mask = mask_of(lengths)
    layout = pack_layout(mask)
    padded = torch.arange(mask.numel()).view(mask.shape) + 1
    packed = layout.gather(padded)
    assert packed.shape == (1, sum(lengths))
    assert torch.equal(layout.scatter(packed), padded * mask)
    assert torch.equal(layout.first_tokens(packed)[0], padded[:, 0])
    assert layout.lengths == tuple(sorted(lengths))
    assert layout.offsets.tolist() == [0, *torch.tensor(layout.lengths).cumsum(0).tolist()]
    columns = torch.arange(mask.shape[1]).expand(mask.shape)
    assert torch.equal(layout.gather(columns)[0], layout.columns)


def cost(parts, group_cost):
    """Return the cost of groups, given as lists of lengths."""
    return sum(group_cost + len(part) * max(part) ** 2 for part in parts)


def partitions(lengths):
    """Yield all ways to split a list into adjacent parts."""
    for cuts in itertools.product((False, True), repeat=len(lengths) - 1):
        ends = [n for n, is_cut in enumerate(cuts, 1) if is_cut]
        yield [
            lengths[start:end] for start, end in zip([0, *ends], [*ends, len(lengths)], strict=True)
        ]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=9).map(sorted),
    group_cost=st.sampled_from([0.0, 30.0, GROUP_COST, math.inf]),
)
def test_groups_cover_the_row_at_the_lowest_cost(lengths, group_cost):
    groups = cheapest_groups(lengths, group_cost)
    assert [n for group in groups for n in group.lengths] == lengths
    starts = list(itertools.accumulate((group.tokens for group in groups), initial=0))
    assert [group.start for group in groups] == starts[:-1]
    lowest = min(cost(parts, group_cost) for parts in partitions(lengths))
    assert cost([group.lengths for group in groups], group_cost) == lowest


def test_a_group_that_costs_nothing_has_one_length_and_one_that_costs_all_has_every_length():
    lengths = [3, 3, 5, 9, 9, 9]
    free = cheapest_groups(lengths, 0.0)
    assert [group.lengths for group in free] == [(3, 3), (5,), (9, 9, 9)]
    assert [group.lengths for group in cheapest_groups(lengths, math.inf)] == [tuple(lengths)]


@pytest.mark.parametrize(
    "mask", [[[0, 1, 1]], [[1, 0, 1]], [[1, 1, 0], [0, 0, 0]]], ids=["left", "hole", "empty row"]
)
def test_other_padding_has_no_layout(mask):
    assert pack_layout(torch.tensor(mask)) is None
