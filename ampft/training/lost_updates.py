"""Which share of the weight updates rounding loses: the price of 16-bit weights, measured."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampft.training.bfloat16_adamw import COMPENSATION

MEASURED_EVERY = 10
# Of more weights than this every 101st of each tensor is looked at: all would cost memory and time.
# A prime, so that it walks through the columns of any matrix.
SAMPLED_FROM, STRIDE = 1_000_000, 101


class _Seen(NamedTuple):
    group: dict[str, Any]
    parameter: Tensor
    before: list[Tensor]


def step_measuring_lost_updates(optimizer: Any, *, step: int) -> float | None:
    """Step, and return the share of weight updates that rounding lost.

    An update is lost when it is not zero and yet what is stored of the weight stays as it was: the
    weight, and with Kahan's summation its compensation too. Under stochastic rounding the others
    make up for it in the mean.

    Args:
        optimizer: AdamW, prepared or not.
        step: Number of this step, from 1.

    Returns:
        Lost updates over all that are not zero, 0 to 1. None where nothing is measured: the
        weights are not bfloat16, the step is no multiple of `MEASURED_EVERY`, or nothing moves.
    """
    plain: Optimizer = getattr(optimizer, "optimizer", optimizer)
    if step % MEASURED_EVERY or not _stores_bfloat16(plain):
        optimizer.step()
        return None
    weights = sum(p.numel() for group in plain.param_groups for p in group["params"])
    stride = STRIDE if weights > SAMPLED_FROM else 1
    seen = [
        _Seen(group, parameter, [t.clone() for t in _stored(plain, parameter, stride)])
        for group in plain.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    optimizer.step()
    counts = torch.stack([entry for one in seen for entry in _counts(plain, one, stride)])
    lost, moved = counts.view(-1, 2).sum(dim=0).tolist()
    return lost / moved if moved else None


def _stores_bfloat16(optimizer: Optimizer) -> bool:
    return all(
        parameter.dtype == torch.bfloat16
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _stored(optimizer: Optimizer, parameter: Tensor, stride: int) -> list[Tensor]:
    """Return the parts of a weight's stored value."""
    compensation = optimizer.state[parameter].get(COMPENSATION)
    parts = [parameter.detach(), *([] if compensation is None else [compensation])]
    return [part.reshape(-1)[::stride] for part in parts]


def _counts(optimizer: Optimizer, seen: _Seen, stride: int) -> Iterator[Tensor]:
    """Yield how many updates were lost, and how many there were."""
    group, parameter = seen.group, seen.parameter
    # The first moment decides: the root it is divided by is positive.
    moved = optimizer.state[parameter]["exp_avg"].reshape(-1)[::stride] != 0
    if group["weight_decay"] != 0:
        moved |= seen.before[0] != 0
    moved &= group["lr"] != 0
    kept = torch.ones_like(moved)
    # A compensation that the step has made was zero before it.
    now = _stored(optimizer, parameter, stride)
    for before, after in zip_longest(seen.before, now, fillvalue=0):
        kept &= after == before
    yield (kept & moved).sum()
    yield moved.sum()
