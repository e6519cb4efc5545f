"""The yardstick for int8: products whose operands have 8 bits."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from ampft.export.certificate.verify import round_products


def by_hand(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([(row * (127 / row.abs().max())).round() * row.abs().max() / 127
                        for row in values])  # fmt: skip


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Sequential(nn.Linear(5, 3)))


def test_weights_and_inputs_are_rounded_by_row():
    inputs = torch.randn(4, 6) * torch.tensor([[1.0], [1e3], [1e-3], [2.0]])
    first, _, (last,) = plain = model()
    hidden = torch.tanh(by_hand(inputs) @ by_hand(first.weight).T + first.bias)
    expected = by_hand(hidden) @ by_hand(last.weight).T + last.bias
    rounded = round_products(SimpleNamespace(model=model()), ()).model
    torch.testing.assert_close(rounded(inputs), expected)
    assert not torch.allclose(plain(inputs), expected, atol=1e-4)


def test_kept_modules_and_rows_of_zeros_stay():
    inputs = torch.randn(4, 6)
    kept = round_products(SimpleNamespace(model=model()), ("0", "2")).model
    assert torch.equal(kept(inputs), model()(inputs))
    rounded = round_products(SimpleNamespace(model=model()), ()).model
    assert torch.isfinite(rounded(torch.zeros(2, 6))).all()
