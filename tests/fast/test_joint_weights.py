"""Weights of linear layers, cast by one operator, and projections in one product."""

from contextlib import nullcontext

import pytest
import torch
from representatives import TEXT_FAMILIES, full_except
from tiny_encoders import ENCODERS, relative_error, right_padded, tiny

from ampft.fast import joint_weights as joint_module
from ampft.fast.joint_weights import PROJECTIONS, joint_layers, joint_weights
from ampft.fast.packing.install import install_packing
from ampft.precision.float32_modules import keep_in_fp32

LENGTHS = [5, 17, 1, 17]
# Sums over queries, keys and values are one sum of three times as many products.
FP32_TOLERANCE = 1e-6
FAMILIES = full_except(sorted(ENCODERS), [*TEXT_FAMILIES, "gpt2", "t5"])


def packed(name):
    model = tiny(name)
    install_packing(model)
    return model


def step(model, dtype, context, *, passes=1):
    """Return the logits, and the gradients of `passes` equal micro-batches by parameter."""
    parameters = list(model.parameters())
    model.zero_grad()
    torch.manual_seed(0)
    with context:
        for _ in range(passes):
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                logits = model(**right_padded(model, LENGTHS))[0].float()
            weights = torch.linspace(-1, 1, logits.numel()).view_as(logits)
            (logits * weights).sum().backward()
    return logits.detach(), [p.grad for p in parameters]


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_casts_are_those_of_autocast_bit_for_bit(monkeypatch, name, passes):
    monkeypatch.setattr(joint_module, "PROJECTIONS", ())
    model = packed(name)
    kept = torch.autocast("cpu", enabled=False)  # which casts once for all passes
    expected = step(model, torch.bfloat16, kept, passes=passes)
    actual = step(model, torch.bfloat16, joint_weights(model, torch.bfloat16), passes=passes)
    assert torch.equal(actual[0], expected[0])
    for one, other in zip(actual[1], expected[1], strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("name", FAMILIES)
def test_one_product_of_projections_has_the_same_gradient(name):
    model = packed(name)
    expected = step(model, torch.float32, nullcontext())
    actual = step(model, torch.float32, joint_weights(model, torch.float32))
    assert torch.equal(actual[0], expected[0])
    assert relative_error(flat(actual[1]), flat(expected[1])) <= FP32_TOLERANCE


@pytest.mark.parametrize("name", full_except(["bert", "distilbert", "llama"], ["bert"]))
def test_one_product_in_bfloat16_is_as_close_to_float32(name):
    model = packed(name)
    exact = flat(step(model, torch.float32, nullcontext())[1])
    plain = step(model, torch.bfloat16, nullcontext())
    joint = step(model, torch.bfloat16, joint_weights(model, torch.bfloat16))
    assert torch.equal(joint[0], plain[0])
    errors = [relative_error(flat(gradients), exact) for _, gradients in (joint, plain)]
    assert 0 < errors[0] <= 1.2 * errors[1]


def test_projections_of_two_sequences_in_a_row_are_not_mixed_up():
    """The negative control of the product that is shared by three layers."""
    model = packed("bert")
    attention = model.bert.encoder.layer[0].attention.self
    one, other = torch.randn(2, 1, 3, 32).unbind()
    with joint_weights(model, torch.float32), torch.no_grad():
        query = attention.query(one)
        keys, values = attention.key(other), attention.value(other)
    assert torch.equal(query, attention.query(one))
    assert torch.equal(keys, attention.key(other))
    assert torch.equal(values, attention.value(other))
    assert not torch.equal(keys, attention.key(one))


def test_parameters_are_back_even_after_an_error():
    model = packed("bert")
    before = dict(model.named_parameters())

    def fail():
        with joint_weights(model, torch.bfloat16):
            assert model.classifier.weight.dtype == torch.bfloat16
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert {name: id(p) for name, p in before.items()} == {
        name: id(p) for name, p in model.named_parameters()
    }
    assert not any("forward" in layer.__dict__ for layer in joint_layers(model)[0])


def test_frozen_layers_and_layers_in_float32_stay_as_they_are():
    model = packed("bert")
    first, second = model.bert.encoder.layer
    first.attention.self.key.requires_grad_(requires_grad=False)
    keep_in_fp32(model, ["classifier"])
    layers, groups = joint_layers(model)
    assert model.classifier not in layers
    assert first.attention.self.key not in layers
    attention = second.attention.self
    assert groups == [(attention.query, attention.key, attention.value)]


def test_layers_inside_a_module_in_float32_stay_as_they_are():
    model = packed("bert")
    first, second = model.bert.encoder.layer
    keep_in_fp32(model, ["layer.0.attention"])
    layers, groups = joint_layers(model)
    assert not set(layers) & set(first.attention.modules())
    assert first.output.dense in layers
    assert groups == [tuple(getattr(second.attention.self, name) for name in PROJECTIONS[0])]
