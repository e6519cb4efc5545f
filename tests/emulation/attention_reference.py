"""Attention in float64, and an error bound derived from the roundings of its binary16 form."""

import math
from dataclasses import dataclass

import torch
from binary16_reference import FLOAT32_UNIT, half_unit
from torch import Tensor

QUERIES, KEYS, WIDTH = 13, 19, 8
SLACK = 16  # float32 operations between two sums (scale, mask, exp, division, dropout)


@dataclass(frozen=True)
class Case:
    leading: tuple[int, ...] = (2, 3)
    mask: str | None = None
    dropout_p: float = 0.0
    scale: float | None = None


CASES = {
    "plain": Case(),
    "three_dimensions": Case(leading=(4,)),
    "five_dimensions": Case(leading=(2, 1, 3)),
    "two_dimensions": Case(leading=()),
    "boolean_mask": Case(mask="boolean"),
    "masked_row": Case(mask="masked_row"),
    "additive_mask": Case(mask="additive"),
    "causal": Case(mask="causal"),
    "dropout": Case(dropout_p=0.3),
    "dropout_and_mask": Case(mask="boolean", dropout_p=0.1),
    "scale": Case(scale=0.7),
    "everything_dropped": Case(dropout_p=1.0),
}


def mask_of(case: Case) -> Tensor | None:
    generator = torch.Generator().manual_seed(7)
    kept = torch.rand(QUERIES, KEYS, generator=generator) > 0.3
    if case.mask == "boolean":
        return kept
    if case.mask == "masked_row":
        return kept.index_fill(0, torch.tensor([2]), False)
    if case.mask == "additive":
        return torch.randn(3, QUERIES, KEYS, generator=generator).half()
    return torch.ones(QUERIES, KEYS).tril().bool() if case.mask == "causal" else None


def operands_of(case: Case, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(*case.leading, length, WIDTH) for length in (QUERIES, KEYS, KEYS, QUERIES)]
    return [torch.randn(shape, generator=generator).half() for shape in shapes]


def dropout_factors(case: Case, shape: torch.Size) -> Tensor:
    """The factors that attention multiplies its weights by after `torch.manual_seed(11)`."""
    torch.manual_seed(11)
    if case.dropout_p == 0:
        return torch.ones(shape).double()
    flat = torch.ones(shape).flatten(0, -3)
    kept = torch.native_dropout(flat, case.dropout_p, True)[1].view(shape)
    return kept.double() * (0.0 if case.dropout_p == 1 else 1 / (1 - case.dropout_p))


def additive_mask(mask: Tensor | None) -> Tensor | float:
    if mask is None:
        return 0.0
    if mask.dtype is not torch.bool:
        return mask.double()
    return torch.zeros(mask.shape).double().masked_fill(~mask, -math.inf)


def references(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    """Output, dQ, dK, dV in float64 and their error bounds.

    Every stage contributes K * 2^-24 * sum |a_i b_i| for its float32 sums. Each rounded operand
    (probabilities, gradients of the scores) contributes half a unit of binary16 times its factor,
    and the result contributes half a unit.
    """
    query, key, value, grad = (operand.double() for operand in operands_of(case))
    scale = WIDTH**-0.5 if case.scale is None else case.scale
    scores = query @ key.mT * scale + additive_mask(mask_of(case))
    weights = scores.softmax(-1).nan_to_num(0)
    factors = dropout_factors(case, scores.shape if scores.dim() > 2 else (1, *scores.shape))
    factors = factors.view(scores.shape)
    dropped = weights * factors
    output = dropped @ value

    unit = FLOAT32_UNIT
    magnitude = (query.abs() @ key.abs().mT) * abs(scale) + scores.nan_to_num(0, 0, 0).abs()
    score_error = (WIDTH + SLACK) * unit * magnitude.amax(-1, keepdim=True)
    relative = 2 * score_error + (KEYS + SLACK) * unit
    weight_error = half_unit(dropped) + dropped * relative
    output_error = weight_error @ value.abs() + KEYS * unit * (dropped @ value.abs())

    grad_value = dropped.mT @ grad
    value_error = weight_error.mT @ grad.abs() + QUERIES * unit * (dropped.mT @ grad.abs())

    grad_weights = grad @ value.mT * factors
    row = (grad_weights * weights).sum(-1, keepdim=True)
    row_magnitude = (grad_weights.abs() * weights).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - row)
    product_error = (WIDTH + SLACK) * unit * (grad.abs() @ value.abs().mT) * factors
    row_error = (product_error * weights).sum(-1, keepdim=True) + row_magnitude * (
        relative + KEYS * unit
    )
    difference = grad_weights.abs() + row_magnitude
    grad_score_error = weights * (
        product_error + row_error + difference * (relative + SLACK * unit)
    )
    grad_score_error = grad_score_error + half_unit(grad_scores.abs() + grad_score_error)

    def projected(scores_side: Tensor, error: Tensor, other: Tensor, terms: int) -> Tensor:
        sums = error @ other.abs() + terms * unit * (scores_side.abs() @ other.abs())
        return abs(scale) * sums * (1 + SLACK * unit)

    results = [output, grad_scores @ key * scale, grad_scores.mT @ query * scale, grad_value]
    errors = [
        output_error,
        projected(grad_scores, grad_score_error, key, KEYS),
        projected(grad_scores.mT, grad_score_error.mT, query, QUERIES),
        value_error,
    ]
    bounds = [
        error + half_unit(result.abs() + error)
        for result, error in zip(results, errors, strict=True)
    ]
    return results, bounds
