"""ERFNet has the layers and the number of parameters of its paper, and is saved as any model."""

from __future__ import annotations

import pytest
import torch
from tiny_masks import tiny_erfnet
from transformers import AutoConfig, AutoModelForSemanticSegmentation

from ampft.emulation import Emulation
from ampft.errors import InputError
from ampft.media.erfnet import (
    Downsampler,
    ErfnetConfig,
    ErfnetForSemanticSegmentation,
    NonBottleneck1D,
    Upsampler,
)
from ampft.models.adapters import target_layers

# Table I of the paper: type, output channels, and by how much the resolution is reduced.
TABLE = (
    ("Downsampler", 16, 2), ("Downsampler", 64, 4), *[("Non-bt-1D", 64, 4)] * 5,
    ("Downsampler", 128, 8),
    *[(f"Non-bt-1D (dilated {d})", 128, 8) for d in (2, 4, 8, 16, 2, 4, 8, 16)],
    ("Deconvolution", 64, 4), *[("Non-bt-1D", 64, 4)] * 2,
    ("Deconvolution", 16, 2), *[("Non-bt-1D", 16, 2)] * 2,
    ("Deconvolution", 20, 1),
)  # fmt: skip
KINDS = {Downsampler: "Downsampler", Upsampler: "Deconvolution", NonBottleneck1D: "Non-bt-1D"}


@pytest.fixture(scope="module")
def model() -> ErfnetForSemanticSegmentation:
    torch.manual_seed(0)
    return ErfnetForSemanticSegmentation(ErfnetConfig(num_labels=20)).eval()


def kind_of(layer: torch.nn.Module) -> str:
    kind = KINDS.get(type(layer), "Deconvolution")
    if isinstance(layer, NonBottleneck1D):
        (vertical, _), (_, horizontal) = layer.conv3x1_2.dilation, layer.conv1x3_2.dilation
        assert vertical == horizontal
        return kind if vertical == 1 else f"{kind} (dilated {vertical})"
    return kind


def test_adapters_are_refused_because_nothing_below_the_head_is_linear(model):
    with pytest.raises(InputError, match=r"--lora_r: ErfnetFor.* has no linear layers.*--freeze"):
        target_layers(model, None)


def test_the_layers_are_those_of_the_paper(model):
    layers = [*model.encoder, *model.decoder, model.classifier]
    rows = []
    for layer in layers:
        layer.register_forward_hook(
            lambda layer, _, out: rows.append((kind_of(layer), out.shape[1], 128 // out.shape[3]))
        )
    with torch.no_grad():
        logits = model(torch.zeros(1, 3, 64, 128)).logits
    assert tuple(rows) == TABLE
    assert len(rows) == 23
    assert logits.shape == (1, 20, 64, 128)


def parameters_of_the_paper(classes: int) -> int:
    """Weights, biases and the two of each norm, from the table."""

    def conv(inputs: int, outputs: int, kernel: int) -> int:
        return inputs * outputs * kernel + outputs

    total, channels = 0, 3
    for kind, outputs, _ in TABLE:
        if kind == "Downsampler":
            total += conv(channels, outputs - channels, 9) + 2 * outputs
        elif kind == "Deconvolution" and outputs != 20:
            total += conv(channels, outputs, 9) + 2 * outputs
        elif kind == "Deconvolution":
            total += conv(channels, classes, 4)
        else:
            total += 4 * conv(outputs, outputs, 3) + 2 * 2 * outputs
        channels = outputs
    return total


def test_it_has_two_million_parameters(model):
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == parameters_of_the_paper(20) == 2_064_256
    assert f"{count / 1e6:.2f}" == "2.06"  # the paper's number


def test_it_is_saved_and_loaded_as_any_other(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is ErfnetConfig
    loaded = AutoModelForSemanticSegmentation.from_pretrained(tmp_path).eval()
    images = torch.randn(2, 3, 24, 40)
    with torch.no_grad():
        assert torch.equal(loaded(images).logits, model(images).logits)


def test_any_size_of_image_has_logits_of_its_size(model):
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 21, 35)).logits.shape == (1, 20, 21, 35)


def test_the_loss_is_the_mean_over_the_pixels_that_count(model):
    images, labels = torch.randn(2, 3, 16, 16), torch.randint(0, 20, (2, 16, 16))
    labels[:, :5] = 255
    with torch.no_grad():
        output = model(images, labels=labels)
    counted = labels != 255
    expected = torch.nn.functional.cross_entropy(
        output.logits.permute(0, 2, 3, 1)[counted], labels[counted]
    )
    assert torch.allclose(output.loss, expected)


def test_new_weights_depend_on_the_seed_alone():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        model = ErfnetForSemanticSegmentation(ErfnetConfig(dilations=(2,), encoder_blocks=1))
        return torch.cat([p.flatten() for p in model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_dilated_and_transposed_convolutions_run_in_emulated_fp16():
    model = tiny_erfnet()
    images = torch.randn(2, 3, 16, 24)
    expected = model(images).logits
    with Emulation(torch.float16), torch.autocast("cpu", dtype=torch.float16):
        logits = model(images).logits
        logits.float().square().mean().backward()
    assert logits.dtype == torch.float16
    error = (logits.float() - expected).norm() / expected.norm()
    assert 0 < error < 1e-2  # some bits of binary16 are lost over 25 layers, but only these
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
