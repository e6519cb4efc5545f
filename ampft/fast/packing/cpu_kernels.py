"""Dropout with masks that are fast to draw on a CPU, and attention with that dropout.

On a CPU torch draws one Bernoulli variable per element, at four nanoseconds each. Together the
masks took 13 % of a training step of MiniLM without padding. Here one 64-bit draw of torch's own
generator decides about four elements.

torch's fused attention for CPUs has no dropout. Its fallback multiplies in float32 and draws
dropout masks one element at a time. Here attention has its own backward pass, in groups of
sequences of similar length, and the products run in the dtype of the operands, through `bmm`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ampft.fast.packing.layout import (
    AttentionOperands,
    AttentionOptions,
    PackedLayout,
    SequenceGroup,
)
from ampft.precision.compilation import uncompiled

# 16 random bits per element: the probability is rounded to a multiple of 2**-16. The scale is
# computed from the rounded probability, which preserves the expectation.
_LEVELS = 2**16
# Bit patterns of 1.0, which turn an integer 0 or 1 into a mask without a conversion.
_ONE_BITS = {torch.float16: 0x3C00, torch.bfloat16: 0x3F80}


def realised_probability(p: float) -> float:
    """Return the probability that `keep_mask` drops an element: `p` rounded to 2**-16."""
    return round(p * _LEVELS) / _LEVELS


def keep_mask(count: int, p: float, dtype: torch.dtype) -> torch.Tensor:
    """Draw the mask of the elements that are kept, from torch's default CPU generator.

    Args:
        count: Number of elements.
        p: Probability that an element is dropped, in [0, 1).

    Returns:
        (count,) zeros and ones: float16 for float16, and otherwise bfloat16, which multiplication
        promotes.
    """
    mask_dtype = torch.float16 if dtype == torch.float16 else torch.bfloat16
    words = torch.empty(math.ceil(count / 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:count]
    is_kept = bits.ge_(round(p * _LEVELS) - _LEVELS // 2)
    return is_kept.mul_(_ONE_BITS[mask_dtype]).view(mask_dtype)


FillersOf: TypeAlias = Callable[[torch.Tensor], int]
"""Returns the number of tokens at the end of a (1, N, H) row that are in no text."""


def dropout(inputs: torch.Tensor, p: float, fillers_of: FillersOf = lambda _: 0) -> torch.Tensor:
    """Zero each element with probability `p` and scale the rest by 1 / (1 - p).

    Args:
        inputs: Floating-point tensor of any shape.
        p: Probability in [0, 1], rounded to a multiple of 2**-16.
        fillers_of: Function that returns how many tokens are dropped without drawing a mask.

    Returns:
        A tensor with the shape and dtype of `inputs`. Dropped infinities and NaN become NaN, as in
        torch, so that dropout does not hide them.
    """
    is_fast = inputs.device.type == "cpu" and inputs.dtype in _FAST_DTYPES and 0 < p < 1
    if not is_fast or realised_probability(p) in (0, 1):
        return functional.dropout(inputs, p, training=True)
    return _fast_dropout(inputs, p, fillers_of)


# Compiled code calls this as it is. As an operator of a compiled graph it would be wrong: torch
# (2.13) merges two equal calls of a random operator that it does not know, and so their masks.
@uncompiled
def _fast_dropout(inputs: torch.Tensor, p: float, fillers_of: FillersOf) -> torch.Tensor:
    return _Dropout.apply(inputs, p, fillers_of(inputs))


_FAST_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, p: float, fillers: int) -> torch.Tensor:
        dropped = fillers * inputs.shape[-1]
        mask = keep_mask(inputs.numel() - dropped, p, inputs.dtype)
        mask = (functional.pad(mask, (0, dropped)) if dropped else mask).view(inputs.shape)
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - realised_probability(p))
        return (inputs * mask).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return (grad * mask).mul_(ctx.scale), None, None


def install_fast_dropout(
    module: nn.Module, fillers_of: FillersOf = lambda _: 0
) -> Callable[[], None] | None:
    """Make every `nn.Dropout` in `module` draw its masks fast.

    Args:
        module: Module whose dropout layers change; their class, probability and training state do
            not.
        fillers_of: Same as in `dropout`.

    Returns:
        A function that reverts the change; None if all layers draw fast already.
    """
    changed = [
        layer
        for layer in module.modules()
        if type(layer) is nn.Dropout and "forward" not in layer.__dict__
    ]
    for layer in changed:
        layer.forward = partial(_forward, layer, fillers_of)  # type: ignore[method-assign]

    def undo() -> None:
        for layer in changed:
            layer.__dict__.pop("forward", None)

    return undo if changed else None


def _forward(layer: nn.Dropout, fillers_of: FillersOf, inputs: torch.Tensor) -> torch.Tensor:
    return dropout(inputs, layer.p, fillers_of) if layer.training and layer.p > 0 else inputs


@dataclass(frozen=True, eq=False)
class GroupSpan:
    """Position of one group in the buffers of `AttentionPlan`."""

    sequences: int  # Sequences times heads, b.
    longest: int  # Cells of each sequence, L.
    first_cell: int  # Index of the group's first cell.
    first_score: int  # Index of the group's first score.
    # (c or 1, 1, 1 or L, columns) bool, the masked keys in the last columns of the scores; earlier
    # columns are not masked. `None` if no key is masked.
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
    """How a row of tokens is laid out for grouped attention, for all layers."""

    # (cells * heads,) int64, row of the (N * heads, d) operands for each cell, in (group, sequence,
    # head, column) order; a padding cell repeats the first token of its sequence.
    gather: torch.Tensor
    scatter: torch.Tensor  # (attended tokens * heads,) int64, inverse of `gather`.
    padding: torch.Tensor  # int64, indices of the padding cells.
    spans: tuple[GroupSpan, ...]  # Position of each group.
    score_count: int  # Number of scores in all groups.


def attention_plan(layout: PackedLayout, heads: int, options: AttentionOptions) -> AttentionPlan:
    """Return the plan of `layout`, cached for each number of heads and rule of visible keys."""
    key = (heads, options.sliding_window, options.causal)
    if isinstance(plan := layout.plans.get(key), AttentionPlan):
        return plan
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
    scatter = torch.empty(layout.attended * heads, dtype=torch.int64)
    scatter[gather[token_cells]] = token_cells
    padding = (~real).nonzero().squeeze(1)
    plan = AttentionPlan(gather, scatter, padding, tuple(spans), score_count)
    layout.plans[key] = plan
    return plan


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


def dropout_attention(
    rows: AttentionOperands, packing: PackedLayout, options: AttentionOptions
) -> torch.Tensor:
    """Compute attention of float32 or bfloat16 operands on a CPU, with any options.

    Scores and probabilities are rounded to the dtype of the operands, and softmax sums in float32,
    as in transformers' `eager` attention under autocast. The scores' scaling factor is
    applied to the queries, and dropout's factor to the values, because these operands are smaller.
    """
    plan = attention_plan(packing, rows.query.shape[1], options)
    return _GroupedAttention.apply(*rows, options.position_bias, plan, options)


class _GroupedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
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
            group_scores = span.score_matrices(scores)
            torch.bmm(span.cells(queries), span.cells(keys).mT, out=group_scores)
            if position_bias is not None:
                heads, length = position_bias.shape[0], span.longest
                group_scores.unflatten(0, (-1, heads)).add_(position_bias[:, :length, :length])
            if span.masked is not None:
                by_sequence = group_scores.unflatten(0, (span.masked.shape[0], -1))
                by_sequence[..., -span.masked.shape[-1] :].masked_fill_(span.masked, -math.inf)
            torch.softmax(group_scores, -1, out=span.score_matrices(probabilities))
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
        return _to_row(attended, plan, query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
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
        for span in plan.spans:
            result, grads = span.score_matrices(probabilities), span.score_matrices(grad_weights)
            grad_scores = torch._softmax_backward_data(grads, result, -1, result.dtype)
            if grad_bias is not None:
                by_sequence = grad_scores.unflatten(0, (-1, grad_bias.shape[0]))
                length = span.longest
                grad_bias[:, :length, :length] += by_sequence.sum(0, dtype=torch.float32)
            torch.bmm(grad_scores, span.cells(keys), out=span.cells(grad_queries))
            torch.bmm(grad_scores.mT, span.cells(queries), out=span.cells(grad_keys))
        grad_queries.mul_(ctx.query_scale)
        results = (grad_queries, grad_keys, grad_values)
        rows = (_to_row(tensor, plan, grad.shape) for tensor in results)
        return (*rows, grad_bias, None, None)


def _to_cells(row: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    return row.reshape(-1, row.shape[-1]).index_select(0, plan.gather)


def _to_row(cells: torch.Tensor, plan: AttentionPlan, shape: torch.Size) -> torch.Tensor:
    """Return the (N, heads, d) row of the cells, with zeros for tokens that are in no group."""
    row = cells.new_empty((shape[0] * shape[1], shape[2]))
    attended = len(plan.scatter)
    torch.index_select(cells, 0, plan.scatter, out=row[:attended])
    row[attended:] = 0
    return row.view(shape)
