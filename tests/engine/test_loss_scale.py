"""The gradient at the largest loss scale at which it is finite."""

from __future__ import annotations

import math

import pytest
import torch

from ampft.engine.step import ScaledGradient, descending_loss_scales, first_finite_gradient


def computing(limit: float, *, loss: float = 1.0):
    """Return a function whose gradient is finite up to a scale, and the scales it was called at."""
    called: list[float] = []

    def compute(scale: float) -> ScaledGradient:
        called.append(scale)
        value = 1.0 if scale <= limit else math.inf
        return ScaledGradient(loss, {"a": torch.ones(2), "b": torch.tensor([0.0, value])}, scale)

    return compute, called


@pytest.mark.parametrize(
    ("initial", "factor", "scales"),
    [
        (None, 2.0, (1.0,)),
        (8.0, 2.0, (8.0, 4.0, 2.0, 1.0)),
        (2.0**16, 2.0**4, (65536.0, 4096.0, 256.0, 16.0, 1.0)),
        (12.0, 2.0, (12.0, 6.0, 3.0, 1.5)),
        (0.5, 2.0, (0.5,)),
    ],
)
def test_scales_fall_as_far_as_training_lets_them(initial, factor, scales):
    assert descending_loss_scales(initial, factor=factor) == scales


@pytest.mark.parametrize(("limit", "found"), [(100.0, 8.0), (2.0, 2.0), (1.0, 1.0)])
def test_the_first_finite_gradient_is_taken(limit, found):
    compute, called = computing(limit)
    result = first_finite_gradient(compute, descending_loss_scales(8.0))
    assert (result.scale, result.is_finite) == (found, True)
    assert called == [scale for scale in (8.0, 4.0, 2.0, 1.0) if scale >= found]


def test_the_last_scale_is_the_answer_if_none_gives_a_finite_gradient():
    compute, called = computing(0.0)
    result = first_finite_gradient(compute, descending_loss_scales(8.0))
    assert (result.scale, result.is_finite) == (1.0, False)
    assert called == [8.0, 4.0, 2.0, 1.0]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_no_scale_helps_a_loss_that_is_not_finite(loss):
    compute, called = computing(100.0, loss=loss)
    assert not first_finite_gradient(compute, descending_loss_scales(8.0)).is_finite
    assert called == [8.0]
