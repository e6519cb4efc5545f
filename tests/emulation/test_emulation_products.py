"""Emulated products against float64 (bit for bit where sums are exact) and native kernels."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from binary16_reference import largest_share, product_bound, rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from ampft.emulation import Emulation, covered_products

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Case:
    operator: str
    call: Callable[..., Tensor]
    shapes: Shapes


def strided(*operands: Tensor) -> Tensor:
    return functional.conv2d(*operands, stride=2, padding=1)


def grouped(*operands: Tensor) -> Tensor:
    return functional.conv2d(*operands, groups=2, dilation=2, padding="same")


def transposed(*operands: Tensor) -> Tensor:
    return functional.conv_transpose2d(*operands, stride=2, output_padding=1)


def through_transposes(left: Tensor, right: Tensor) -> Tensor:
    return torch.mm(left.t(), right.t())


CASES = {
    "mm": Case("mm", torch.mm, ((33, 129), (129, 17))),
    "mm_transposed": Case("mm", through_transposes, ((40, 24), (8, 40))),
    "mm_one_term": Case("mm", torch.mm, ((5, 1), (1, 7))),
    "bmm": Case("bmm", torch.bmm, ((3, 9, 65), (3, 65, 11))),
    "matmul_4d": Case("bmm", torch.matmul, ((2, 3, 5, 7), (2, 3, 7, 4))),
    "addmm": Case("addmm", torch.addmm, ((17,), (33, 129), (129, 17))),
    "linear": Case("addmm", functional.linear, ((4, 6, 32), (16, 32), (16,))),
    "baddbmm": Case("baddbmm", torch.baddbmm, ((3, 9, 11), (3, 9, 65), (3, 65, 11))),
    "mv": Case("mv", torch.mv, ((9, 65), (65,))),
    "addmv": Case("addmv", torch.addmv, ((9,), (9, 65), (65,))),
    "dot": Case("dot", torch.dot, ((65,), (65,))),
    "matmul_1d": Case("dot", torch.matmul, ((65,), (65,))),
    "addbmm": Case("addbmm", torch.addbmm, ((9, 11), (1, 9, 65), (1, 65, 11))),
    "conv1d": Case("convolution", functional.conv1d, ((2, 3, 40), (5, 3, 7), (5,))),
    "conv2d": Case("convolution", strided, ((2, 3, 12, 12), (8, 3, 3, 3), (8,))),
    "conv2d_grouped": Case("convolution", grouped, ((2, 4, 9, 9), (6, 2, 3, 3), (6,))),
    "conv2d_no_bias": Case("convolution", functional.conv2d, ((1, 2, 8, 8), (3, 2, 5, 5))),
    "conv3d": Case("convolution", functional.conv3d, ((1, 2, 5, 6, 7), (3, 2, 2, 3, 3), (3,))),
    "conv_transpose": Case("convolution", transposed, ((2, 4, 5, 5), (4, 3, 3, 3), (3,))),
}
SEEDS = range(3)
FLOAT16_SUM = 8 * 2.0**-11  # eight roundings of a float16 sum, relative to the sum of |a_i b_i|


def operands_of(case: Case, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).half() for shape in case.shapes]


def output_and_gradients(
    call: Callable[..., Tensor], operands: list[Tensor], grad_output: Tensor | None
) -> list[Tensor]:
    """The output and the gradient of every operand, for `grad_output` or ones."""
    leaves = [operand.detach().requires_grad_() for operand in operands]
    output = call(*leaves)
    grad = torch.ones_like(output) if grad_output is None else grad_output.to(output.dtype)
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def bounds_of(
    case: Case, operands: list[Tensor], grad_output: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """(float64 reference, bound) of the output and every gradient.

    All cases are linear in each operand, so the same call with absolute values returns the sums of
    |a_i b_i|, and with ones it returns the number of terms.
    """
    wide = [operand.double() for operand in operands]
    references = output_and_gradients(case.call, wide, grad_output)
    absolute = [operand.abs() for operand in wide]
    magnitudes = output_and_gradients(case.call, absolute, grad_output.abs())
    counts = output_and_gradients(case.call, [torch.ones_like(o) for o in wide], None)
    return [
        (reference, product_bound(reference, magnitude, count))
        for reference, magnitude, count in zip(references, magnitudes, counts, strict=True)
    ]


def grad_output_of(case: Case, operands: list[Tensor], seed: int) -> Tensor:
    shape = case.call(*(operand.double() for operand in operands)).shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 100)).half()


def test_the_cases_cover_every_emulated_product() -> None:
    gradients_of_convolution = {"convolution_backward"}
    attention = {"scaled_dot_product_attention"}
    operators = {case.operator for case in CASES.values()}
    assert operators
    covered = {name.removesuffix(".out").removesuffix("_") for name in covered_products}
    assert operators == covered - gradients_of_convolution - attention


OUT_OF_PLACE = ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "addbmm")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OUT_OF_PLACE)
def test_products_into_a_tensor_have_the_same_bits(name: str, dtype: torch.dtype) -> None:
    """Attention without padding fills its buffers by `bmm(..., out=...)`, in bfloat16 too."""
    case = CASES[name]
    operands = [operand.to(dtype) for operand in operands_of(case, 2)]
    with Emulation(dtype):
        expected = case.call(*operands)
        strided = torch.empty(*expected.shape, 2, dtype=dtype)[..., 0]
        for out in (torch.empty_like(expected), strided, torch.empty(0, dtype=dtype)):
            assert case.call(*operands, out=out) is out
            assert torch.equal(out, expected)
        with pytest.raises(RuntimeError, match=r"dtype"):
            case.call(*operands, out=torch.empty_like(expected, dtype=torch.float32))
        if name.startswith(("add", "badd")):
            first = operands[0].expand(expected.shape).clone()
            assert getattr(first, f"{name}_")(*operands[1:]) is first
            assert torch.equal(first, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_no_product_into_a_tensor_runs_in_torchs_own_16_bit_kernels(dtype: torch.dtype) -> None:
    left, right = (torch.ones(2, 2, dtype=dtype) for _ in range(2))
    with Emulation(dtype), profile(activities=[ProfilerActivity.CPU]) as seen:
        torch.mm(left, right, out=torch.empty_like(left))
    assert "aten::to" in {event.name for event in seen.events()}, "operands become float32"
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        torch.mm(left, right, out=torch.empty_like(left))
    assert "aten::to" not in {event.name for event in seen.events()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward_stay_within_the_bound(emulation: None, name: str, seed: int) -> None:
    case = CASES[name]
    operands = operands_of(case, seed)
    grad_output = grad_output_of(case, operands, seed)
    results = output_and_gradients(case.call, operands, grad_output)
    assert len(results) == len(operands) + 1
    for result, (reference, bound) in zip(
        results, bounds_of(case, operands, grad_output), strict=True
    ):
        assert result.dtype is torch.float16
        assert largest_share(result, reference, bound) <= 1


@pytest.mark.parametrize("name", CASES)
def test_exact_sums_are_rounded_bit_for_bit(emulation: None, name: str) -> None:
    case = CASES[name]
    generator = torch.Generator().manual_seed(3)
    operands = [torch.randint(-32, 33, shape, generator=generator).half() for shape in case.shapes]
    shape = case.call(*(operand.double() for operand in operands)).shape
    grad_output = torch.randint(-32, 33, shape, generator=generator).half()
    wide = [operand.double() for operand in operands]
    references = output_and_gradients(case.call, wide, grad_output)
    results = output_and_gradients(case.call, operands, grad_output)
    for result, reference in zip(results, references, strict=True):
        assert torch.equal(result, rounded(reference))


def test_rounding_matters_in_the_exact_test() -> None:
    """Negative control: the sums above need more bits than binary16 has."""
    operands = torch.randint(-32, 33, (33, 129)).double(), torch.randint(-32, 33, (129, 17))
    exact = operands[0] @ operands[1].double()
    assert not torch.equal(exact, rounded(exact).double())


def test_addbmm_rounds_after_every_product(emulation: None) -> None:
    """As on a GPU, where it is a loop over `addmm`."""
    added, left, right = operands_of(
        Case("addbmm", torch.addbmm, ((9, 4), (3, 9, 8), (3, 8, 4))), 0
    )
    expected = torch.addmm(added, left[0], right[0], beta=0.3, alpha=1.7)
    for index in (1, 2):
        expected = torch.addmm(expected, left[index], right[index], alpha=1.7)
    assert torch.equal(torch.addbmm(added, left, right, beta=0.3, alpha=1.7), expected)
    empty = torch.addbmm(added, left[:0], right[:0], beta=0.3)
    assert torch.equal(empty, (added.float() * 0.3).half())


def test_scaled_sums_stay_within_the_bound(emulation: None) -> None:
    """Beta and alpha are applied in float32, which adds two float32 roundings each."""
    added, left, right = operands_of(CASES["baddbmm"], 0)
    for call, operands in (
        (torch.baddbmm, (added, left, right)),
        (torch.addmm, (added[0], left[0], right[0])),
    ):
        result = call(*operands, beta=0.3, alpha=1.7)
        wide = [operand.double() for operand in operands]
        reference = call(*wide, beta=0.3, alpha=1.7)
        magnitude = call(*(operand.abs() for operand in wide), beta=0.3, alpha=1.7)
        bound = product_bound(reference, magnitude, torch.tensor(65.0 + 3))
        assert largest_share(result, reference, bound) <= 1


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    terms=st.integers(1, 40),
    scale=st.sampled_from([2.0**-12, 1.0, 64.0]),
    seed=st.integers(0, 10_000),
)
def test_any_product_stays_within_the_bound(rows: int, terms: int, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    left = (torch.randn(rows, terms, generator=generator) * scale).half()
    right = (torch.randn(terms, 3, generator=generator) * min(scale, 1)).half()
    with Emulation(torch.float16):
        result = left @ right
    reference = left.double() @ right.double()
    magnitude = left.double().abs() @ right.double().abs()
    bound = product_bound(reference, magnitude, torch.tensor(float(terms)))
    assert largest_share(result, reference, bound) <= 1


def summed_in_binary16(left: Tensor, right: Tensor) -> Tensor:
    total = torch.zeros(left.shape[0], right.shape[1]).half()
    for index in range(left.shape[1]):
        total = total + left[:, index, None] * right[None, index]
    return total


def test_the_bound_rejects_other_arithmetic() -> None:
    """Negative controls: float16 sums, unrounded operands and a missing last rounding."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(s, generator=generator) for s in ((16, 512), (512, 16)))
    reference = left.half().double() @ right.half().double()
    magnitude = left.half().double().abs() @ right.half().double().abs()
    bound = product_bound(reference, magnitude, torch.tensor(512.0))
    assert largest_share(summed_in_binary16(left.half(), right.half()), reference, bound) > 1
    assert largest_share((left @ right).half(), reference, bound) > 1
    assert largest_share((left.bfloat16() @ right.bfloat16()).half(), reference, bound) > 1
    unrounded = left.half().float() @ right.half().float()
    assert not torch.equal(unrounded, unrounded.half().float())


