"""The bounds in docs/precisions.md, against simulations of what a GPU does otherwise."""

import math

import numpy as np
import pytest
import torch

from ampft.emulation import Emulation

U, V = 2.0**-11, 2.0**-24
CASES = [(8, 0), (64, 1), (384, 2), (384, 3), (1536, 4)]


def operands(count, seed):
    """Binary16 numbers of very different sizes, whose products partly cancel."""
    random = np.random.default_rng(seed)
    sizes = 2.0 ** random.integers(-6, 5, size=(2, count))
    left, right = (random.standard_normal((2, count)) * sizes).astype(np.float16)
    return left.astype(np.float64), right.astype(np.float64)


def emulated_sum(left, right):
    """The float32 sum of the emulation, before its only rounding."""
    rows = [torch.from_numpy(each).float() for each in (left, right)]
    return float(torch.mm(rows[0][None], rows[1][:, None]))


def summed(terms):
    """Sum in float32, one term after another."""
    total = np.float32(0)
    for term in terms.astype(np.float32):
        total += term
    return float(total)


def in_any_order(products):
    return summed(np.random.default_rng(9).permutation(products))


def split_k(products):
    return summed(np.array([summed(part) for part in np.array_split(products, 4)]))


def truncating(products, *, block=4, bits=24):
    """Blocks of products and the sum so far, aligned to the largest and cut to `bits`."""
    total = 0.0
    for start in range(0, len(products), block):
        terms = [total, *products[start : start + block]]
        largest = max(abs(term) for term in terms)
        if largest == 0:
            continue
        unit = 2.0 ** (math.frexp(largest)[1] - bits)
        exact = sum(math.trunc(term / unit) for term in terms) * unit
        kept = 2.0 ** (math.frexp(exact)[1] - bits) if exact else 1.0
        total = math.trunc(exact / kept) * kept
    return total


@pytest.mark.parametrize(("count", "seed"), CASES)
@pytest.mark.parametrize(
    ("gpu", "factor"),
    [(in_any_order, 2), (split_k, 2), (truncating, 4)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_products(gpu, factor, count, seed):
    left, right = operands(count, seed)
    products = left * right  # exact in float64, and even in float32
    size = float(np.abs(products).sum())
    difference = abs(gpu(products) - emulated_sum(left, right))
    assert difference <= factor * count * V * size


@pytest.mark.parametrize("count", [64, 384, 1536])
def test_truncation_needs_its_factor(count):
    """The negative control: sums of equal terms, of which truncation loses a bit in each block."""
    products = np.full(count, 1 + 2.0**-10) ** 2
    lost = float(products.sum()) - truncating(products, bits=13)
    assert lost > 4 * count * V * float(products.sum())
    assert truncating(products) <= float(products.sum()), "truncation is towards zero"


def test_sums_in_16_bits_exceed_every_bound():
    left, right = operands(384, 2)
    total = np.float16(0)
    for term in (left * right).astype(np.float16):
        total += term
    size = float(np.abs(left * right).sum())
    assert abs(float(total) - emulated_sum(left, right)) > 4 * 384 * V * size


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("length", [5, 64, 300])
def test_probabilities_rounded_before_they_are_normalised(length, sharpness, dropout):
    random = np.random.default_rng(length)
    scores = sharpness * random.standard_normal(length)
    values = random.standard_normal((length, 16)).astype(np.float16).astype(np.float64)
    is_kept = random.random(length) >= dropout
    factor = 1 / (1 - dropout)
    unnormalised = np.exp(scores - scores.max())
    total = unnormalised.sum()
    weights = unnormalised / total
    emulated = (is_kept * weights * factor).astype(np.float16).astype(np.float64) @ values
    on_gpu = (is_kept * unnormalised).astype(np.float16).astype(np.float64) @ values
    difference = np.abs(emulated - on_gpu * factor / total)
    size = np.abs(values)
    bound = factor * (2 * U * (weights @ size) + 2 * V * size.sum(0))
    assert (difference <= bound).all()
    assert length == 5 or (difference > 0).any(), "the two differ"


@pytest.mark.parametrize(("count", "seed"), CASES)
def test_the_emulation_rounds_its_sum_once(count, seed):
    left, right = operands(count, seed)
    rows = [torch.from_numpy(each).half() for each in (left, right)]
    with Emulation(torch.float16):
        result = torch.mm(rows[0][None], rows[1][:, None])
    expected = torch.tensor(emulated_sum(left, right)).half()
    assert torch.equal(result.flatten(), expected[None])
