"""Attention with its own backward pass, for groups of sequences of similar length on a CPU.

torch's fused CPU kernel has no dropout. Its fallback multiplies in float32 and draws dropout masks
one element at a time. Here the products run in the dtype of the operands, through `bmm`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.autograd.function import FunctionCtx, once_differentiable

from ampft.models.packing.dropout import keep_mask, realised_probability
from ampft.models.packing.layout import AttentionOptions, PackedLayout, Rows, SequenceGroup


@dataclass(frozen=True, eq=False)
class GroupSpan:
    """Position of one group in the buffers of `AttentionPlan`.

    Attributes:
        sequences: Sequences times heads, b.
        longest: Cells of each sequence, L.
        first_cell: Index of the group's first cell.
        first_score: Index of the group's first score.
        masked: (c or 1, 1, 1 or L, columns) bool, the masked keys in the last columns of the
            scores; earlier columns are not masked. `None` if no key is masked.
    """

    sequences: int
    longest: int
    first_cell: int
    first_score: int
    masked: torch.Tensor | None

    def cells(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the (b, L, d) view of the group in a (cells * heads, d) buffer."""
        count = self.sequences * self.longest
        return rows.narrow(0, self.first_cell, count).view(self.sequences, self.longest, -1)

    def score_matrices(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the (b, L, L) view of the group in a flat buffer of scores."""
        count = self.sequences * self.longest**2
        return flat.narrow(0, self.first_score, count).view(self.sequences, self.longest, -1)


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """How a row of tokens is laid out for grouped attention, for all layers.

    Attributes:
        gather: (cells * heads,) int64, row of the (N * heads, d) operands for each cell, in
            (group, sequence, head, column) order; a padding cell repeats the first token of its
            sequence.
        scatter: (N * heads,) int64, inverse of `gather`.
        padding: (cells * heads - N * heads,) int64, indices of the padding cells.
        spans: Position of each group.
        score_count: Number of scores in all groups.
    """

    gather: torch.Tensor
    scatter: torch.Tensor
    padding: torch.Tensor
    spans: tuple[GroupSpan, ...]
    score_count: int


def attention_plan(layout: PackedLayout, heads: int, options: AttentionOptions) -> AttentionPlan:
    """Return the plan of `layout`, cached for each number of heads and rule of visible keys."""
    key = (heads, options.sliding_window, options.causal)
    if key not in layout.plans:
        layout.plans[key] = _make_plan(layout, heads, options)
    plan = layout.plans[key]
    assert isinstance(plan, AttentionPlan)
    return plan


def _make_plan(layout: PackedLayout, heads: int, options: AttentionOptions) -> AttentionPlan:
    head = torch.arange(heads)[:, None]
    spans, gathers, reals = [], [], []
    cell_count = score_count = 0
    for group in layout.groups:
        cells, real, _ = group.cells()
        gathers.append(((group.start + cells)[:, None, :] * heads + head).flatten())
        reals.append(real[:, None, :].expand(-1, heads, -1).flatten())
        sequences = len(group.lengths) * heads
        masked = _masked_keys(group, real, options)
        spans.append(GroupSpan(sequences, group.longest, cell_count, score_count, masked))
        cell_count += sequences * group.longest
        score_count += sequences * group.longest**2
    gather, real = torch.cat(gathers), torch.cat(reals)
    token_cells = real.nonzero().squeeze(1)
    scatter = torch.empty(layout.total * heads, dtype=torch.int64)
    scatter[gather[token_cells]] = token_cells
    padding = (~real).nonzero().squeeze(1)
    return AttentionPlan(gather, scatter, padding, tuple(spans), score_count)


def _masked_keys(
    group: SequenceGroup, real: torch.Tensor, options: AttentionOptions
) -> torch.Tensor | None:
    visible = options.visible_positions(group.longest, real.device)
    if visible is None:
        shortest = group.lengths[0]
        return None if group.is_even else ~real[:, None, None, shortest:]
    # A token that attends only to earlier ones of its sequence cannot see the padding.
    if group.is_even or options.causal:
        return ~visible[None, None]
    # Padded queries attend to all keys, because softmax over no keys would be NaN.
    return ~((visible & real[:, None, :]) | ~real[:, :, None])[:, None]


def dropout_attention(rows: Rows, packing: PackedLayout, options: AttentionOptions) -> torch.Tensor:
    """Compute attention of float32 or bfloat16 operands on a CPU, with any options.

    Scores and probabilities are rounded to the dtype of the operands, and softmax sums in float32,
    as in transformers' `eager` attention under autocast. The scores' scaling factor is
    applied to the queries, and dropout's factor to the values, because these operands are smaller.
    """
    plan = attention_plan(packing, rows.query.shape[1], options)
    result: torch.Tensor = _GroupedAttention.apply(*rows, options.position_bias, plan, options)
    return result


class _Context(FunctionCtx):
    plan: AttentionPlan
    query_scale: float
    value_scale: float
    bias_shape: torch.Size | None
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[torch.Tensor, ...]


class _GroupedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        position_bias: torch.Tensor | None,
        plan: AttentionPlan,
        options: AttentionOptions,
    ) -> torch.Tensor:
        ctx.plan, ctx.query_scale = plan, options.scale
        ctx.bias_shape = None if position_bias is None else position_bias.shape
        ctx.value_scale = 1 / (1 - realised_probability(options.dropout))
        queries, keys, values = (_to_cells(tensor, plan) for tensor in (query, key, value))
        queries.mul_(options.scale)
        scores = queries.new_empty(plan.score_count)
        probabilities = torch.empty_like(scores)
        for span in plan.spans:
            _softmax_scores(span, queries, keys, position_bias, scores, probabilities)
        mask, weights = None, probabilities
        if options.dropout > 0:
            values.mul_(ctx.value_scale)
            mask = keep_mask(plan.score_count, options.dropout, scores.dtype)
            weights = torch.mul(probabilities, mask, out=scores)
        attended = torch.empty_like(queries)
        for span in plan.spans:
            torch.bmm(span.score_matrices(weights), span.cells(values), out=span.cells(attended))
        saved = (queries, keys, values, probabilities)
        ctx.save_for_backward(*saved, *(() if mask is None else (mask,)))
        return attended.index_select(0, plan.scatter).view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        queries, keys, values, probabilities, *masks = ctx.saved_tensors
        plan = ctx.plan
        # Padded queries must not contribute to the gradients of the keys and values.
        grad_cells = _to_cells(grad, plan).index_fill_(0, plan.padding, 0)
        weights = torch.mul(probabilities, masks[0]) if masks else probabilities
        grad_queries, grad_keys, grad_values = (torch.empty_like(queries) for _ in range(3))
        grad_weights = torch.empty_like(probabilities)
        for span in plan.spans:
            grads = span.cells(grad_cells)
            torch.bmm(span.score_matrices(weights).mT, grads, out=span.cells(grad_values))
            torch.bmm(grads, span.cells(values).mT, out=span.score_matrices(grad_weights))
        if masks:
            grad_weights.mul_(masks[0])
            grad_values.mul_(ctx.value_scale)
        bias_shape = ctx.bias_shape if ctx.needs_input_grad[3] else None
        grad_bias = None if bias_shape is None else torch.zeros(bias_shape)
        for span, grad_scores in _score_gradients(plan, grad_weights, probabilities):
            if grad_bias is not None:
                by_sequence = grad_scores.unflatten(0, (-1, grad_bias.shape[0]))
                length = span.longest
                grad_bias[:, :length, :length] += by_sequence.sum(0, dtype=torch.float32)
            torch.bmm(grad_scores, span.cells(keys), out=span.cells(grad_queries))
            torch.bmm(grad_scores.mT, span.cells(queries), out=span.cells(grad_keys))
        grad_queries.mul_(ctx.query_scale)
        results = (grad_queries, grad_keys, grad_values)
        rows = (tensor.index_select(0, plan.scatter).view(grad.shape) for tensor in results)
        return (*rows, grad_bias, None, None)


def _to_cells(row: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    return row.reshape(-1, row.shape[-1]).index_select(0, plan.gather)


def _softmax_scores(
    span: GroupSpan,
    queries: torch.Tensor,
    keys: torch.Tensor,
    position_bias: torch.Tensor | None,
    scores: torch.Tensor,
    probabilities: torch.Tensor,
) -> None:
    group_scores = span.score_matrices(scores)
    torch.bmm(span.cells(queries), span.cells(keys).mT, out=group_scores)
    if position_bias is not None:
        heads, length = position_bias.shape[0], span.longest
        group_scores.unflatten(0, (-1, heads)).add_(position_bias[:, :length, :length])
    if span.masked is not None:
        by_sequence = group_scores.unflatten(0, (span.masked.shape[0], -1))
        by_sequence[..., -span.masked.shape[-1] :].masked_fill_(span.masked, -math.inf)
    torch.softmax(group_scores, -1, out=span.score_matrices(probabilities))


def _score_gradients(
    plan: AttentionPlan, grad_weights: torch.Tensor, probabilities: torch.Tensor
) -> Iterator[tuple[GroupSpan, torch.Tensor]]:
    for span in plan.spans:
        result, grad = span.score_matrices(probabilities), span.score_matrices(grad_weights)
        yield span, torch._softmax_backward_data(grad, result, -1, result.dtype)
