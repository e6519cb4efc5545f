"""Measures the share of weight updates that rounding loses, the cost of 16-bit weights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampft.training.bfloat16_adamw import COMPENSATION

MEASURED_EVERY = 10
# Models with more weights than this are sampled, to save memory and time: every 101st weight of
# each tensor. The stride is prime, so that it visits all columns of a matrix.
MIN_SAMPLED_WEIGHTS, STRIDE = 1_000_000, 101


class _Snapshot(NamedTuple):
    group: dict[str, Any]
    parameter: Tensor
    before: list[Tensor]


def step_measuring_lost_updates(optimizer: Any, *, step: int) -> float | None:
    """Apply an optimizer step, and return the share of weight updates that rounding lost.

    An update is lost if it is not zero but leaves the stored weight unchanged, including its
    compensation in Kahan summation. With stochastic rounding the other updates compensate for
    lost ones on average.

    Args:
        optimizer: AdamW, prepared or not.
        step: Number of this step, counted from 1.

    Returns:
        Number of lost updates divided by number of non-zero updates, 0 to 1. None if nothing is
        measured: the weights are not bfloat16, the step is not a multiple of `MEASURED_EVERY`, or
        all updates are zero.
    """
    plain: Optimizer = getattr(optimizer, "optimizer", optimizer)
    if step % MEASURED_EVERY or not _stores_bfloat16(plain):
        optimizer.step()
        return None
    weights = sum(p.numel() for group in plain.param_groups for p in group["params"])
    stride = STRIDE if weights > MIN_SAMPLED_WEIGHTS else 1
    snapshots = [
        _Snapshot(group, parameter, [t.clone() for t in _stored(plain, parameter, stride)])
        for group in plain.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    optimizer.step()
    counts = torch.stack([count for entry in snapshots for count in _counts(plain, entry, stride)])
    lost, nonzero = counts.view(-1, 2).sum(dim=0).tolist()
    return lost / nonzero if nonzero else None


def _stores_bfloat16(optimizer: Optimizer) -> bool:
    return all(
        parameter.dtype == torch.bfloat16
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _stored(optimizer: Optimizer, parameter: Tensor, stride: int) -> list[Tensor]:
    """Return the tensors that together store a weight."""
    compensation = optimizer.state[parameter].get(COMPENSATION)
    parts = [parameter.detach(), *([] if compensation is None else [compensation])]
    return [part.reshape(-1)[::stride] for part in parts]


def _counts(optimizer: Optimizer, snapshot: _Snapshot, stride: int) -> Iterator[Tensor]:
    """Yield the numbers of lost updates and of non-zero updates."""
    group, parameter = snapshot.group, snapshot.parameter
    # An update is zero if the first moment is, because its divisor is positive.
    nonzero = optimizer.state[parameter]["exp_avg"].reshape(-1)[::stride] != 0
    if group["weight_decay"] != 0:
        nonzero |= snapshot.before[0] != 0
    nonzero &= group["lr"] != 0
    unchanged = torch.ones_like(nonzero)
    # A compensation that this step created counts as zero before it.
    now = _stored(optimizer, parameter, stride)
    for before, after in zip_longest(snapshot.before, now, fillvalue=0):
        unchanged &= after == before
    yield (unchanged & nonzero).sum()
    yield nonzero.sum()
