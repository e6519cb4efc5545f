"""Positions of the real tokens of a padded batch, and groups of its sequences for attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from ampft.precision.transfer import to_device

# Time that each group costs, by kernel launches and in 16 bits on a CPU by kernels compiled for its
# shape. The unit is the time of the arithmetic of one pair of tokens. Chosen by measurement; see
# "Groups for attention" in benchmarks/LOG.md.
GROUP_COST = 4000.0
# On a GPU a group costs some ten launches per layer, forward and backward, which is the time of
# about half a million pairs at 100 TFLOP/s. Estimated by that count, not measured.
GROUP_COST_ON_GPU = 500_000.0


@dataclass(frozen=True)
class SequenceGroup:
    """Adjacent sequences of the packed row that attention processes together."""

    start: int  # Position of the group's first token in the packed row.
    lengths: tuple[int, ...]  # Number of tokens of each sequence, ascending.

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

    def cells(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what pads the group and removes the padding again, on the CPU.

        Returns:
            The token of each cell, (c, L) int64, counted from the group's first; a padding cell
            repeats the first token of its sequence. Whether a cell is real, (c, L) bool. The
            indices of the real cells, (n,) int64.
        """
        lengths = torch.tensor(self.lengths, device="cpu")
        starts = (lengths.cumsum(0) - lengths)[:, None]
        columns = torch.arange(self.longest, device="cpu")
        is_real = columns < lengths[:, None]
        real = is_real.flatten().nonzero().squeeze(1)
        return torch.where(is_real, starts + columns, starts), is_real, real


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """How a right-padded batch maps to one row that contains only its real tokens.

    The sequences are in ascending order of length (stable), so that sequences of equal length are
    adjacent, and a group of them is a slice of the row. Fillers, if any, are sequences after those.

    The indices are computed on the host and moved to the device on first use, in one copy. Where
    a thread prepares batches, `pin` makes the copy start from pinned memory of that thread.
    """

    batch_size: int  # Number of sequences in the batch, B.
    width: int  # Number of columns of the padded batch, T.
    # Number of tokens of each sequence, in the order of the row, with fillers.
    lengths: tuple[int, ...]
    host_tokens: torch.Tensor  # `tokens` on the CPU.
    host_columns: torch.Tensor  # `columns` on the CPU.
    host_first: torch.Tensor  # `first` on the CPU.
    # Groups of adjacent sequences of similar length, which cover the row.
    groups: tuple[SequenceGroup, ...]
    device: torch.device  # Device of the batch.
    fillers: int = 0  # Number of tokens at the end of the row that belong to no text of the batch.
    allows_one_call: bool = True  # Whether a kernel may compute the whole row in one call.
    least_longest: int = 0  # Lower bound of `longest`, so that it does not depend on the batch.
    # (N,) int64 on the CPU, where `scatter` writes each token of the row in the flattened batch, B
    # * T for fillers; None without fixed shapes, see `bucketed`.
    host_targets: torch.Tensor | None = None

    @property
    def is_filled(self) -> bool:
        """Whether the row has fillers, or has room for them."""
        return self.fillers > 0 or self.host_targets is not None

    @property
    def compiles_attention(self) -> bool:
        """Whether `torch.compile` may compile attention, by a kernel for the whole row."""
        return self.host_targets is not None and self.allows_one_call and self.device.type == "cuda"

    @property
    def total(self) -> int:
        """Number of tokens in the row, N."""
        return self.host_tokens.shape[0]

    @property
    def attended(self) -> int:
        """Number of tokens that attention reads, at the start of the row."""
        return self.groups[-1].start + self.groups[-1].tokens

    @property
    def tokens(self) -> torch.Tensor:
        """(N,) int64, index of each token of the row in the flattened (B * T) batch."""
        return self._indices[0]

    @property
    def columns(self) -> torch.Tensor:
        """(N,) int64, position of each token in its sequence."""
        return self._indices[1]

    @property
    def first(self) -> torch.Tensor:
        """(B,) int64, first token of each sequence in the row, in the order of the batch."""
        return self._indices[2]

    @cached_property
    def offsets(self) -> torch.Tensor:
        """(B + 1,) int32 boundaries of the sequences in the row, for variable-length kernels."""
        return self._indices[3].to(torch.int32)

    @cached_property
    def _indices(self) -> tuple[torch.Tensor, ...]:
        return self._joined.to(self.device)

    @cached_property
    def _joined(self) -> JoinedTensors:
        boundaries = torch.tensor((0, *self.lengths), device="cpu").cumsum(0)
        host = (self.host_tokens, self.host_columns, self.host_first, boundaries)
        targets = () if self.host_targets is None else (self.host_targets,)
        return JoinedTensors.of((*host, *targets), self.device)

    def pin(self) -> None:
        """Copy the indices to pinned memory if the device needs that; repeated calls do nothing."""
        self._joined  # noqa: B018 # computed on first use

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence, or an upper bound of it."""
        if self.host_targets is not None:  # compiled code must not depend on the lengths
            return self.least_longest
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
    def one_calls(self) -> dict[Callable[..., torch.Tensor], tuple[torch.Tensor, AttentionOptions]]:
        """An empty row of queries, and the options, of each kernel that computed the whole row."""
        return {}

    @cached_property
    def group_indices(self) -> tuple[GroupIndex | None, ...]:
        """Indices that pad and mask each group; `None` for a group that needs no padding."""
        host = [group.cells() for group in self.groups if not group.is_even]
        integers = [index for cells, _, real in host for index in (cells.flatten(), real)]
        moved = in_one_copy(integers, self.device)
        masks = in_one_copy([is_real.flatten() for _, is_real, _ in host], self.device)
        indices = (
            GroupIndex(cells, real, mask.view(len(shape), 1, 1, -1))
            for cells, real, mask, (shape, *_) in zip(
                moved[::2], moved[1::2], masks, host, strict=True
            )
        )
        return tuple(None if group.is_even else next(indices) for group in self.groups)

    def gather(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the real tokens of a (B, T, ...) tensor, (1, N, ...)."""
        return padded.flatten(0, 1).index_select(0, self.tokens).unsqueeze(0)

    def scatter(self, packed: torch.Tensor) -> torch.Tensor:
        """Return (B, T, ...) with the (1, N, ...) tokens in their places and zeros as padding."""
        if self.host_targets is not None:
            row, cells = packed.squeeze(0), self.batch_size * self.width
            # One more row for the fillers, whose number must not be a constant of a graph.
            padded = row.new_zeros((cells + 1, *row.shape[1:])).index_copy(0, self._indices[4], row)
            return padded[:cells].unflatten(0, (self.batch_size, self.width))
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
        assert not self.is_filled, "the row is filled already"
        return self._with_fillers(bucket - self.total % bucket, self.width)

    def rounded(self, multiple: int) -> PackedLayout:
        """Return a layout whose row has a multiple of `multiple` tokens, for grouped attention.

        The fillers repeat the first token of the batch. Attention reads none of them and returns
        zeros for them, dropout draws nothing for them, and no output has them.
        """
        assert not self.is_filled, "the row is filled already"
        count = -self.total % multiple
        if count == 0:
            return self
        zeros = self.host_tokens.new_zeros(count)
        return replace(
            self,
            host_tokens=torch.cat((self.host_tokens, zeros)),
            host_columns=torch.cat((self.host_columns, zeros)),
            fillers=count,
        )

    def bucketed(self, bucket: int, longest: int) -> PackedLayout:
        """Return a layout with the shapes and numbers that all batches of a bucket share.

        The row is filled up to a multiple of `bucket` tokens. The number of sequences is the
        largest that fillers of such a row can need, and the last ones may be empty.

        Args:
            longest: Upper bound of the length of a sequence, and the length of long fillers.
        """
        assert not self.is_filled, "the row is filled already"
        count = -self.total % bucket
        filled = self._with_fillers(count, longest)
        empty = self.batch_size - (-(bucket - 1) // longest) - len(filled.lengths)
        nowhere = self.host_tokens.new_full((count,), self.batch_size * self.width)
        return replace(
            filled,
            lengths=(*filled.lengths, *(0,) * empty),
            least_longest=longest,
            host_targets=torch.cat((self.host_tokens, nowhere)),
        )

    def _with_fillers(self, count: int, longest: int) -> PackedLayout:
        """Return the layout with `count` fillers, in sequences of at most `longest` tokens."""
        if count == 0:
            return self
        rest = (count % longest,) if count % longest else ()
        lengths = (*rest, *(longest,) * (count // longest))
        groups = [
            replace(group, start=group.start + self.total) for group in cheapest_groups(lengths, 0)
        ]
        # Any positions that a text can have.
        columns = torch.arange(-count, 0, device="cpu") % longest
        return replace(
            self,
            lengths=(*self.lengths, *lengths),
            host_tokens=torch.cat((self.host_tokens, self.host_tokens.new_zeros(count))),
            host_columns=torch.cat((self.host_columns, columns)),
            groups=(*self.groups, *groups),
            fillers=count,
        )

    def cells(self, rows: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        """Return the (c, L, ...) cells of each group of several (N, ...) rows of one shape.

        A padding cell repeats the first token of its sequence.
        """
        # Together, because each operator costs a launch on a GPU.
        real = torch.stack(tuple(rows))[:, : self.attended]
        parts = real.split([group.tokens for group in self.groups], 1)
        return [
            (part if index is None else part.index_select(1, index.padded))
            .unflatten(1, (len(group.lengths), group.longest))
            .unbind()
            for part, group, index in zip(parts, self.groups, self.group_indices, strict=True)
        ]

    def row_of(self, cells: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the (N, ...) row of the (c, L, ...) cells of all groups, without padding.

        Tokens that are in no group are zero.
        """
        flat = (group.flatten(0, 1) for group in cells)
        parts = [
            part if index is None else part.index_select(0, index.real)
            for part, index in zip(flat, self.group_indices, strict=True)
        ]
        if missing := self.total - self.attended:
            parts.append(parts[0].new_zeros((missing, *parts[0].shape[1:])))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def first_tokens(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the first token of each sequence of a (1, N, ...) tensor, (1, B, ...)."""
        return packed.index_select(1, self.first)


@dataclass(frozen=True, eq=False)
class GroupIndex:
    """Indices that pad a group of sequences of different lengths and remove the padding again."""

    # (c * L,) int64, position in the group for each cell; a padding cell repeats the first token of
    # its sequence.
    padded: torch.Tensor
    # (n,) int64, indices of the cells with real tokens, in the order of the row.
    real: torch.Tensor
    visible: torch.Tensor  # (c, 1, 1, L) bool, True where a key is not masked.


class JoinedTensors(NamedTuple):
    """One-dimensional tensors of one dtype on the CPU that move to a device in one copy."""

    # The tensors; on the way to a device, all of them in one, in pinned memory for CUDA.
    tensors: tuple[torch.Tensor, ...]
    sizes: tuple[int, ...]  # Number of elements of each.

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor], device: torch.device) -> JoinedTensors:
        """Join tensors for a device; for the CPU they stay separate."""
        sizes = tuple(len(tensor) for tensor in tensors)
        if device.type == "cpu" or not tensors:
            return cls(tuple(tensors), sizes)
        joined = torch.cat(list(tensors))
        return cls((joined.pin_memory() if device.type == "cuda" else joined,), sizes)

    def to(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return the tensors on the device, without waiting for the copy to a CUDA device."""
        if device.type == "cpu" or not self.sizes:
            return self.tensors
        return to_device(self.tensors[0], device).split(list(self.sizes))


def in_one_copy(tensors: Sequence[torch.Tensor], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Move one-dimensional tensors of one dtype from the CPU to a device, in one copy."""
    return JoinedTensors.of(tensors, device).to(device)


def pack_layout(
    attention_mask: torch.Tensor,
    *,
    device: torch.device | None = None,
    group_cost: float | None = None,
) -> PackedLayout | None:
    """Return the layout of a right-padded batch, or `None` if it is not right-padded.

    Reading a mask on an accelerator synchronises with it. To avoid this, build the layout from a
    mask on the CPU and pass it to the model as `packing=layout`.

    Args:
        attention_mask: (B, T) integers or booleans, non-zero for real tokens.
        device: Device of the batch; None means the mask's device.
        group_cost: Cost of a group of sequences, as in `cheapest_groups`; None means the cost on
            the device.

    Returns:
        The layout; `None` if a row has no tokens, or padding before or between its tokens.
    """
    device = attention_mask.device if device is None else device
    if group_cost is None:
        group_cost = GROUP_COST if device.type == "cpu" else GROUP_COST_ON_GPU
    real = attention_mask.detach().to("cpu") != 0
    width = real.shape[1]
    lengths = real.sum(1)
    if bool((lengths == 0).any()) or not bool(
        (real == (torch.arange(width, device="cpu") < lengths[:, None])).all()
    ):
        return None
    order = lengths.argsort(stable=True)
    ordered = lengths[order]
    starts = ordered.cumsum(0) - ordered
    columns = torch.arange(int(ordered.sum()), device="cpu") - starts.repeat_interleave(ordered)
    first = torch.empty_like(order)
    first[order] = starts
    counts = tuple(ordered.tolist())
    return PackedLayout(
        batch_size=len(counts),
        width=width,
        lengths=counts,
        host_tokens=(order * width).repeat_interleave(ordered) + columns,
        host_columns=columns,
        host_first=first,
        groups=cheapest_groups(counts, group_cost),
        device=device,
    )


def cheapest_groups(lengths: Sequence[int], group_cost: float) -> tuple[SequenceGroup, ...]:
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
    """Options of every attention kernel."""

    dropout: float  # Probability that an attention weight is dropped, in [0, 1).
    scale: float  # Factor of the scores.
    # Tokens at most `sliding_window - 1` apart attend to each other; None for no limit.
    sliding_window: int | None = None
    causal: bool = False  # Whether a token attends only to itself and to earlier tokens.
    # (heads, L, L), added to the scores of every sequence, where L is at least the length of the
    # longest one; None for no bias.
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


class AttentionOperands(NamedTuple):
    """Operands of attention over a packed row."""

    query: torch.Tensor  # (N, heads, d).
    key: torch.Tensor  # Same shape and dtype as `query`, unless a kernel supports fewer heads.
    value: torch.Tensor  # Same shape and dtype as `key`.
