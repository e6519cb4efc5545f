"""Linear layers of 4 bits: their products and gradients, files, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_encoders import relative_error, right_padded, tiny, without_dropout
from torch.nn import functional
from transformers import AutoModelForSequenceClassification

from ampft.errors import InputError
from ampft.fast.packing.install import install_packing
from ampft.features.resources import flops_per_token
from ampft.models.adapters import (
    base_sha256,
    merge_adapters,
    restrict_training,
    save_model_or_adapters,
)
from ampft.models.four_bit import FourBitLinear, dequantize, quantize_base_to_4bit, weight_counts
from ampft.models.model_settings import TrainedPartSettings
from ampft.models.pretrained import enable_gradient_checkpointing, load_pretrained, load_saved
from ampft.models.weights import LoadedModel, weights_size
from ampft.precision.accelerator import numerics
from ampft.precision.executed import ProductRecorder
from ampft.precision.resolve import resolve

pytest.importorskip("bitsandbytes", reason="--load_in_4bit needs bitsandbytes")

LENGTHS = [9, 4, 17, 1]
LABELS = torch.tensor([0, 1, 2, 0])
# The whole gradient against a float64 model, relative. The error of two layers is 3 to 6 times the
# unit roundoff of the operands (2^-24, 2^-8, 2^-11); about three times that is allowed.
TOLERANCES = {"fp32": 1e-6, "bf16": 3e-2, "fp16": 4e-3}
# T5 and DeBERTa read the weights of their layers themselves, beside calling the layers.
FAMILIES = ["llama", "qwen3", "bert", "mt5", "deberta-v2"]


def precision_of(mode):
    precision = resolve(mode, torch.device("cpu"))
    if precision.execution == "unavailable":
        pytest.skip(precision.reason)
    return precision


def adapted(family="llama", *, four_bits=True):
    """Return a model with adapters that have an effect, as after some steps."""
    torch.manual_seed(1)
    part = TrainedPartSettings(lora_r=2, lora_target_modules="all-linear", load_in_4bit=four_bits)
    model = without_dropout(tiny(family))
    restrict_training(LoadedModel(model, family, False, ()), part)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.1)
    return model


def dequantized(model):
    """Return a copy whose layers are PyTorch's, with the dequantized weights in float32."""
    twin = copy.deepcopy(model)
    dequantize(twin)
    assert not any(isinstance(module, FourBitLinear) for module in twin.modules())
    return twin


def step(model, mode="fp32"):
    """Return the logits, the gradient of all that is trained, and the dtypes of a step."""
    precision = precision_of(mode)
    recorder, is_half = ProductRecorder(precision), precision.compute_dtype != torch.float32
    with numerics(precision), recorder:
        with torch.autocast("cpu", precision.compute_dtype, enabled=is_half):
            logits = model(**right_padded(model, LENGTHS)).logits
        functional.cross_entropy(logits.float() if is_half else logits, LABELS).backward()
    gradients = [p.grad.flatten() for p in model.parameters() if p.requires_grad]
    return logits.detach(), torch.cat(gradients), recorder.census(model)


