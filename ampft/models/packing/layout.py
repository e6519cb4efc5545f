"""Where the real tokens of a padded batch lie, and how its sequences are grouped for attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

# A group may hold sequences of different lengths as long as its padding stays below this share of
# its token pairs: each group costs a fixed number of kernel launches, each padded pair a little
# arithmetic. Chosen by measurement, see benchmarks/packing_speed.py.
GROUP_PADDING = 0.2


@dataclass(frozen=True)
class SequenceGroup:
    """Sequences that attention handles at once: neighbours in the packed row.

    Attributes:
        start: Position in the packed row of the first token of the group.
        lengths: Tokens of each sequence, ascending.
    """

    start: int
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.lengths[-1]

    @property
    def tokens(self) -> int:
        """Real tokens of the group."""
        return sum(self.lengths)

    @property
    def is_even(self) -> bool:
        """Whether all sequences are equally long, so that no padding is needed."""
        return self.lengths[0] == self.longest


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """How a right-padded batch maps onto one row that holds its real tokens alone.

    Sequences lie in the row in ascending order of length (stable), so that those of equal length
    are neighbours and a group of them is a slice of the row.

    Attributes:
        batch_size: Sequences in the batch, B.
        width: Columns of the padded batch, T.
        lengths: Tokens of each sequence, in the order of the row.
        tokens: (N,) int64, index into the flattened (B * T) batch of each token of the row.
        columns: (N,) int64, position of each token within its sequence.
        first: (B,) int64, position in the row of the first token of each sequence, in the order
            of the batch.
        groups: Groups of neighbours of similar length, which cover the row.
    """

    batch_size: int
    width: int
    lengths: tuple[int, ...]
    tokens: torch.Tensor
    columns: torch.Tensor
    first: torch.Tensor
    groups: tuple[SequenceGroup, ...]

    @property
    def total(self) -> int:
        """Real tokens in the batch, N."""
        return self.tokens.shape[0]

    @cached_property
    def plans(self) -> dict[tuple[int, int | None], object]:
        """Plans of grouped attention, kept here because all layers share them."""
        return {}

    @cached_property
    def offsets(self) -> torch.Tensor:
        """(B + 1,) int32 boundaries of the sequences in the row, for variable-length kernels."""
        ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.tokens.device, non_blocking=True)

    @cached_property
    def group_indices(self) -> tuple[GroupIndex | None, ...]:
        """What pads and masks each group; `None` for a group that needs no padding."""
        device = self.tokens.device
        return tuple(None if g.is_even else group_index(g, device) for g in self.groups)

    def gather(self, padded: torch.Tensor) -> torch.Tensor:
        """Return (1, N, ...) real tokens of a (B, T, ...) tensor."""
        return padded.flatten(0, 1).index_select(0, self.tokens).unsqueeze(0)

    def scatter(self, packed: torch.Tensor) -> torch.Tensor:
        """Return (B, T, ...) with the (1, N, ...) tokens in place and zeros where padding was."""
        row = packed.squeeze(0)
        padded = row.new_zeros((self.batch_size * self.width, *row.shape[1:]))
        return padded.index_copy(0, self.tokens, row).unflatten(0, (self.batch_size, self.width))

    def first_tokens(self, packed: torch.Tensor) -> torch.Tensor:
        """Return (1, B, ...) the first token of each sequence of a (1, N, ...) tensor."""
        return packed.index_select(1, self.first)


@dataclass(frozen=True, eq=False)
class GroupIndex:
    """How a group of unequal sequences is padded and cut back.

    Attributes:
        padded: (c * L,) int64, position in the row for each cell; a cell of padding repeats the
            first token of its sequence.
        real: (n,) int64, cells that hold real tokens, in the order of the row.
        visible: (c, 1, 1, L) bool, true where a key may be seen.
    """

    padded: torch.Tensor
    real: torch.Tensor
    visible: torch.Tensor


def group_index(group: SequenceGroup, device: torch.device) -> GroupIndex:
    """Return the padding of `group`; all tensors on `device`."""
    lengths = torch.tensor(group.lengths)
    starts = group.start + lengths.cumsum(0) - lengths
    columns = torch.arange(group.longest)
    visible = columns < lengths[:, None]
    padded = torch.where(visible, starts[:, None] + columns, starts[:, None])
    return GroupIndex(
        padded=padded.flatten().to(device, non_blocking=True),
        real=visible.flatten().nonzero().squeeze(1).to(device, non_blocking=True),
        visible=visible[:, None, None, :].to(device, non_blocking=True),
    )


def pack_layout(
    attention_mask: torch.Tensor,
    *,
    device: torch.device | None = None,
    group_padding: float = GROUP_PADDING,
) -> PackedLayout | None:
    """Return the layout of a right-padded batch, or `None` when it is not one.

    Reading a mask that lies on an accelerator waits for it. Who builds the layout from a mask on
    the CPU and hands it to the model as `packing=layout` spares that wait.

    Args:
        attention_mask: (B, T) integers or booleans, non-zero for real tokens.
        device: Where the batch lies; the mask's device when absent.
        group_padding: Largest share of padded token pairs in a group of similar length.

    Returns:
        The layout; `None` when a row has no token, or padding before or between tokens.
    """
    device = attention_mask.device if device is None else device
    real = attention_mask.detach().to("cpu") != 0
    width = real.shape[1]
    lengths = real.sum(1)
    if bool((lengths == 0).any()) or not bool(
        (real == (torch.arange(width) < lengths[:, None])).all()
    ):
        return None
    order = lengths.argsort(stable=True)
    ordered = lengths[order]
    starts = ordered.cumsum(0) - ordered
    columns = torch.arange(int(ordered.sum())) - starts.repeat_interleave(ordered)
    first = torch.empty_like(order)
    first[order] = starts
    counts = tuple(ordered.tolist())
    return PackedLayout(
        batch_size=len(counts),
        width=width,
        lengths=counts,
        tokens=((order * width).repeat_interleave(ordered) + columns).to(device, non_blocking=True),
        columns=columns.to(device, non_blocking=True),
        first=first.to(device, non_blocking=True),
        groups=similar_lengths(counts, group_padding),
    )


def similar_lengths(lengths: Sequence[int], group_padding: float) -> tuple[SequenceGroup, ...]:
    """Cut ascending `lengths` into groups whose share of padded token pairs is bounded.

    Args:
        lengths: Tokens of each sequence, ascending.
        group_padding: Bound of 1 - sum(l^2) / (c * L^2), in [0, 1); 0 groups equal lengths alone.
    """
    groups: list[SequenceGroup] = []
    start, members, pairs = 0, list[int](), 0
    for length in lengths:
        grown = pairs + length * length
        if members and grown < (1 - group_padding) * (len(members) + 1) * length * length:
            groups.append(SequenceGroup(start=start, lengths=tuple(members)))
            start += sum(members)
            members, grown = [], length * length
        members.append(length)
        pairs = grown
    groups.append(SequenceGroup(start=start, lengths=tuple(members)))
    return tuple(groups)


@dataclass(frozen=True)
class AttentionOptions:
    """Options of every attention kernel.

    Attributes:
        dropout: Probability that an attention weight is dropped, in [0, 1).
        scale: Factor of the scores.
        sliding_window: Tokens at most `sliding_window - 1` apart see each other; all do when None.
    """

    dropout: float
    scale: float
    sliding_window: int | None = None
