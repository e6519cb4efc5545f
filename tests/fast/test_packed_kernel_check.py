"""The check of a kernel's dropout, and what follows where the kernel for a whole row is wrong."""

import re

import pytest
import torch
from tiny_encoders import right_padded, tiny

from ampft.fast.packing import packed_attention, verification
from ampft.fast.packing.cpu_kernels import dropout_attention
from ampft.fast.packing.install import install_packing
from ampft.fast.packing.layout import AttentionOptions
from ampft.fast.packing.packed_attention import grouped_attention, problem_of_dropout
from ampft.fast.packing.verification import grouped_attention_reason

OPTIONS = AttentionOptions(dropout=0.1, scale=0.2)
ROW = torch.empty(0, 4, 32)


def without_dropout(rows, packing, options):
    """As the kernels of flash attention 3 and 4 in transformers compute it."""
    return grouped_attention(rows, packing, AttentionOptions(0.0, options.scale))


def without_scale(rows, packing, options):
    return grouped_attention(rows, packing, options) * (1 - options.dropout)


class _OtherMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, attend):
        ctx.attend, ctx.value = attend, value
        return attend(value)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            value = ctx.value.detach().requires_grad_()
            return torch.autograd.grad(ctx.attend(value), value, grad)[0], None


def with_another_mask(rows, packing, options):
    """Recomputes the weights in the backward pass from the generator's next numbers."""

    def attend(value):
        return grouped_attention(rows._replace(value=value), packing, options)

    return _OtherMask.apply(rows.value, attend)


@pytest.mark.parametrize("kernel", [grouped_attention, dropout_attention])
@pytest.mark.parametrize("causal", [False, True])
def test_a_right_kernel_has_no_problem(kernel, causal):
    torch.manual_seed(0)
    options = AttentionOptions(dropout=0.1, scale=0.2, causal=causal)
    assert problem_of_dropout(kernel, ROW, options) is None


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (without_dropout, "its kernel drops 0.0% of the weights instead of 25%"),
        (without_scale, "its kernel multiplies kept weights by 1.000 instead of 1.333"),
        (with_another_mask, "its backward pass drops other weights than its forward pass"),
    ],
)
def test_wrong_dropout_is_seen(kernel, problem):
    torch.manual_seed(0)
    assert problem_of_dropout(kernel, ROW, OPTIONS) == problem


def wrong_gradient(rows, packing, options):
    query = rows.query.detach() + 1000 * (rows.query - rows.query.detach())
    return grouped_attention(rows._replace(query=query), packing, options)


def without_device(rows, packing, options):
    raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize(
    ("kernel", "note"),
    [
        (grouped_attention, None),
        (without_dropout, "drops 0.0% of the weights"),
        (wrong_gradient, "or another gradient"),
        (without_device, r"its kernel fails \(no kernel image is available\)"),
    ],
)
def test_a_wrong_kernel_is_replaced_by_groups(monkeypatch, kernel, note):
    model = tiny("bert")
    handle = install_packing(model)
    choose = packed_attention.choose_kernel

    def choose_one_call(rows, options, *, allows_one_call):
        return kernel if allows_one_call else choose(rows, options)

    monkeypatch.setattr(packed_attention, "choose_kernel", choose_one_call)
    monkeypatch.setattr(packed_attention, "ONE_CALL", (kernel,))
    # The check runs where such kernels are: on a GPU.
    monkeypatch.setattr(verification, "has_one_call_kernels", lambda device: True)
    found = grouped_attention_reason(model, model, right_padded(model, [5, 17, 1]))
    assert handle.allows_one_call == (note is None)
    if note is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith("attention runs in groups of similar length: ")
        assert re.search(note, found)


@pytest.mark.parametrize("probability", [0.0, 0.1])
def test_a_kernel_with_wrong_dropout_serves_models_without_dropout(monkeypatch, probability):
    """As memory-efficient attention on a GPU, which is not chosen for dropout."""
    model = tiny("bert")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = probability
    handle = install_packing(model)
    choose = packed_attention.choose_kernel

    def whole_row(rows, packing, options):
        assert options.dropout == 0
        return grouped_attention(rows, packing, options)

    def choose_one_call(rows, options, *, allows_one_call):
        is_right = allows_one_call and options.dropout == 0
        return whole_row if is_right else choose(rows, options)

    monkeypatch.setattr(packed_attention, "choose_kernel", choose_one_call)
    monkeypatch.setattr(packed_attention, "ONE_CALL", (whole_row,))
    monkeypatch.setattr(verification, "has_one_call_kernels", lambda device: True)
    states = torch.get_rng_state(), [module.training for module in model.modules()]
    note = grouped_attention_reason(model, model, right_padded(model, [5, 17, 1]))
    assert handle.allows_one_call == (probability == 0)
    assert (note is None) == (probability == 0)
    if note is not None:
        assert note.endswith("whole_row has no correct dropout of attention weights")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert [module.training for module in model.modules()] == states[1]
