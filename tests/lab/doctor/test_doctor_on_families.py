"""Nothing is reported in healthy models of different families, padded and without padding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_encoders import CLASSES, ENCODERS, VOCABULARY, right_padded, tiny
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    MobileBertConfig,
    MobileBertForSequenceClassification,
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    XLNetConfig,
    XLNetForSequenceClassification,
)

from ampft.fast.packing.families import packing_support
from ampft.fast.packing.install import install_packing
from ampft.lab.doctor.examine import scan

pytestmark = pytest.mark.slow

LENGTHS = (9, 3, 7, 7, 1, 5)
IMAGES = {"image_size": 16, "num_channels": 3, "num_labels": 3}
VISION: dict[str, Callable[[], PreTrainedModel]] = {
    "vit": lambda: ViTForImageClassification(
        ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                  intermediate_size=64, patch_size=4, **IMAGES)
    ),
    "resnet": lambda: ResNetForImageClassification(
        ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], **IMAGES)
    ),
    "convnext": lambda: ConvNextForImageClassification(
        ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, **IMAGES)
    ),
}  # fmt: skip

# Its mask is 1e30, which is infinite in binary16 and only a softmax reads; most entries of the
# gradient of the other are too small for binary16 at the scale in use.
TEXT = {
    **ENCODERS,
    "xlnet": lambda: XLNetForSequenceClassification(
        XLNetConfig(vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=64,
                    num_labels=CLASSES, pad_token_id=0)
    ),
    "mobilebert": lambda: MobileBertForSequenceClassification(
        MobileBertConfig(vocab_size=VOCABULARY, hidden_size=64, embedding_size=32,
                         num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                         intra_bottleneck_size=32, num_labels=CLASSES)
    ),
}  # fmt: skip


def text_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(**batch).logits.float()
    if logits.dim() == 3:  # of tokens, whose padding has no label
        logits = logits[batch["attention_mask"] != 0]
    return functional.cross_entropy(logits, torch.arange(len(logits)) % 3)


def image_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(**batch).logits.float(), torch.arange(4) % 3)


def test_there_are_twenty_families():
    assert len(ENCODERS) + len(VISION) >= 20


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("mode", ["fp16", "bf16"])
def test_no_fault_is_reported_in_a_text_model(name, mode, monkeypatch):
    monkeypatch.setattr("tiny_encoders.ENCODERS", TEXT)
    model = tiny(name)
    batches = [right_padded(model, LENGTHS, seed=seed) for seed in range(2)]
    if mode == "fp16" and packing_support(model).supported:
        install_packing(model)

    diagnosis = scan(model, batches, text_loss, mixed_precision=mode)

    assert diagnosis.faults == ()
    assert diagnosis.holds
    assert diagnosis.gradient.cosine > 0.99
    assert diagnosis.gradient.lost_share < 0.01


@pytest.mark.parametrize("name", VISION)
def test_no_fault_is_reported_in_a_vision_model(name):
    torch.manual_seed(0)
    model = VISION[name]().train()
    batch = {"pixel_values": torch.randn(4, 3, 16, 16)}

    diagnosis = scan(model, [batch], image_loss)

    assert diagnosis.faults == ()
    assert diagnosis.holds