@pytest.mark.parametrize("name", CASES)
def test_native_float16_kernels_agree(name: str) -> None:
    """Emulated and native results are each within their own bound of the exact value.

    Native matrix products sum in float32 and may round the bias separately. Native convolutions sum
    blocks in float16 (measured: 130 times the bound), so they have the bound of a float16 sum.
    """
    case = CASES[name]
    operands = operands_of(case, 1)
    grad_output = grad_output_of(case, operands, 1)
    native = output_and_gradients(case.call, operands, grad_output)
    with Emulation(torch.float16):
        emulated = output_and_gradients(case.call, operands, grad_output)
    bounds = bounds_of(case, operands, grad_output)
    magnitudes = output_and_gradients(
        case.call, [operand.double().abs() for operand in operands], grad_output.abs()
    )
    for ours, theirs, (_, bound), magnitude in zip(
        emulated, native, bounds, magnitudes, strict=True
    ):
        is_convolution = case.operator == "convolution"
        allowed = 3 * bound + (magnitude * FLOAT16_SUM if is_convolution else 0)
        assert largest_share(ours, theirs.double(), allowed) <= 1


@pytest.mark.slow
def test_float32_and_bfloat16_products_are_untouched() -> None:
    generator = torch.Generator().manual_seed(0)
    for case in CASES.values():
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            operands = [torch.randn(s, generator=generator).to(dtype) for s in case.shapes]
            outside = output_and_gradients(case.call, operands, None)
            with Emulation(torch.float16):
                inside = output_and_gradients(case.call, operands, None)
            assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))


@pytest.mark.parametrize("name", ["mm", "linear", "conv2d"])
def test_double_backward(emulation: None, name: str) -> None:
    """A gradient penalty agrees with float64 to the precision of a few binary16 products."""
    case = CASES[name]
    operands = operands_of(case, 5)

    def penalty(dtype: torch.dtype) -> list[Tensor]:
        leaves = [operand.to(dtype).requires_grad_() for operand in operands]
        loss = case.call(*leaves).double().pow(2).mean()
        gradients = torch.autograd.grad(loss, leaves, create_graph=True)
        total = sum(gradient.double().pow(2).sum() for gradient in gradients)
        return list(torch.autograd.grad(total, leaves))

    for ours, theirs in zip(penalty(torch.float16), penalty(torch.float64), strict=True):
        error = (ours.double() - theirs).norm() / theirs.norm()
        assert 0 < error < 5e-3
