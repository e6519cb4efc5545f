"""Which attention kernel runs for which compute capability, dtype and head size."""

import pytest
import torch
from fake_cuda import CUDA, fake_mode

from ampft.models.packing.attention import choose_kernel, grouped_attention
from ampft.models.packing.kernels import varlen_attention
from ampft.models.packing.layout import AttentionOptions


def chosen(dtype, head_size, *, dropout=0.0, window=None, **options):
    with fake_mode():
        rows = [torch.empty(9, 2, head_size, dtype=dtype, device=CUDA) for _ in range(3)]
        return choose_kernel(rows, AttentionOptions(dropout, 1.0, window, **options))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((7, 0), grouped_attention),
        ((7, 5), grouped_attention),
        ((8, 0), varlen_attention),
        ((9, 0), varlen_attention),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_flash_attention_needs_compute_capability_8(capability, version, expected, dtype):
    capability(*version)
    assert chosen(dtype, 64) is expected
    assert chosen(dtype, 64, window=4) is expected


@pytest.mark.usefixtures("capability")
@pytest.mark.parametrize(
    ("head_size", "expected"),
    [
        (8, varlen_attention),
        (26, grouped_attention),  # TinyBERT with 312 hidden units in 12 heads
        (256, varlen_attention),
        (264, grouped_attention),
    ],
)
def test_flash_attention_needs_a_head_size_it_has_kernels_for(head_size, expected):
    assert chosen(torch.bfloat16, head_size) is expected


@pytest.mark.usefixtures("capability")
def test_float32_dropout_and_a_bias_run_in_groups():
    assert chosen(torch.bfloat16, 64, causal=True) is varlen_attention
    bias = torch.zeros(2, 9, 9)
    assert chosen(torch.bfloat16, 64, position_bias=bias) is grouped_attention
    assert chosen(torch.float32, 64) is grouped_attention
    assert chosen(torch.bfloat16, 64, dropout=0.1) is grouped_attention
