"""Emulated bfloat16: products and attention against float64, torch's own kernels and a run."""

from __future__ import annotations

import math

import pytest
import torch
from binary16_reference import FLOAT32_UNIT
from test_emulation_attention import CASES as ATTENTION
from test_emulation_attention import forward_and_backward
from test_emulation_products import CASES, output_and_gradients
from torch import Tensor
from torch.nn import functional

from ampft.emulation import Emulation, emulation_suspended, inside_emulation
from ampft.precision import accelerator, resolve

CPU = torch.device("cpu")
WITHOUT = dict.fromkeys(("avx512_bf16", "amx_bf16", "bf16"), False)


def half_unit(values: Tensor) -> Tensor:
    """Half a unit in the last place of bfloat16 at float64 `values`."""
    exponent = torch.floor(torch.log2(values.abs().clamp(min=2.0**-126)))
    return 2.0 ** (exponent - 8)


def bound(reference: Tensor, magnitude: Tensor, terms: Tensor) -> Tensor:
    """Half a unit of bfloat16 plus K * 2^-24 * sum |a_i b_i|, elementwise, float64."""
    sum_error = terms * FLOAT32_UNIT * magnitude
    return half_unit(reference.abs() + sum_error) + sum_error


def shares(name: str, *, dtype: torch.dtype = torch.bfloat16) -> list[float]:
    """The largest error of the output and of each gradient, as a share of its bound.

    Operands have bfloat16 values; they are multiplied in `dtype`.
    """
    case, generator = CASES[name], torch.Generator().manual_seed(0)
    operands = [torch.randn(shape, generator=generator).bfloat16() for shape in case.shapes]
    wide = [operand.double() for operand in operands]
    grad = torch.randn(case.call(*wide).shape, generator=generator).bfloat16()
    results = output_and_gradients(case.call, [operand.to(dtype) for operand in operands], grad)
    references = output_and_gradients(case.call, wide, grad)
    magnitudes = output_and_gradients(case.call, [o.abs() for o in wide], grad.abs())
    counts = output_and_gradients(case.call, [torch.ones_like(o) for o in wide], None)
    rows = zip(results, references, magnitudes, counts, strict=True)
    return [float(((r.double() - e).abs() / bound(e, m, n)).max()) for r, e, m, n in rows]


@pytest.mark.parametrize("name", CASES)
def test_products_stay_within_the_bound(name):
    with Emulation(torch.bfloat16):
        assert max(shares(name)) <= 1


def test_the_bound_rejects_a_second_rounding():
    """Negative control: sums in bfloat16 exceed it."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(64, 64, generator=generator).bfloat16() for _ in range(2))
    exact = left.double() @ right.double()
    limit = bound(exact, left.double().abs() @ right.double().abs(), torch.tensor(64.0))
    total = torch.zeros(64, 64).bfloat16()
    for index in range(64):
        total = total + left[:, index, None] * right[None, index]
    assert float(((total.double() - exact).abs() / limit).max()) > 1
    with Emulation(torch.bfloat16):
        assert float((((left @ right).double() - exact).abs() / limit).max()) <= 1


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm"])
def test_torchs_own_products_differ_by_at_most_the_order_of_sums(name):
    assert max(shares(name)) <= 1  # torch's kernels obey the same bound


@pytest.mark.parametrize("name", ["plain", "boolean_mask", "causal", "dropout", "scale"])
def test_attention_agrees_with_float64(name):
    exact = forward_and_backward(ATTENTION[name], torch.float64)
    with Emulation(torch.bfloat16):
        emulated = forward_and_backward(ATTENTION[name], torch.bfloat16)
    for ours, theirs in zip(emulated, exact, strict=True):
        assert ours.dtype is torch.bfloat16
        error = (ours.double() - theirs).norm() / theirs.norm()
        assert 1e-4 < error < 2e-2  # three roundings of 2^-9, and operands of 8 bits


def test_probabilities_are_rounded_to_bfloat16():
    """A probability of 1 + 2^-9 of another is no longer told apart."""
    value = torch.tensor([[1.0], [-1.0]]).bfloat16()
    score = torch.tensor([[0.0, math.log1p(2.0**-9)]])
    query, key = torch.zeros(1, 1, 1).bfloat16(), torch.zeros(1, 2, 1).bfloat16()
    with Emulation(torch.bfloat16):
        output = functional.scaled_dot_product_attention(query, key, value[None], score)
    assert float(output) == 0


def test_only_bfloat16_is_replaced():
    left, right = torch.randn(4, 8), torch.randn(8, 4)
    expected = [(left.to(d) @ right.to(d)) for d in (torch.float32, torch.float64, torch.float16)]
    with Emulation(torch.bfloat16):
        for result in expected:
            assert torch.equal(left.to(result.dtype) @ right.to(result.dtype), result)
        torch.mm(left.half(), right.half(), out=torch.empty(4, 4).half())  # refused only in fp16


def test_both_emulations_nest_and_are_suspended_together():
    halves, brains = torch.float16, torch.bfloat16
    with Emulation(halves), Emulation(brains):
        with emulation_suspended():
            assert not inside_emulation(halves)
            assert not inside_emulation(brains)
        assert inside_emulation(halves)
        assert inside_emulation(brains)
        for dtype in (halves, brains):
            ones = torch.ones(2, 2, dtype=dtype)
            assert (ones @ ones).dtype is dtype
    assert not inside_emulation(halves)
    assert not inside_emulation(brains)


@pytest.mark.parametrize("has_it", [False, True])
def test_only_a_cpu_without_bfloat16_emulates_it(monkeypatch, has_it):
    monkeypatch.setattr(resolve, "cpu_capabilities", lambda: WITHOUT | {"avx512_bf16": has_it})
    precision = resolve.resolve("bf16", CPU)
    assert precision.is_emulated is not has_it
    assert precision.emulates_products is not has_it
    with accelerator.numerics(precision):
        assert inside_emulation(torch.bfloat16) is not has_it
    assert not inside_emulation(torch.bfloat16)
