"""Recurrent cells under autocast, against the cells in float64 on the rounded products."""

import pytest
import torch
from binary16_reference import half_unit
from torch import Tensor, nn

CELLS = {"lstm": (nn.LSTMCell, 4), "gru": (nn.GRUCell, 3)}


def new_state(cell: nn.Module, rows: Tensor, dtype: torch.dtype) -> Tensor:
    with torch.autocast("cpu", dtype=torch.float16, enabled=dtype == torch.float16):
        state = cell(rows)
    return torch.cat(state) if isinstance(state, tuple) else state


def exact_products(name: str) -> tuple[nn.Module, Tensor]:
    """A cell whose matrix products are exact in float16, so that only its gates round."""
    kind, _ = CELLS[name]
    torch.manual_seed(0)
    cell = kind(6, 64)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.copy_(torch.randint(-8, 9, parameter.shape) / 16)
        for bias in (cell.bias_ih, cell.bias_hh):
            bias.add_(2.0**-9)  # rounded away if it is added in float16
    return cell, torch.randint(-8, 9, (32, 6)) / 8


@pytest.mark.parametrize("name", CELLS)
def test_the_new_state_is_rounded_once(emulation: None, name: str) -> None:
    cell, rows = exact_products(name)
    state = new_state(cell, rows, torch.float16)
    assert state.dtype is torch.float16
    exact = new_state(cell.double(), rows.double(), torch.float64)
    assert ((state.double() - exact).abs() <= 1.01 * half_unit(exact)).all()


@pytest.mark.parametrize("name", CELLS)
def test_a_cpu_rounds_every_gate(name: str) -> None:
    """Negative control: without the emulation."""
    cell, rows = exact_products(name)
    state = new_state(cell, rows, torch.float16)
    exact = new_state(cell.double(), rows.double(), torch.float64)
    assert ((state.double() - exact).abs() > 2 * half_unit(exact)).any()


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_reach_all_weights(emulation: None, name: str, bias: bool) -> None:
    kind, gates = CELLS[name]
    cell, rows = kind(6, 5, bias=bias), torch.randn(3, 6)
    gradients = []
    for dtype in (torch.float16, torch.float32):
        cell.zero_grad()
        new_state(cell, rows, dtype).float().sum().backward()
        gradients.append({n: p.grad.clone() for n, p in cell.named_parameters()})
    assert gradients[0]["weight_ih"].shape == (gates * 5, 6)
    for key, gradient in gradients[0].items():
        assert gradient.dtype is torch.float32
        assert torch.allclose(gradient, gradients[1][key], atol=5e-3), key
