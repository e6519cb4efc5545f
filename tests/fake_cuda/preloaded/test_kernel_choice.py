"""Which attention kernel runs for which compute capability, dtype, head size and options."""

import pytest
import torch
from fake_cuda import CUDA, fake_mode, layout_of_host_mask

from ampft.fast.packing.layout import AttentionOperands, AttentionOptions
from ampft.fast.packing.packed_attention import (
    choose_kernel,
    efficient_attention,
    flash_attention,
    grouped_attention,
)


def chosen(dtype, head_size, *, dropout=0.1, window=None, **options):
    with fake_mode():
        rows = AttentionOperands(
            *(torch.empty(9, 2, head_size, dtype=dtype, device=CUDA) for _ in range(3))
        )
        return choose_kernel(rows, AttentionOptions(dropout, 1.0, window, **options))


@pytest.mark.parametrize(
    ("version", "dtype", "expected"),
    [
        ((7, 5), torch.float16, efficient_attention),
        ((7, 5), torch.bfloat16, grouped_attention),
        ((8, 0), torch.float16, flash_attention),
        ((8, 0), torch.bfloat16, flash_attention),
        ((9, 0), torch.bfloat16, flash_attention),
        ((7, 5), torch.float32, efficient_attention),
        ((9, 0), torch.float32, efficient_attention),
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_one_call_by_capability_and_dtype(capability, version, dtype, expected, dropout):
    """Memory-efficient attention drops other weights in its backward pass."""
    capability(*version)
    is_wrong = expected is efficient_attention and dropout > 0
    assert chosen(dtype, 64, dropout=dropout) is (grouped_attention if is_wrong else expected)


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize(
    ("head_size", "expected"),
    [
        (8, flash_attention),
        (26, grouped_attention),  # TinyBERT with 312 hidden units in 12 heads
        (256, flash_attention),
        (264, efficient_attention),
    ],
)
def test_kernels_by_head_size(head_size, expected):
    assert chosen(torch.bfloat16, head_size, dropout=0.0) is expected


@pytest.mark.usefixtures("capability")
def test_windows_and_biases():
    assert chosen(torch.bfloat16, 64, causal=True) is flash_attention
    assert chosen(torch.bfloat16, 64, window=4) is flash_attention
    # The gradient of memory-efficient attention forgets a window, and no kernel takes a bias.
    assert chosen(torch.float32, 64, causal=True, window=4) is grouped_attention
    assert chosen(torch.float32, 64, window=4) is grouped_attention
    bias = torch.zeros(2, 9, 9)
    assert chosen(torch.bfloat16, 64, position_bias=bias) is grouped_attention
    assert chosen(torch.float32, 64, position_bias=bias) is grouped_attention


def test_groups_run_without_cudnn(monkeypatch):
    """It builds a plan for each new shape, and has no gradient for a bias."""
    enabled = []

    def attend(query, *args, **kwargs):
        enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
        return torch.empty_like(query)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    mask = (torch.arange(30) < torch.tensor([3, 30])[:, None]).long()
    with fake_mode():
        layout = layout_of_host_mask(mask, device=CUDA, group_cost=0.0)
        rows = AttentionOperands(*(torch.empty(33, 2, 8, device=CUDA) for _ in range(3)))
        grouped_attention(rows, layout, AttentionOptions(0.1, 1.0))
    assert enabled == [False, False]
