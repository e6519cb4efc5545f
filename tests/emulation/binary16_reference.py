"""Reference for binary16: numpy's rounding from float64, and the bound of an emulated product."""

import numpy as np
import torch
from torch import Tensor

FLOAT32_UNIT = 2.0**-24  # half a unit in the last place of float32, relative
SMALLEST = 2.0**-24  # smallest subnormal of binary16
OVERFLOW = 65520.0  # from here on the nearest binary16 is infinity


def rounded(values: Tensor) -> Tensor:
    """Round float64 to binary16 once, to nearest even (torch's double.half() rounds twice)."""
    with np.errstate(over="ignore"):
        return torch.from_numpy(values.double().numpy().astype(np.float16))


def half_unit(values: Tensor) -> Tensor:
    """Half a unit in the last place of binary16 at float64 `values`."""
    exponent = torch.floor(torch.log2(values.abs().clamp(min=2.0**-14)))
    return 2.0 ** (exponent - 11)


def product_bound(reference: Tensor, magnitudes: Tensor, terms: Tensor) -> Tensor:
    """Half a unit of binary16 plus K * 2^-24 * sum |a_i b_i|, elementwise, float64.

    The unit is that of the largest possible float32 sum, which may lie above a power of two.
    """
    sum_error = terms * FLOAT32_UNIT * magnitudes
    return half_unit(reference.abs() + sum_error) + sum_error


def largest_share(result: Tensor, reference: Tensor, bound: Tensor) -> float:
    """The largest error as a share of its bound; at most 1 when the bound holds."""
    return float(((result.double() - reference).abs() / bound).max())
