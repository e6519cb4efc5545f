"""Positions of the real tokens of a padded batch, and groups of its sequences for attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

# Time that each group costs, by kernel launches and in 16 bits on a CPU by kernels compiled for its
# shape. The unit is the time of the arithmetic of one pair of tokens. Chosen by measurement; see
# benchmarks/group_cost.py.
GROUP_COST = 4000.0


@dataclass(frozen=True)
class SequenceGroup:
    """Adjacent sequences of the packed row that attention processes together.

    Attributes:
        start: Position of the group's first token in the packed row.
        lengths: Number of tokens of each sequence, ascending.
    """

    start: int
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence."""
        return self.lengths[-1]

    @property
    def tokens(self) -> int:
        """Number of real tokens in the group."""
        return sum(self.lengths)

    @property
    def is_even(self) -> bool:
        """Whether all sequences have the same length, so that no padding is needed."""
        return self.lengths[0] == self.longest


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """How a right-padded batch maps to one row that contains only its real tokens.

    The sequences are in ascending order of length (stable), so that sequences of equal length are
    adjacent, and a group of them is a slice of the row. Fillers, if any, are sequences after those.

    Attributes:
        batch_size: Number of sequences in the batch, B.
        width: Number of columns of the padded batch, T.
        lengths: Number of tokens of each sequence, in the order of the row, with fillers.
        tokens: (N,) int64, index of each token of the row in the flattened (B * T) batch.
        columns: (N,) int64, position of each token in its sequence.
        first: (B,) int64, position of each sequence's first token in the row, in the order of the
            batch.
        groups: Groups of adjacent sequences of similar length, which cover the row.
        fillers: Number of tokens at the end of the row that belong to no text of the batch.
    """

    batch_size: int
    width: int
    lengths: tuple[int, ...]
    tokens: torch.Tensor
    columns: torch.Tensor
    first: torch.Tensor
    groups: tuple[SequenceGroup, ...]
    fillers: int = 0

    @property
    def total(self) -> int:
        """Number of tokens in the row, N."""
        return self.tokens.shape[0]

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence."""
        return max(self.lengths)

    @cached_property
    def plans(self) -> dict[tuple[int, int | None, bool], object]:
        """Plans of grouped attention, cached here because all layers share them."""
        return {}

    @cached_property
    def masks(self) -> dict[tuple[int, int | None, bool], torch.Tensor | None]:
        """Masks of the groups by number and rule of visible keys, which all layers share."""
        return {}

    @cached_property
    def offsets(self) -> torch.Tensor:
        """(B + 1,) int32 boundaries of the sequences in the row, for variable-length kernels."""
        ends = torch.tensor((0, *self.lengths), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return ends.to(self.tokens.device, non_blocking=True)

    @cached_property
    def group_indices(self) -> tuple[GroupIndex | None, ...]:
        """Indices that pad and mask each group; `None` for a group that needs no padding."""
        device = self.tokens.device
        return tuple(None if g.is_even else group_index(g, device) for g in self.groups)

    def gather(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the real tokens of a (B, T, ...) tensor, (1, N, ...)."""
        return padded.flatten(0, 1).index_select(0, self.tokens).unsqueeze(0)

    def scatter(self, packed: torch.Tensor) -> torch.Tensor:
        """Return (B, T, ...) with the (1, N, ...) tokens in their places and zeros as padding."""
        real = self.total - self.fillers
        row, tokens = packed.squeeze(0)[:real], self.tokens[:real]
        padded = row.new_zeros((self.batch_size * self.width, *row.shape[1:]))
        return padded.index_copy(0, tokens, row).unflatten(0, (self.batch_size, self.width))

    def filled(self, bucket: int) -> PackedLayout:
        """Return a layout whose row has a multiple of `bucket` tokens.

        The fillers repeat the first token of the batch, attend only to each other, and no output
        has them. At least one is always added, so that the number of sequences does not depend on
        the number of tokens, provided that a bucket is at most as long as the width.
        """
        assert self.fillers == 0, "the row is filled already"
        count = bucket - self.total % bucket
        rest = (count % self.width,) if count % self.width else ()
        lengths = (*rest, *(self.width,) * (count // self.width))
        groups = [
            replace(group, start=group.start + self.total) for group in similar_lengths(lengths, 0)
        ]
        # Any positions that a text can have.
        columns = torch.arange(-count, 0, device=self.columns.device) % self.width
        return replace(
            self,
            lengths=(*self.lengths, *lengths),
            tokens=torch.cat((self.tokens, self.tokens.new_zeros(count))),
            columns=torch.cat((self.columns, columns)),
            groups=(*self.groups, *groups),
            fillers=count,
        )

    def cells(self, row: torch.Tensor) -> list[torch.Tensor]:
        """Return the (c, L, ...) cells of each group of an (N, ...) row.

        A padding cell repeats the first token of its sequence.
        """
        parts = row.split([group.tokens for group in self.groups])
        return [
            (part if index is None else part.index_select(0, index.padded)).unflatten(
                0, (len(group.lengths), group.longest)
            )
            for part, group, index in zip(parts, self.groups, self.group_indices, strict=True)
        ]

    def row_of(self, cells: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the (N, ...) row of the (c, L, ...) cells of all groups, without padding."""
        flat = (group.flatten(0, 1) for group in cells)
        return torch.cat(
            [
                part if index is None else part.index_select(0, index.real)
                for part, index in zip(flat, self.group_indices, strict=True)
            ]
        )

    def first_tokens(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the first token of each sequence of a (1, N, ...) tensor, (1, B, ...)."""
        return packed.index_select(1, self.first)


@dataclass(frozen=True, eq=False)
class GroupIndex:
    """Indices that pad a group of sequences of different lengths and remove the padding again.

    Attributes:
        padded: (c * L,) int64, position in the group for each cell; a padding cell repeats the
            first token of its sequence.
        real: (n,) int64, indices of the cells with real tokens, in the order of the row.
        visible: (c, 1, 1, L) bool, True where a key is not masked.
    """

    padded: torch.Tensor
    real: torch.Tensor
    visible: torch.Tensor


def group_index(group: SequenceGroup, device: torch.device) -> GroupIndex:
    """Return the indices for the padding of `group`, with all tensors on `device`."""
    lengths = torch.tensor(group.lengths)
    starts = lengths.cumsum(0) - lengths
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
    group_cost: float = GROUP_COST,
) -> PackedLayout | None:
    """Return the layout of a right-padded batch, or `None` if it is not right-padded.

    Reading a mask on an accelerator synchronises with it. To avoid this, build the layout from a
    mask on the CPU and pass it to the model as `packing=layout`.

    Args:
        attention_mask: (B, T) integers or booleans, non-zero for real tokens.
        device: Device of the batch; None means the mask's device.
        group_cost: Cost of a group of sequences, as in `similar_lengths`.

    Returns:
        The layout; `None` if a row has no tokens, or padding before or between its tokens.
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
        groups=similar_lengths(counts, group_cost),
    )


def similar_lengths(lengths: Sequence[int], group_cost: float) -> tuple[SequenceGroup, ...]:
    """Split ascending `lengths` into the groups of the lowest total cost.

    The cost of c sequences of at most L tokens is `group_cost` + c * L^2, because attention pads
    them to L tokens.

    Args:
        lengths: Number of tokens of each sequence, ascending.
        group_cost: Cost of a group, in pairs of tokens; with 0, only equal lengths form a group,
            and with infinity, all sequences do.
    """
    distinct, counts = np.unique(lengths, return_counts=True)
    ends = np.concatenate(([0], counts.cumsum()))  # sequences of the first 0, 1, ... lengths
    costs = np.zeros(len(ends))
    first = np.zeros(len(ends), dtype=np.int64)  # first length of the last group
    for end in range(1, len(ends)):
        pairs = (ends[end] - ends[:end]) * float(distinct[end - 1]) ** 2
        candidates = costs[:end] + group_cost + pairs
        first[end] = candidates.argmin()
        costs[end] = candidates[first[end]]
    groups: list[SequenceGroup] = []
    end = len(distinct)
    while end:
        members = tuple(lengths[ends[first[end]] : ends[end]])
        groups.append(SequenceGroup(start=sum(lengths[: ends[first[end]]]), lengths=members))
        end = int(first[end])
    return tuple(reversed(groups))


@dataclass(frozen=True)
class AttentionOptions:
    """Options of every attention kernel.

    Attributes:
        dropout: Probability that an attention weight is dropped, in [0, 1).
        scale: Factor of the scores.
        sliding_window: Tokens at most `sliding_window - 1` apart attend to each other; None for no
            limit.
        causal: Whether a token attends only to itself and to earlier tokens.
        position_bias: (heads, L, L), added to the scores of every sequence, where L is at least
            the length of the longest one; None for no bias.
    """

    dropout: float
    scale: float
    sliding_window: int | None = None
    causal: bool = False
    position_bias: torch.Tensor | None = None

    def is_only_causal(self, length: int) -> bool:
        """Return whether nothing but the causal rule restricts or changes scores of L tokens."""
        window = self.sliding_window or length
        return self.causal and window >= length and self.position_bias is None

    def visible_positions(self, length: int, device: torch.device) -> torch.Tensor | None:
        """Return which keys a query may attend to by position, (L, L) bool; None for all."""
        window = self.sliding_window or length
        if window >= length and not self.causal:
            return None
        position = torch.arange(length, device=device)
        distance = position[:, None] - position
        near = distance.abs() < window
        return near & (distance >= 0) if self.causal else near
