"""Recurrent cells as CUDA computes them in binary16.

After two matrix products without biases, one kernel adds the products and the biases, computes the
gates in float32, and rounds only the new state. Source: torch, `aten/src/ATen/native/cuda/RNN.cu`.
That kernel also rounds the gates that it stores for the backward pass, which is not emulated.
"""

from __future__ import annotations

import torch
from torch import Tensor


def lstm_cell(
    input: Tensor,
    state: list[Tensor],
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the new hidden state and the new cell state, (B, H) float16.

    Args:
        input: (B, I) float16.
        state: Hidden state and cell state, (B, H) float16.
        weight_ih: (4 H, I) float16.
        weight_hh: (4 H, H) float16.
        bias_ih: (4 H,) float16, or None.
        bias_hh: (4 H,) float16, or None.
    """
    hidden, cell = state
    gates = _projected(input, weight_ih, bias_ih) + _projected(hidden, weight_hh, bias_hh)
    entering, kept, candidate, leaving = gates.chunk(4, 1)
    new_cell = kept.sigmoid() * cell.float() + entering.sigmoid() * candidate.tanh()
    return (leaving.sigmoid() * new_cell.tanh()).half(), new_cell.half()


def gru_cell(
    input: Tensor,
    hidden: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
) -> Tensor:
    """Return the new hidden state, (B, H) float16.

    Args:
        input: (B, I) float16.
        hidden: (B, H) float16.
        weight_ih: (3 H, I) float16.
        weight_hh: (3 H, H) float16.
        bias_ih: (3 H,) float16, or None.
        bias_hh: (3 H,) float16, or None.
    """
    from_input = _projected(input, weight_ih, bias_ih).chunk(3, 1)
    from_hidden = _projected(hidden, weight_hh, bias_hh).chunk(3, 1)
    reset = (from_input[0] + from_hidden[0]).sigmoid()
    update = (from_input[1] + from_hidden[1]).sigmoid()
    candidate = torch.tanh(from_input[2] + reset * from_hidden[2])
    return (candidate + update * (hidden.float() - candidate)).half()


def _projected(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows @ weight^T, rounded to float16, plus the bias, in float32."""
    product = (rows @ weight.t()).float()
    return product if bias is None else product + bias.float()
