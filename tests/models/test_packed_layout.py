import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampft.models.packing.layout import GROUP_PADDING, pack_layout, similar_lengths


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


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=40).map(sorted),
    bound=st.sampled_from([0.0, GROUP_PADDING, 0.9]),
)
def test_groups_cover_the_row_and_limit_the_padding(lengths, bound):
    groups = similar_lengths(lengths, bound)
    assert [n for group in groups for n in group.lengths] == lengths
    start = 0
    for group in groups:
        assert group.start == start
        start += group.tokens
        pairs = sum(n * n for n in group.lengths)
        assert pairs >= (1 - bound) * len(group.lengths) * group.longest**2 - 1e-6
    if bound == 0.0:
        assert all(group.is_even for group in groups)


@pytest.mark.parametrize(
    "mask", [[[0, 1, 1]], [[1, 0, 1]], [[1, 1, 0], [0, 0, 0]]], ids=["left", "hole", "empty row"]
)
def test_other_padding_has_no_layout(mask):
    assert pack_layout(torch.tensor(mask)) is None
