"""Emulated attention agrees with float64 within its rounding errors, forward and backward."""

import math

import pytest
import torch
from attention_reference import (
    CASES,
    KEYS,
    QUERIES,
    WIDTH,
    Case,
    additive_mask,
    dropout_factors,
    mask_of,
    operands_of,
    references,
)
from binary16_reference import largest_share, rounded
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.emulation import Emulation, attention, observers


def forward_and_backward(case: Case, dtype: torch.dtype = torch.float16) -> list[Tensor]:
    *operands, grad = (operand.to(dtype) for operand in operands_of(case))
    leaves = [operand.requires_grad_() for operand in operands]
    torch.manual_seed(11)
    output = functional.scaled_dot_product_attention(
        *leaves,
        attn_mask=None if case.mask == "causal" else mask_of(case),
        dropout_p=case.dropout_p,
        is_causal=case.mask == "causal",
        scale=case.scale,
    )
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward_stay_within_the_bound(emulation: None, name: str) -> None:
    results = forward_and_backward(CASES[name])
    for result, reference, bound in zip(results, *references(CASES[name]), strict=True):
        assert result.dtype is torch.float16
        assert result.shape == reference.shape
        assert largest_share(result, reference, bound) <= 1


def test_the_bound_rejects_bfloat16() -> None:
    """Negative control: the same attention with eight-bit operands exceeds every bound."""
    results = forward_and_backward(CASES["plain"], torch.bfloat16)
    shares = [
        largest_share(result, reference, bound)
        for result, reference, bound in zip(results, *references(CASES["plain"]), strict=True)
    ]
    assert min(shares) > 1


def test_equal_weights_are_averaged_bit_for_bit(emulation: None) -> None:
    query, key = torch.zeros(2, 4, 5, 8).half(), torch.randn(2, 4, 64, 8).half()
    value = torch.randint(-64, 65, (2, 4, 64, 3)).half()
    expected = rounded(value.double().mean(-2, keepdim=True)).expand(2, 4, 5, 3)
    output = functional.scaled_dot_product_attention(query, key, value)
    assert torch.equal(output, expected)


def test_probabilities_are_rounded_before_the_values(emulation: None) -> None:
    """A probability of 2^-25 or less is flushed to zero; one of 2^-24 is kept."""
    value = torch.tensor([[0.0], [32768.0]]).half()
    for exponent, expected in ((-26, 0.0), (-24, 32768.0 * 2**-24)):
        score = torch.tensor([[0.0, exponent * math.log(2)]])
        output = attention(torch.zeros(1, 1), torch.zeros(2, 1), value, mask=score)
        assert float(output) == expected


def test_output_overflows_to_infinity(emulation: None) -> None:
    value = torch.full((1, 4, 2), 65504.0).half()
    query = torch.zeros(1, 4, 2).half()
    output = functional.scaled_dot_product_attention(query, query, value, dropout_p=0.5)
    assert torch.isinf(output).any()


def test_native_float16_attention_agrees() -> None:
    for name in ("plain", "boolean_mask", "causal", "additive_mask", "scale"):
        native = forward_and_backward(CASES[name])
        with Emulation(torch.float16):
            emulated = forward_and_backward(CASES[name])
        _, bounds = references(CASES[name])
        for ours, theirs, bound in zip(emulated, native, bounds, strict=True):
            assert largest_share(ours, theirs.double(), 4 * bound) <= 1


def test_grouped_heads_are_repeated_heads(emulation: None) -> None:
    query, key, value, _ = operands_of(Case(leading=(2, 4)))
    grouped = functional.scaled_dot_product_attention(
        query, key[:, :2], value[:, :2], enable_gqa=True
    )
    repeated = functional.scaled_dot_product_attention(
        query, key[:, :2].repeat_interleave(2, 1), value[:, :2].repeat_interleave(2, 1)
    )
    assert torch.equal(grouped, repeated)


def test_a_trainable_mask_receives_its_gradient(emulation: None) -> None:
    query, key, value, grad = operands_of(Case())
    bias = torch.randn(3, QUERIES, KEYS, requires_grad=True)
    output = attention(query, key, value, mask=bias)
    (gradient,) = torch.autograd.grad(output, bias, grad)
    wide = bias.detach().double().requires_grad_()
    exact = functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), wide
    )
    (expected,) = torch.autograd.grad(exact, wide, grad.double())
    assert (gradient.double() - expected).norm() / expected.norm() < 1e-5


