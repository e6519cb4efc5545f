"""Attention with its own backward pass, for sequences in groups of similar length on a CPU.

torch's fused CPU kernel has no dropout, and what it falls back to multiplies in float32 and draws
dropout masks one by one. Here the products run in the dtype of the operands, through `bmm`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.autograd.function import FunctionCtx, once_differentiable

from ampft.models.packing.dropout import keep_mask, realised_probability
from ampft.models.packing.layout import AttentionOptions, PackedLayout, SequenceGroup


@dataclass(frozen=True, eq=False)
class GroupSpan:
    """Where one group lies in the buffers of `AttentionPlan`.

    Attributes:
        sequences: Sequences times heads, b.
        longest: Cells of each sequence, L.
        rows: First row of the group among the cells.
        pairs: First element of the group among the scores.
        hidden: (c, 1, 1 or L, columns) bool, keys that must not be seen, for the last columns of
            the scores: those before are visible to all. `None` when all are.
    """

    sequences: int
    longest: int
    rows: int
    pairs: int
    hidden: torch.Tensor | None

    def cells(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the (b, L, d) view of the group in a (cells * heads, d) buffer."""
        count = self.sequences * self.longest
        return rows.narrow(0, self.rows, count).view(self.sequences, self.longest, -1)

    def square(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the (b, L, L) view of the group in a flat buffer of scores."""
        count = self.sequences * self.longest**2
        return flat.narrow(0, self.pairs, count).view(self.sequences, self.longest, -1)


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """How a row of tokens is laid out for grouped attention; the same in every layer.

    Attributes:
        gather: (cells * heads,) int64, row of the (N * heads, d) operands for each cell of the
            (group, sequence, head, column) order; a cell of padding repeats its first token.
        scatter: (N * heads,) int64, the way back.
        padding: (cells * heads - N * heads,) int64, rows among the cells that are padding.
        spans: The groups.
        pairs: Elements of the scores of all groups.
    """

    gather: torch.Tensor
    scatter: torch.Tensor
    padding: torch.Tensor
    spans: tuple[GroupSpan, ...]
    pairs: int


def attention_plan(layout: PackedLayout, heads: int, window: int | None) -> AttentionPlan:
    """Return the plan of `layout`, made once for each number of heads and window."""
    key = (heads, window)
    if key not in layout.plans:
        layout.plans[key] = _make_plan(layout, heads, window)
    plan = layout.plans[key]
    assert isinstance(plan, AttentionPlan)
    return plan


def _make_plan(layout: PackedLayout, heads: int, window: int | None) -> AttentionPlan:
    head = torch.arange(heads)[:, None]
    spans, gathers, reals = [], [], []
    rows = pairs = 0
    for group in layout.groups:
        cells, real = _cells(group)
        gathers.append((cells[:, None, :] * heads + head).flatten())
        reals.append(real[:, None, :].expand(-1, heads, -1).flatten())
        sequences = len(group.lengths) * heads
        hidden = _hidden(group, real, window)
        spans.append(GroupSpan(sequences, group.longest, rows, pairs, hidden))
        rows += sequences * group.longest
        pairs += sequences * group.longest**2
    gather, real = torch.cat(gathers), torch.cat(reals)
    rows_of_tokens = real.nonzero().squeeze(1)
    scatter = torch.empty(layout.total * heads, dtype=torch.int64)
    scatter[gather[rows_of_tokens]] = rows_of_tokens
    padding = (~real).nonzero().squeeze(1)
    return AttentionPlan(gather, scatter, padding, tuple(spans), pairs)


def _cells(group: SequenceGroup) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor(group.lengths)
    starts = (group.start + lengths.cumsum(0) - lengths)[:, None]
    columns = torch.arange(group.longest)
    real = columns < lengths[:, None]
    return torch.where(real, starts + columns, starts), real


def _hidden(group: SequenceGroup, real: torch.Tensor, window: int | None) -> torch.Tensor | None:
    if window is None or group.longest <= window:
        shortest = group.lengths[0]
        return None if group.is_even else ~real[:, None, None, shortest:]
    position = torch.arange(group.longest)
    near = (position[:, None] - position).abs() < window
    # A padded query sees everything: softmax over nothing would be NaN.
    return ~((near & real[:, None, :]) | ~real[:, :, None])[:, None]


def dropout_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: PackedLayout,
    options: AttentionOptions,
) -> torch.Tensor:
    """Attention of each sequence over itself, differentiable once.

    Scores and probabilities are rounded to the dtype of the operands, the sums within softmax are
    float32, as in transformers' `eager` attention under autocast. The scale is applied to the
    queries and that of dropout to the values: the smaller operands.

    Args:
        query: (N, heads, d), float32 or bfloat16, on the CPU.
        key: As `query`.
        value: As `query`.
        packing: The sequences of the row.
        options: All are known.

    Returns:
        (N, heads, d), dtype of the operands.
    """
    plan = attention_plan(packing, query.shape[1], options.sliding_window)
    result: torch.Tensor = _GroupedAttention.apply(query, key, value, plan, options)
    return result


class _Context(FunctionCtx):
    plan: AttentionPlan
    query_scale: float
    value_scale: float
    saved_tensors: tuple[torch.Tensor, ...]


class _GroupedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: AttentionPlan,
        options: AttentionOptions,
    ) -> torch.Tensor:
        ctx.plan, ctx.query_scale = plan, options.scale
        ctx.value_scale = 1 / (1 - realised_probability(options.dropout))
        queries, keys, values = (_to_cells(tensor, plan) for tensor in (query, key, value))
        queries.mul_(options.scale)
        scores = queries.new_empty(plan.pairs)
        probabilities = torch.empty_like(scores)
        for span in plan.spans:
            _softmax_scores(span, queries, keys, scores, probabilities)
        mask, kept = None, probabilities
        if options.dropout > 0:
            values.mul_(ctx.value_scale)
            mask = keep_mask(plan.pairs, options.dropout, scores.dtype)
            kept = torch.mul(probabilities, mask, out=scores)
        attended = torch.empty_like(queries)
        for span in plan.spans:
            torch.bmm(span.square(kept), span.cells(values), out=span.cells(attended))
        saved = (queries, keys, values, probabilities)
        ctx.save_for_backward(*saved, *(() if mask is None else (mask,)))
        return attended.index_select(0, plan.scatter).view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        queries, keys, values, probabilities, *masks = ctx.saved_tensors
        plan = ctx.plan
        # A padded query must not send gradients to the keys and values of its sequence.
        grad_cells = _to_cells(grad, plan).index_fill_(0, plan.padding, 0)
        kept = torch.mul(probabilities, masks[0]) if masks else probabilities
        grad_queries, grad_keys, grad_values = (torch.empty_like(queries) for _ in range(3))
        grad_kept = torch.empty_like(probabilities)
        for span in plan.spans:
            grads = span.cells(grad_cells)
            torch.bmm(span.square(kept).mT, grads, out=span.cells(grad_values))
            torch.bmm(grads, span.cells(values).mT, out=span.square(grad_kept))
        if masks:
            grad_kept.mul_(masks[0])
            grad_values.mul_(ctx.value_scale)
        for span, grad_scores in _score_gradients(plan, grad_kept, probabilities):
            torch.bmm(grad_scores, span.cells(keys), out=span.cells(grad_queries))
            torch.bmm(grad_scores.mT, span.cells(queries), out=span.cells(grad_keys))
        grad_queries.mul_(ctx.query_scale)
        results = (grad_queries, grad_keys, grad_values)
        rows = (tensor.index_select(0, plan.scatter).view(grad.shape) for tensor in results)
        return (*rows, None, None)


def _to_cells(row: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    return row.reshape(-1, row.shape[-1]).index_select(0, plan.gather)


def _softmax_scores(
    span: GroupSpan,
    queries: torch.Tensor,
    keys: torch.Tensor,
    scores: torch.Tensor,
    probabilities: torch.Tensor,
) -> None:
    square, result = span.square(scores), span.square(probabilities)
    torch.bmm(span.cells(queries), span.cells(keys).mT, out=square)
    if span.hidden is not None:
        by_sequence = square.unflatten(0, (span.hidden.shape[0], -1))
        by_sequence[..., -span.hidden.shape[-1] :].masked_fill_(span.hidden, -math.inf)
    torch.softmax(square, -1, out=result)


def _score_gradients(
    plan: AttentionPlan, grad_kept: torch.Tensor, probabilities: torch.Tensor
) -> Iterator[tuple[GroupSpan, torch.Tensor]]:
    for span in plan.spans:
        result = span.square(probabilities)
        yield span, torch._softmax_backward_data(span.square(grad_kept), result, -1, result.dtype)
