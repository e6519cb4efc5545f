"""Predicted numbers of two models that differ, by more than rounding."""

from __future__ import annotations

import numpy as np
import pytest

from ampft.comparison.analysis.run_predictions import numbers_differ


@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e6])
def test_numbers_in_float32_are_the_same_to_rounding(spread):
    """A small number among large ones is rounded as they are."""
    rng = np.random.default_rng(0)
    numbers = np.append(rng.normal(0, spread, 200), 1e-9 * spread)
    rounded = numbers + spread * rng.uniform(-1, 1, 201) * 2.0**-20
    assert not numbers_differ(numbers, rounded, spread).any()
    assert not numbers_differ(numbers, numbers.astype(np.float32), spread).any()
    moved = numbers + np.where(np.arange(201) % 3 == 0, 0.001 * spread, 0)
    assert numbers_differ(numbers, moved, spread).tolist() == [i % 3 == 0 for i in range(201)]