@pytest.mark.parametrize("mode", TOLERANCES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_that_of_the_dequantized_weights_bit_for_bit(family, mode):
    model = adapted(family)
    logits, gradient, census = step(model, mode)
    expected_logits, expected_gradient, expected_census = step(dequantized(model), mode)
    assert torch.equal(logits, expected_logits)
    assert torch.equal(gradient, expected_gradient)
    assert census.rows == expected_census.rows  # dtypes of all products, and their number
    assert "uint8" in census.parameters
    assert "uint8" not in expected_census.parameters


@pytest.mark.parametrize("mode", TOLERANCES)
def test_the_gradient_is_that_of_float64_with_the_dequantized_weights(mode):
    """With the weights from before the quantization, it is another one."""
    model = adapted()
    _, gradient, _ = step(model, mode)
    _, same, _ = step(dequantized(model).double())
    _, other, _ = step(adapted(four_bits=False).double())
    assert relative_error(gradient.double(), same) <= TOLERANCES[mode]
    assert relative_error(gradient.double(), other) > 3 * TOLERANCES[mode]


def test_checkpointing_and_the_padding_free_path_have_the_same_gradient():
    model = adapted()
    logits, gradient, _ = step(model, "bf16")
    model.zero_grad()
    enable_gradient_checkpointing(model.train())
    assert torch.equal(step(model, "bf16")[1], gradient)
    packed = adapted()
    handle = install_packing(packed)
    packed_logits, packed_gradient, _ = step(packed)
    logits, gradient, _ = step(adapted())
    assert handle.paths["packed"] == 1
    assert relative_error(packed_logits, logits) <= TOLERANCES["fp32"]
    assert relative_error(packed_gradient, gradient) <= TOLERANCES["fp32"]


def test_four_bits_and_a_scale_per_block_are_stored_and_counted_as_weights():
    model, plain = adapted(), adapted(four_bits=False)
    layers = [module for module in model.modules() if isinstance(module, FourBitLinear)]
    assert len(layers) == 2 * 7  # without the head
    weights = sum(layer.in_features * layer.out_features for layer in layers)
    assert weights_size(plain) - weights_size(model) == weights * 4 - weights * (1 / 2 + 4 / 64)
    assert sum(weight_counts(model).values()) == sum(p.numel() for p in plain.parameters())
    assert flops_per_token(model) == flops_per_token(plain)


@pytest.mark.parametrize("shape", [(8, 8), (33, 77), (5, 1)])
def test_any_shape_is_quantized_as_bitsandbytes_does(shape):
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    model = tiny("llama")
    linear = model.model.layers[0].mlp.up_proj = torch.nn.Linear(shape[1], shape[0])
    weight = linear.weight.detach()
    quantize_base_to_4bit(model)
    assert torch.equal(linear.weight, dequantize_4bit(*quantize_4bit(weight, quant_type="nf4")))
    inputs = torch.randn(3, shape[1])
    assert torch.equal(linear(inputs), functional.linear(inputs, linear.weight, linear.bias))


def test_merged_adapters_leave_a_plain_model_with_the_same_logits():
    model, plain = adapted().eval(), tiny("llama")
    batch = right_padded(plain, LENGTHS)
    expected = model(**batch).logits.detach()
    merge_adapters(model)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert relative_error(model(**batch).logits.detach(), expected) <= TOLERANCES["fp32"]


@pytest.fixture
def saved(tmp_path):
    """Folders of a base and of adapters to it in 4 bits, and the model of both."""
    base, folder = tmp_path / "base", tmp_path / "adapters"
    tiny("llama").model.save_pretrained(base)
    folder.mkdir()
    labels = {"num_labels": 3, "id2label": {0: "a", 1: "b", 2: "c"}}
    labels["label2id"] = {"a": 0, "b": 1, "c": 2}
    model, _ = load_pretrained(
        AutoModelForSequenceClassification, str(base), labels, trust_remote_code=False
    )
    digest = base_sha256(model)
    part = TrainedPartSettings(lora_r=2, lora_target_modules="all-linear", load_in_4bit=True)
    loaded = restrict_training(LoadedModel(model, str(base), False, ()), part)
    assert loaded.base_sha256 == digest
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.1)
    save_model_or_adapters(model, folder, loaded, None)
    return base, folder, model.eval()


def test_saved_adapters_are_loaded_with_their_base_in_four_bits(saved):
    _, folder, model = saved
    loaded = load_saved(AutoModelForSequenceClassification, str(folder))
    ours, theirs = loaded.state_dict(), model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    batch = right_padded(model, LENGTHS)
    assert torch.equal(loaded.eval()(**batch).logits, model(**batch).logits)


def test_layers_and_package_are_required(monkeypatch):
    with pytest.raises(InputError, match=r"--load_in_4bit: GPT2.* has no nn.Linear layers below"):
        quantize_base_to_4bit(tiny("gpt2"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'not installed.*"ampft\[4bit\]"`, or train'):
        quantize_base_to_4bit(tiny("llama"))
