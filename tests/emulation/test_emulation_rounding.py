"""The limits of binary16, tested with exact sums: overflow, subnormals and ties."""

import numpy as np
import pytest
import torch
from binary16_reference import OVERFLOW, SMALLEST, rounded
from torch import Tensor
from torch.nn import functional

LIMITS = [
    (65504.0, 65504.0),
    (65519.0, 65504.0),
    (OVERFLOW, float("inf")),
    (-OVERFLOW, float("-inf")),
    (131072.0, float("inf")),
    (SMALLEST, SMALLEST),
    (SMALLEST * 1.5, SMALLEST * 2),
    (SMALLEST * 2.5, SMALLEST * 2),
    (SMALLEST * 1023, SMALLEST * 1023),
    (SMALLEST / 2, 0.0),
    (-SMALLEST / 2, 0.0),
    (SMALLEST / 4, 0.0),
    (SMALLEST * (0.5 + 2**-11), SMALLEST),
    (2048.0 + 1, 2048.0),
    (2048.0 + 3, 2052.0),
]


def as_sum_of_products(value: float) -> tuple[Tensor, Tensor]:
    """Two float16 vectors of length 4 whose exact dot product is `value`."""
    coarse = float(np.float16(value / 4)) * 4 if abs(value) > 1 else value
    if abs(value) > 1:
        return torch.tensor([coarse / 4, 0, value - coarse, 0]).half(), torch.tensor(
            [4.0, 1, 1, 1]
        ).half()
    return torch.tensor([value * 2**12, 0, 0, 0]).half(), torch.tensor([2**-12, 1, 1, 1]).half()


@pytest.mark.parametrize(("exact", "expected"), LIMITS)
def test_overflow_subnormals_flush_and_ties(emulation: None, exact: float, expected: float) -> None:
    left, right = as_sum_of_products(exact)
    assert float(left.double() @ right.double()) == exact
    assert float(rounded(torch.tensor([exact]))) == expected
    row, column = left[None], right[:, None]
    zero = torch.zeros(1).half()
    results = [
        row @ column,
        torch.bmm(row[None], column[None]),
        torch.addmm(zero, row, column),
        torch.baddbmm(zero[None, None], row[None], column[None]),
        functional.conv1d(row.t()[None], column[None, :, :], zero),
    ]
    assert [float(result) for result in results] == [expected] * len(results)


def test_the_bias_is_added_before_the_only_rounding(emulation: None) -> None:
    """2048 + 1 + 1 is 2050 if rounded once, and 2048 if rounded after each addition."""
    row, column = torch.tensor([[2048.0, 1.0]]).half(), torch.ones(2, 1).half()
    bias = torch.ones(1).half()
    assert float(torch.addmm(bias, row, column)) == 2050
    assert float(row @ column + bias) == 2048


def test_torch_rounds_float64_twice_and_numpy_once() -> None:
    """Shown just above the midpoint of 1 and 1 + 2^-10; hence numpy is the reference."""
    above = torch.tensor([1 + 2.0**-11 + 2.0**-30], dtype=torch.float64)
    assert float(rounded(above)) == 1 + 2.0**-10
    assert float(above.half()) == 1
