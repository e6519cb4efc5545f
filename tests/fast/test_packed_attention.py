import math

import pytest
import torch
from torch.nn import functional

from ampft.emulation import Emulation
from ampft.fast.packing.cpu_kernels import dropout_attention, keep_mask, realised_probability
from ampft.fast.packing.layout import AttentionOperands, AttentionOptions, pack_layout
from ampft.fast.packing.packed_attention import (
    _without_cudnn,
    binary16_attention,
    choose_kernel,
    efficient_attention,
    flash_attention,
    grouped_attention,
)

FP32_TOLERANCE = 1e-6
LENGTHS, HEADS, WIDTH, SCALE = (7, 3, 1, 7, 12, 8), 2, 8, 0.3


def reference(query, key, value, layout, *, window, masks=None, causal=False, position_bias=None):
    """Attention of one sequence after another in float64; `masks` holds a dropout mask for each."""
    parts, start = [], 0
    for number, length in enumerate(layout.lengths):
        q, k, v = (row[start : start + length].transpose(0, 1) for row in (query, key, value))
        scores = SCALE * (q @ k.mT)
        if window is not None:
            position = torch.arange(length)
            far = (position[:, None] - position).abs() >= window
            scores = scores.masked_fill(far, -torch.inf)
        if position_bias is not None:
            scores = scores + position_bias[:, :length, :length]
        if causal:
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        weights = scores.softmax(-1)
        if masks is not None:
            weights = weights * masks[number]
        parts.append((weights @ v).transpose(0, 1))
        start += length
    return torch.cat(parts)


def operands(total, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(total, HEADS, WIDTH, generator=generator).to(dtype).requires_grad_()
        for _ in range(4)
    ]


def layout_of(lengths, group_cost):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return pack_layout(mask, group_cost=group_cost)


def options(dropout=0.0, *, window=None, **rest):
    return AttentionOptions(dropout, SCALE, window, **rest)


def is_close(actual, expected, tolerance):
    return float((actual.double() - expected).norm() / expected.norm()) <= tolerance


@pytest.mark.parametrize("kernel", [grouped_attention, dropout_attention])
@pytest.mark.parametrize("window", [None, 3, 1])
@pytest.mark.parametrize("group_cost", [0.0, 60.0, math.inf])
def test_value_and_gradients_equal_the_reference(kernel, window, group_cost):
    layout = layout_of(LENGTHS, group_cost)
    *rows, weight = operands(layout.total)
    actual = kernel(AttentionOperands(*rows), layout, options(window=window))
    exact = [row.detach().double().requires_grad_() for row in rows]
    expected = reference(*exact, layout, window=window)
    assert is_close(actual.detach(), expected.detach(), FP32_TOLERANCE)
    gradients = torch.autograd.grad((actual * weight).sum(), rows)
    references = torch.autograd.grad((expected * weight.detach()).sum(), exact)
    for one, other in zip(gradients, references, strict=True):
        # With a window of one, softmax is constant and its gradient zero.
        assert float(other.norm()) == 0 or is_close(one, other, FP32_TOLERANCE)


@pytest.mark.parametrize("kernel", [grouped_attention, dropout_attention])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("group_cost", [0.0, math.inf])
def test_causal_attention_and_a_bias_of_positions(kernel, window, causal, group_cost):
    layout = layout_of(LENGTHS, group_cost)
    *rows, weight = operands(layout.total)
    generator = torch.Generator().manual_seed(1)
    bias = torch.randn(HEADS, layout.longest, layout.longest, generator=generator).requires_grad_()
    extra = {"window": window, "causal": causal}
    actual = kernel(AttentionOperands(*rows), layout, options(position_bias=bias, **extra))
    exact = [row.detach().double().requires_grad_() for row in (*rows, bias)]
    expected = reference(*exact[:3], layout, position_bias=exact[3], **extra)
    assert is_close(actual.detach(), expected.detach(), FP32_TOLERANCE)
    gradients = torch.autograd.grad((actual * weight).sum(), [*rows, bias])
    references = torch.autograd.grad((expected * weight.detach()).sum(), exact)
    for one, other in zip(gradients, references, strict=True):
        assert is_close(one, other, FP32_TOLERANCE)


@pytest.mark.parametrize("group_cost", [0.0, math.inf])
def test_dropout_multiplies_by_the_drawn_mask(group_cost):
    layout = layout_of(LENGTHS, group_cost)
    *rows, weight = operands(layout.total)
    torch.manual_seed(5)
    actual = dropout_attention(AttentionOperands(*rows), layout, options(0.25))
    torch.manual_seed(5)
    pairs = sum(HEADS * len(g.lengths) * g.longest**2 for g in layout.groups)
    flat = keep_mask(pairs, 0.25, torch.float32).double() / 0.75
    masks, start = [], 0
    for group in layout.groups:
        shape = (len(group.lengths), HEADS, group.longest, group.longest)
        square = flat[start : start + torch.Size(shape).numel()].view(shape)
        masks += [square[i, :, :n, :n] for i, n in enumerate(group.lengths)]
        start += square.numel()
    exact = [row.detach().double().requires_grad_() for row in rows]
    expected = reference(*exact, layout, window=None, masks=masks)
    assert is_close(actual.detach(), expected.detach(), FP32_TOLERANCE)
    gradients = torch.autograd.grad((actual * weight).sum(), rows)
    references = torch.autograd.grad((expected * weight.detach()).sum(), exact)
    for one, other in zip(gradients, references, strict=True):
        assert is_close(one, other, FP32_TOLERANCE)