def test_causal_with_a_mask_is_refused(emulation: None) -> None:
    query, key, value, _ = operands_of(Case())
    with pytest.raises(RuntimeError, match="is_causal"):
        functional.scaled_dot_product_attention(
            query, key, value, mask_of(CASES["boolean_mask"]), is_causal=True
        )


@pytest.mark.parametrize("name", ["plain", "boolean_mask", "dropout"])
def test_double_backward(emulation: None, name: str) -> None:
    """A gradient penalty through attention agrees with float64 to binary16's precision."""
    case = CASES[name]
    *operands, _ = operands_of(case)
    factors = dropout_factors(case, torch.Size((*case.leading, QUERIES, KEYS)))

    def exact(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT * WIDTH**-0.5 + additive_mask(mask_of(case))
        return (scores.softmax(-1) * factors) @ value

    def emulated(*leaves: Tensor) -> Tensor:
        torch.manual_seed(11)
        return attention(*leaves, mask=mask_of(case), dropout_p=case.dropout_p)

    def penalty(call: object, dtype: torch.dtype) -> list[Tensor]:
        leaves = [operand.to(dtype).requires_grad_() for operand in operands]
        loss = call(*leaves).double().pow(2).sum()
        gradients = torch.autograd.grad(loss, leaves, create_graph=True)
        total = sum(gradient.double().pow(2).sum() for gradient in gradients)
        return list(torch.autograd.grad(total, leaves))

    for ours, theirs in zip(
        penalty(emulated, torch.float16), penalty(exact, torch.float64), strict=True
    ):
        error = (ours.double() - theirs).norm() / theirs.norm()
        assert 0 < error < 5e-3


def test_a_second_derivative_with_a_trainable_mask_is_refused(emulation: None) -> None:
    query, key, value, _ = (operand.requires_grad_() for operand in operands_of(Case()))
    bias = torch.randn(QUERIES, KEYS, requires_grad=True)
    output = attention(query, key, value, mask=bias)
    gradients = torch.autograd.grad(output.sum(), (query, bias), create_graph=True)
    with pytest.raises(NotImplementedError, match="mask requires a gradient"):
        gradients[0].sum().backward()


class ProductLog(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.products: list[tuple[str, torch.dtype]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if any(word in func.name() for word in ("mm", "attention", "convolution", "linear")):
            self.products.append((func.name(), tensors[0].dtype))
        return func(*args, **(kwargs or {}))


def test_observers_see_the_products_that_dispatch_modes_cannot(emulation: None) -> None:
    reported: list[tuple[object, ...]] = []

    def observer(*row: object) -> None:
        reported.append(row)

    query, key, value, _ = (operand.requires_grad_() for operand in operands_of(Case()))
    observers.append(observer)
    try:
        with ProductLog() as log:
            functional.scaled_dot_product_attention(query, key, value).sum().backward()
    finally:
        observers.remove(observer)
    half, single = torch.float16, torch.float32
    forward = [("attention", half, output, single, "forward") for output in (single, half)]
    backward = [
        ("attention", half, output, single, "backward")
        for output in (single, half, single, half, half)
    ]
    assert reported == forward + backward
    assert {dtype for _, dtype in log.products} == {half}
    assert [name for name, _ in log.products] == ["ampft::attention", "ampft::attention_backward"]


def test_float32_and_bfloat16_attention_is_untouched() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        outside = forward_and_backward(CASES["dropout_and_mask"], dtype)
        with Emulation(torch.float16):
            inside = forward_and_backward(CASES["dropout_and_mask"], dtype)
        assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))


def test_an_enclosing_autocast_has_no_effect_inside(emulation: None) -> None:
    """Forward and backward return the same numbers with autocast on and off."""
    outside = forward_and_backward(CASES["boolean_mask"])
    with torch.autocast("cpu", dtype=torch.float16):
        inside = forward_and_backward(CASES["boolean_mask"])
        *operands, _ = operands_of(CASES["boolean_mask"])
        direct = attention(*operands, mask=mask_of(CASES["boolean_mask"]))
    assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))
    assert torch.equal(direct, outside[0])
