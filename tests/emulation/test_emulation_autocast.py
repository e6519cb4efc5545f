"""CUDA's autocast table inside the emulation: output dtypes and values; bfloat16 is unaffected."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from autocast_cases import FLOAT16_CASES, FLOAT32_CASES, SAME_TYPE_CASES, WIDEST_CASES, Arguments
from torch import Tensor
from torch.nn import functional

from ampft.emulation import AUTOCAST_TABLE, Emulation
from ampft.emulation import cuda_autocast as table
from ampft.errors import InputError

ALL_CASES = {**FLOAT16_CASES, **FLOAT32_CASES, **WIDEST_CASES, **SAME_TYPE_CASES}
HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
# On both tables: the CPU's own kernel already implements CUDA's policy.
_SHARED = """conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input prelu addmm matmul mm linalg_vecdot linear addbmm baddbmm bmm
    _convolution.deprecated scaled_dot_product_attention"""
SHARED = set(_SHARED.split())
NARROW_ON_A_CPU = (
    "softmax.int",
    "layer_norm",
    "exp",
    "log",
    "pow.Tensor_Scalar",
    "sum",
    "norm.Scalar",
)
CUDA_ONLY = {"_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_scaled_dot_product_flash_attention"}


def call(name: str, arguments: tuple[object, ...]) -> list[Tensor]:
    """Call an operator with a fixed seed and return its floating outputs."""
    operator, _, overload = name.partition(".")
    torch.manual_seed(0)
    results = getattr(getattr(torch.ops.aten, operator), overload or "default")(*arguments)
    outputs = [results] if isinstance(results, Tensor) else list(results)
    return [tensor for tensor in outputs if tensor.is_floating_point()]


@pytest.fixture
def autocast(emulation: None) -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.float16):
        yield


def listed_in_header(macro: str) -> set[str]:
    text = HEADER.read_text(encoding="utf-8")
    body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", text, re.DOTALL)
    assert body, macro
    rows = re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])
    return {f"{name}.{overload}" if overload else name for name, overload in rows}


@pytest.mark.parametrize(
    ("macro", "names"),
    [
        ("AT_FORALL_LOWER_PRECISION_FP", {*table.FLOAT16, *table.CELLS, *SHARED, *CUDA_ONLY}),
        ("AT_FORALL_FP32", set(table.FLOAT32)),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", set(table.FLOAT32_OUTPUT)),
        ("AT_FORALL_PROMOTE", set(table.WIDEST)),
    ],
)
def test_the_table_matches_the_installed_torch(macro: str, names: set[str]) -> None:
    if not HEADER.exists():
        pytest.skip(f"this build of torch does not include {HEADER.name}")
    assert names
    listed = {name for name in listed_in_header(macro) if "imname" not in name}  # in torch 2.11
    assert listed == names


@pytest.mark.parametrize("name", sorted(SHARED))
def test_shared_operators_are_registered_for_the_cpu(name: str) -> None:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has_kernel(f"aten::{name}", "AutocastCPU")


def test_the_cases_cover_the_table() -> None:
    assert len(FLOAT32_CASES) > 60
    float32 = {*table.FLOAT32, *table.FLOAT32_INSIDE, *table.FLOAT32_OUTPUT, *table.NORM}
    assert set(FLOAT32_CASES) == float32
    assert set(WIDEST_CASES) == set(table.WIDEST)
    assert set(SAME_TYPE_CASES) == set(table.SAME_TYPE)
    assert set(FLOAT16_CASES) == {*table.FLOAT16, *table.CELLS}
    assert "CUDA" in AUTOCAST_TABLE


# torch 2.15 warns of operators that it will remove.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated")


@pytest.mark.parametrize("name", FLOAT32_CASES)
def test_float32_list_computes_in_float32(autocast: None, name: str) -> None:
    narrow = FLOAT32_CASES[name](torch.float16)
    outputs = call(name, narrow)
    assert outputs
    assert {output.dtype for output in outputs} == {torch.float32}
    with torch.autocast("cpu", enabled=False):
        wide = tuple(
            arg.float() if isinstance(arg, Tensor) and arg.is_floating_point() else arg
            for arg in narrow
        )
        expected = call(name, wide)
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))


def test_the_cpus_own_table_differs() -> None:
    """Negative control: without the emulation these operators return float16 on a CPU."""
    with torch.autocast("cpu", dtype=torch.float16):
        narrow = {
            name
            for name in NARROW_ON_A_CPU
            if call(name, FLOAT32_CASES[name](torch.float16))[0].dtype is torch.float16
        }
    assert narrow == set(NARROW_ON_A_CPU)


@pytest.mark.parametrize("name", WIDEST_CASES)
def test_widest_type_wins(autocast: None, name: str) -> None:
    arguments: Arguments = WIDEST_CASES[name]
    wide, narrow = arguments(torch.float32), arguments(torch.float16)
    mixed = (narrow[0], *wide[1:])
    assert {output.dtype for output in call(name, mixed)} == {torch.float32}
    assert {output.dtype for output in call(name, narrow)} == {torch.float16}


@pytest.mark.parametrize("name", FLOAT16_CASES)
def test_float16_list_computes_in_float16(autocast: None, name: str) -> None:
    wide = FLOAT16_CASES[name](torch.float32)
    assert {output.dtype for output in call(name, wide)} == {torch.float16}


@pytest.mark.parametrize("name", SAME_TYPE_CASES)
def test_operators_that_only_the_cpu_widens_keep_their_dtype(autocast: None, name: str) -> None:
    for dtype in (torch.float16, torch.float32):
        outputs = call(name, SAME_TYPE_CASES[name](dtype))
        assert outputs
        assert {output.dtype for output in outputs} == {dtype}


# Not on CUDA's table, and with the same result dtypes there without autocast.
SAME_WITHOUT_AUTOCAST = {
    *("cat", "stack", "index_copy", "cross_entropy_loss"),
    *("conv1d.padding", "conv2d.padding", "conv3d.padding", "multilabel_margin_loss_forward"),
}
ONLY_ON_CPU = {
    "_addmm_activation",
    "_grid_sampler_2d_cpu_fallback",
    "_native_multi_head_attention",
    "mkldnn_rnn_layer",
}


def registered(key: str) -> set[str]:
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


def test_every_operator_of_the_cpus_table_is_on_cudas_or_handled() -> None:
    handled = {
        *table.SAME_TYPE,
        *table.REFUSED,
        *table.BANNED,
        *SAME_WITHOUT_AUTOCAST,
        *ONLY_ON_CPU,
    }
    only_on_cpu = registered("AutocastCPU") - registered("AutocastCUDA")
    listed = {*table.FLOAT16, *table.FLOAT32, *table.FLOAT32_OUTPUT, *table.NORM, *table.WIDEST}
    listed |= set(table.FLOAT32_INSIDE)
    assert len(only_on_cpu) > 60
    only_on_cpu.discard("index_copy.dimname")  # in torch 2.11
    assert only_on_cpu - listed - SHARED - handled == set()


def square(dtype: torch.dtype) -> Tensor:
    return torch.eye(4, dtype=dtype) * 2


WITHOUT_A_KERNEL = {
    "fft_fft": lambda dtype: torch.fft.fft(square(dtype)),
    "fft_rfft2": lambda dtype: torch.fft.rfft2(square(dtype)),
    "polar": lambda dtype: torch.polar(square(dtype), square(dtype)),
    "view_as_complex": lambda dtype: torch.view_as_complex(square(dtype)[:, :2].contiguous()),
    "linalg_inv": lambda dtype: torch.linalg.inv(square(dtype)),
    "linalg_solve": lambda dtype: torch.linalg.solve(square(dtype), square(dtype)),
    "quantile": lambda dtype: torch.quantile(square(dtype), 0.5),
}


@pytest.mark.parametrize("name", WITHOUT_A_KERNEL)
def test_operators_that_cuda_would_not_run_in_float32_are_refused(
    autocast: None, name: str
) -> None:
    with pytest.raises(InputError, match=rf"does not support {name} of float16 .*\.float\(\)"):
        WITHOUT_A_KERNEL[name](torch.float16)
    assert WITHOUT_A_KERNEL[name](torch.float32).dtype in (torch.float32, torch.complex64)


def test_explicit_dtypes_and_integers_are_respected(autocast: None) -> None:
    half = torch.ones(3).half()
    assert half.sum(dtype=torch.float16).dtype is torch.float16
    assert functional.softmax(half, 0, dtype=torch.float64).dtype is torch.float64
    assert torch.ones(3).long().sum().dtype is torch.int64
    assert torch.ones(3).double().exp().dtype is torch.float64


def test_float16_outside_autocast_stays_float16(emulation: None) -> None:
    assert torch.ones(3).half().exp().dtype is torch.float16
    with torch.autocast("cpu", dtype=torch.float16), torch.autocast("cpu", enabled=False):
        assert torch.ones(3).half().exp().dtype is torch.float16


def test_binary_cross_entropy_is_refused_as_on_a_gpu(autocast: None) -> None:
    with pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        functional.binary_cross_entropy(torch.rand(3), torch.rand(3))


def test_losses_of_float16_logits_are_float32(autocast: None) -> None:
    logits = torch.randn(4, 3).half().requires_grad_()
    loss = functional.cross_entropy(logits, torch.arange(3).repeat(2)[:4], label_smoothing=0.1)
    assert loss.dtype is torch.float32
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.dtype is torch.float16


@pytest.mark.parametrize("name", ALL_CASES)
def test_bfloat16_autocast_is_unaffected(name: str) -> None:
    """Results and errors are the same as without the emulation, bit for bit."""

    def outcome(dtype: torch.dtype) -> list[Tensor] | str:
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return call(name, ALL_CASES[name](dtype))
        except (RuntimeError, NotImplementedError) as error:
            return str(error)

    for dtype in (torch.bfloat16, torch.float32):
        outside = outcome(dtype)
        with Emulation(torch.float16):
            inside = outcome(dtype)
        if isinstance(outside, str) or isinstance(inside, str):
            assert outside == inside
        else:
            assert [o.dtype for o in outside] == [o.dtype for o in inside]
            assert all(
                torch.equal(a, b) or (a.isnan() & b.isnan()).any()
                for a, b in zip(outside, inside, strict=True)
            )


@pytest.mark.parametrize("name", FLOAT32_CASES)
def test_gradients_flow_through_the_casts(autocast: None, name: str) -> None:
    narrow = FLOAT32_CASES[name](torch.float16)
    leaves = [a for a in narrow if isinstance(a, Tensor) and a.dtype is torch.float16]
    assert leaves
    leaves[0].requires_grad_()
    output = call(name, narrow)[0]
    (gradient,) = torch.autograd.grad(output.sum(), leaves[0])
    assert gradient.dtype is torch.float16