def test_bfloat16_products_are_bfloat16():
    from torch.utils._python_dispatch import TorchDispatchMode

    dtypes = set()

    class ProductDtypes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "bmm" in str(function):
                dtypes.update(argument.dtype for argument in args)
            return function(*args, **(kwargs or {}))

    layout = layout_of(LENGTHS, 0.2)
    *rows, _ = operands(layout.total, torch.bfloat16)
    with ProductDtypes():
        dropout_attention(AttentionOperands(*rows), layout, options(0.1)).sum().backward()
    assert dtypes == {torch.bfloat16}


def test_kernels_by_dtype_and_dropout():
    rows = AttentionOperands(*operands(4)[:3])
    assert choose_kernel(rows, options(0.1)) is dropout_attention
    assert choose_kernel(rows, options(window=3)) is dropout_attention
    with torch.no_grad():
        assert choose_kernel(rows, options()) is grouped_attention
    halves = AttentionOperands(*(row.half() for row in rows))
    assert choose_kernel(halves, options(0.1)) is binary16_attention


gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(
    ("kernel", "dtype", "tolerance"),
    [
        pytest.param(flash_attention, torch.bfloat16, 2**-7, marks=gpu),
        pytest.param(flash_attention, torch.float16, 2**-10, marks=gpu),
        pytest.param(efficient_attention, torch.float32, 3e-6, marks=gpu),
    ],
)
@pytest.mark.parametrize(("window", "causal"), [(None, False), (None, True), (3, True), (3, False)])
def test_one_call_on_a_gpu(kernel, dtype, tolerance, window, causal):
    if kernel is efficient_attention and window is not None:
        pytest.skip("the gradient of memory-efficient attention forgets the window")
    mask = (torch.arange(12) < torch.tensor(LENGTHS)[:, None]).cuda()
    layout = pack_layout(mask)
    rows = [
        torch.randn(layout.total, HEADS, 64, device="cuda").to(dtype).requires_grad_()
        for _ in range(4)
    ]
    *rows, weight = rows
    actual = kernel(AttentionOperands(*rows), layout, options(window=window, causal=causal))
    exact = [row.detach().cpu().double().requires_grad_() for row in rows]
    expected = reference(*exact, layout, window=window, causal=causal)
    assert is_close(actual.detach().cpu(), expected.detach(), tolerance)
    gradients = torch.autograd.grad((actual * weight).sum(), rows)
    references = torch.autograd.grad((expected * weight.detach().cpu()).sum(), exact)
    for one, other in zip(gradients, references, strict=True):
        assert is_close(one.cpu(), other, 2 * tolerance)


def test_grouped_attention_drops_weights_through_torch():
    layout = layout_of(LENGTHS, 0.2)
    *rows, _ = operands(layout.total)
    torch.manual_seed(0)
    first = grouped_attention(AttentionOperands(*rows), layout, options(0.5))
    assert not torch.equal(first, grouped_attention(AttentionOperands(*rows), layout, options(0.5)))


def test_realised_probability_is_rounded_to_16_bits():
    for p in (0.1, 0.25, 0.5, 1 / 3):
        assert abs(realised_probability(p) - p) <= 2**-17
    assert functional.dropout(torch.ones(3), 0.0).equal(torch.ones(3))


def test_binary16_and_float32_drop_the_same_weights():
    layout = layout_of(LENGTHS, 0.3)
    *rows, weight = operands(layout.total)
    outputs, gradients = [], []
    for kernel, dtype in ((dropout_attention, torch.float32), (binary16_attention, torch.float16)):
        torch.manual_seed(0)
        leaves = [row.detach().half().to(dtype).requires_grad_() for row in rows]
        out = kernel(AttentionOperands(*leaves), layout, options(0.5))
        outputs.append(out.detach().double())
        gradients.append(torch.autograd.grad((out.float() * weight).sum(), leaves))
    assert is_close(outputs[1], outputs[0], 2e-3)
    for one, other in zip(*gradients, strict=True):
        assert is_close(other, one.double(), 5e-3)
    torch.manual_seed(1)
    other_masks = dropout_attention(AttentionOperands(*rows), layout, options(0.5))
    assert not is_close(other_masks.detach(), outputs[0], 0.1)


def test_causal_attention_reaches_the_fused_kernel_without_a_mask():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Fused(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "flash_attention" in function.name():
                seen.append((args[4], (kwargs or {}).get("attn_mask")))
            return function(*args, **(kwargs or {}))

    layout = layout_of(LENGTHS, 0.2)
    query, key, value, _ = operands(layout.total)
    with torch.no_grad(), Fused():
        grouped_attention(AttentionOperands(query, key, value), layout, options(causal=True))
    assert seen == [(True, None)] * len(layout.groups)


@pytest.mark.parametrize("kernel", [binary16_attention, grouped_attention])
def test_a_bias_is_rounded_to_binary16_as_on_a_gpu(kernel):
    layout = layout_of(LENGTHS, 0.3)
    halves = AttentionOperands(*(row.detach().half() for row in operands(layout.total)[:3]))
    generator = torch.Generator().manual_seed(1)
    bias = 8 * torch.randn(HEADS, layout.longest, layout.longest, generator=generator)
    outputs = []
    for each in (bias, bias.half().float(), 1.01 * bias):
        torch.manual_seed(0)
        with Emulation(torch.float16):
            outputs.append(kernel(halves, layout, options(0.5, position_bias=each)))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_groups_on_a_gpu_leave_cudnn_out():
    flags = torch.backends.cuda
    with _without_cudnn(torch.device("cpu")):
        assert flags.cudnn_sdp_enabled()
    with _without_cudnn(torch.device("cuda")):
        assert not flags.cudnn_sdp_enabled()
        assert flags.flash_sdp_enabled()
        assert flags.mem_efficient_sdp_enabled()
        assert flags.math_sdp_enabled()
    assert flags.cudnn_sdp_enabled()
