"""Scope of the emulation: inference too, no native float16 inside, everything restored after."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.library import get_kernel
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from ampft.emulation import Emulation, covered_products, inside_emulation
from ampft.emulation.cuda_autocast import autocast_kernels
from ampft.emulation.kernels import EMULATED, REFUSED, SUMS
from ampft.errors import InputError

# Kernels that native kernels call internally; the emulation calls them only with float32.
INNER = ("resolve_conj", "_convolution", "_slow_conv2d_forward", "mkldnn_convolution")
INNER_ATTENTION = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product")


class Network(nn.Module):
    """A network with every kind of emulated product."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Conv2d(1, 4, 3, padding=1)
        self.projection = nn.Linear(64, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.filters(images).flatten(2)
        hidden = functional.gelu(self.projection(rows))
        heads = hidden.view(len(hidden), 4, 4, 8).transpose(1, 2)
        hidden = hidden + functional.scaled_dot_product_attention(heads, heads, heads).transpose(
            1, 2
        ).reshape(hidden.shape)
        mixed = torch.einsum("bij,bkj->bik", hidden, hidden) @ hidden
        return self.head(mixed.mean(1))


def native_products(path: Path, run: Callable[[], object]) -> tuple[int, int]:
    """Count the internal kernels of matrix products called with float16, and with float32."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        run()
    profiled.export_chrome_trace(str(path))
    counts = {"c10::Half": 0, "float": 0}
    for event in json.loads(path.read_text())["traceEvents"]:
        name = event.get("name", "").removeprefix("aten::")
        types = event.get("args", {}).get("Input type") or []
        if name in INNER or name.startswith(INNER_ATTENTION):
            for dtype in counts.keys() & set(types):
                counts[dtype] += 1
    return counts["c10::Half"], counts["float"]


def evaluate(model: nn.Module, guard: Callable[[], object]) -> Tensor:
    with guard(), torch.autocast("cpu", dtype=torch.float16):
        return model(torch.ones(2, 1, 8, 8))


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_evaluation_runs_no_native_float16_product(
    emulation: None, tmp_path: Path, guard: Callable[[], object]
) -> None:
    model = Network().eval()
    native, inner = native_products(tmp_path / "trace.json", lambda: evaluate(model, guard))
    assert native == 0
    assert inner > 0


def test_training_runs_no_native_float16_product(emulation: None, tmp_path: Path) -> None:
    model = Network()

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.ones(2, 1, 8, 8)).float().sum()
        loss.backward()

    native, inner = native_products(tmp_path / "trace.json", step)
    assert native == 0
    assert inner > 0


def test_without_emulation_the_trace_shows_native_products(tmp_path: Path) -> None:
    """Negative control for the two tests above."""
    model = Network().eval()
    native, _ = native_products(
        tmp_path / "trace.json", lambda: evaluate(model, torch.inference_mode)
    )
    assert native > 0


def test_inference_mode_and_no_grad_agree_bit_for_bit(emulation: None) -> None:
    model = Network().eval()
    assert torch.equal(evaluate(model, torch.no_grad), evaluate(model, torch.inference_mode))


def kernels_now() -> dict[str, str]:
    """The kernel registered for every operator that the emulation replaces."""
    keys = {
        "CPU": (*EMULATED, *REFUSED, *SUMS, "scaled_dot_product_attention"),
        "AutogradCPU": ("scaled_dot_product_attention",),
        "AutocastCPU": tuple(autocast_kernels()),
    }
    return {
        f"{operator} {key}": repr(get_kernel(f"aten::{operator}", key))
        for key, operators in keys.items()
        for operator in operators
    }


def test_everything_is_restored() -> None:
    before = kernels_now()
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with Emulation(torch.float16):
        inside = kernels_now()
    assert len(before) > 100
    assert all(inside[name] != kernel for name, kernel in before.items())
    assert kernels_now() == before
    assert torch.backends.mha.get_fastpath_enabled() is fast_path


def fail_inside() -> None:
    with Emulation(torch.float16):
        raise ValueError("planted")


def test_an_exception_restores_too() -> None:
    before = kernels_now()
    with pytest.raises(ValueError, match="planted"):
        fail_inside()
    assert kernels_now() == before


def test_nested_emulation_ends_with_the_outermost() -> None:
    before = kernels_now()
    with Emulation(torch.float16):
        with Emulation(torch.float16):
            pass
        assert kernels_now() != before
        assert inside_emulation(torch.float16)
        assert torch.ones(2, 2).half().mm(torch.ones(2, 2).half()).dtype is torch.float16
    assert not inside_emulation(torch.float16)
    assert kernels_now() == before


def test_float32_products_stay_exact_under_any_setting() -> None:
    operator = torch.backends.mkldnn.matmul
    before = operator.fp32_precision
    operator.fp32_precision = "bf16"
    try:
        with Emulation(torch.float16):
            assert operator.fp32_precision == "ieee"
        assert operator.fp32_precision == "bf16"
    finally:
        operator.fp32_precision = before


def half(*shape: int) -> Tensor:
    return torch.ones(shape).half()


REFUSED_CALLS: dict[str, Callable[[], object]] = {
    "conv_tbc": lambda: torch.conv_tbc(half(4, 1, 2), half(2, 2, 2), half(2)),
    "_scaled_dot_product_flash_attention_for_cpu": lambda: (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*[half(1, 1, 4, 8)] * 3)
    ),
}


@pytest.mark.parametrize("name", REFUSED_CALLS)
def test_other_float16_products_are_refused_by_name(emulation: None, name: str) -> None:
    assert name in REFUSED
    with pytest.raises(InputError, match=f"support {name}.*To fix this, {REFUSED[name][:10]}"):
        REFUSED_CALLS[name]()


@pytest.mark.parametrize(("layer", "name"), [(nn.LSTM, "lstm"), (nn.GRU, "gru")])
@pytest.mark.parametrize("packed", [True, False])
def test_recurrent_layers_are_refused_under_autocast(
    emulation: None, layer: type[nn.RNNBase], name: str, packed: bool
) -> None:
    rows = torch.ones(5, 2, 4)
    inputs = nn.utils.rnn.pack_padded_sequence(rows, torch.tensor([5, 3])) if packed else rows
    with (
        torch.autocast("cpu", dtype=torch.float16),
        pytest.raises(InputError, match=rf"support {name} .*keep_in_fp32"),
    ):
        layer(4, 3)(inputs)


def test_refused_operators_work_in_float32(emulation: None) -> None:
    assert float(torch.ones(1, 3) @ torch.ones(3)) == 3
    assert nn.LSTM(4, 3)(torch.ones(5, 2, 4))[0].dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.float16), torch.autocast("cpu", enabled=False):
        assert nn.GRU(4, 3)(torch.ones(5, 2, 4))[0].dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(4) @ torch.ones(4)).dtype is torch.bfloat16


def test_a_transformer_encoder_does_not_use_its_fused_kernel(emulation: None) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        assert layer(torch.ones(2, 3, 8)).isfinite().all()


def test_mixed_operands_raise_torchs_own_error(emulation: None) -> None:
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.mm(half(2, 2), torch.ones(2, 2))


def test_a_step_with_the_scaler_skips_on_overflow_and_then_learns(emulation: None) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)
    before = model.weight.detach().clone()
    changed = []
    for _ in range(12):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = functional.mse_loss(model(torch.ones(2, 4)), torch.full((2, 1), 8.0))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        changed.append(not torch.equal(model.weight, before))
    assert not changed[0]
    assert changed[-1]
    assert scaler.get_scale() < 2.0**15
    assert set(covered_products) >= {"mm", "addmm"}
