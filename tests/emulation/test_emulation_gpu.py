"""The emulation against a real GPU: output dtypes of CUDA's autocast, and products."""

import pytest
import torch
from autocast_cases import FLOAT16_CASES, FLOAT32_CASES, SAME_TYPE_CASES, WIDEST_CASES
from binary16_reference import half_unit
from torch import Tensor
from torch.nn import functional

from ampft.emulation import Emulation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def on_gpu(value: object) -> object:
    if isinstance(value, list | tuple):
        return [on_gpu(item) for item in value]
    return value.cuda() if isinstance(value, Tensor) else value


def output_dtypes(name: str, arguments: tuple[object, ...]) -> set[torch.dtype]:
    operator, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, operator), overload or "default")
    with torch.autocast("cuda", dtype=torch.float16):
        results = function(*on_gpu(arguments))
    outputs = [results] if isinstance(results, Tensor) else list(results)
    return {tensor.dtype for tensor in outputs if tensor.is_floating_point()}


@pytest.mark.parametrize("name", FLOAT32_CASES)
def test_cuda_runs_the_float32_list_in_float32(name: str) -> None:
    assert output_dtypes(name, FLOAT32_CASES[name](torch.float16)) == {torch.float32}


@pytest.mark.parametrize("name", FLOAT16_CASES)
def test_cuda_runs_the_float16_list_in_float16(name: str) -> None:
    assert output_dtypes(name, FLOAT16_CASES[name](torch.float32)) == {torch.float16}


@pytest.mark.parametrize("name", [*SAME_TYPE_CASES, *WIDEST_CASES])
def test_cuda_keeps_the_dtype_of_the_other_operators(name: str) -> None:
    arguments = {**SAME_TYPE_CASES, **WIDEST_CASES}[name]
    assert output_dtypes(name, arguments(torch.float16)) == {torch.float16}
    assert output_dtypes(name, arguments(torch.float32)) == {torch.float32}


def both(call: object, *shapes: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients for the same float16 operands, emulated and from the GPU."""
    generator = torch.Generator().manual_seed(0)
    operands = [torch.randn(shape, generator=generator).half() for shape in shapes]

    def run(device: str) -> list[Tensor]:
        leaves = [o.to(device).requires_grad_() for o in operands]
        output = call(*leaves)
        return [
            output.detach().cpu(),
            *(g.cpu() for g in torch.autograd.grad(output, leaves, torch.ones_like(output))),
        ]

    with Emulation(torch.float16):
        emulated = run("cpu")
    return emulated, run("cuda")


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (torch.mm, ((64, 128), (128, 32))),
        (functional.linear, ((64, 128), (32, 128), (32,))),
        (torch.baddbmm, ((3, 16, 24), (3, 16, 64), (3, 64, 24))),
        (functional.conv2d, ((2, 8, 16, 16), (8, 8, 3, 3))),
        (functional.scaled_dot_product_attention, ((2, 4, 32, 64),) * 3),
    ],
)
def test_emulated_and_native_products_agree(call: object, shapes: tuple) -> None:
    """Results agree within two units: the sums have another order and may round differently.

    Flash attention rounds weights before their sum divides them, and the emulation after it: 1.8
    times as much in a model of both roundings on a CPU.
    """
    emulated, native = both(call, *shapes)
    rounded = 2.0**-9 if call is functional.scaled_dot_product_attention else 2.0**-10
    for ours, theirs in zip(emulated, native, strict=True):
        allowed = 4 * half_unit(theirs.double()) + rounded * theirs.double().abs().mean()
        assert ((ours.double() - theirs.double()).abs() <= allowed).all()
