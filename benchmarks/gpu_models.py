"""Models of published sizes with random weights, and random inputs for them.

Speed depends on the sizes and on the lengths of the inputs, not on weights or words. Each model
also has a tiny size, in which measurements are rehearsed on a CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from random_texts import FloatArray, IntArray, bert, lengths_of_texts, random_texts
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)

from ampft.models.adapters import add_lora
from ampft.models.model_settings import TrainedPartSettings

LORA_RANK = 16
TINY_VOCABULARY = 300
PAD = 0  # token id with which `random_texts.pad` fills a batch


class SkippedError(Exception):
    """Something that cannot be measured here; the message is the reason."""


@dataclass(frozen=True)
class Size:
    """The size of a model."""

    layers: int
    width: int
    heads: int
    inner: int  # Width inside the feed-forward layers.
    vocabulary: int = 30522  # Number of token ids.


@dataclass(frozen=True)
class Architecture:
    """A model that is measured."""

    size: Size
    build: Callable[[Size], Any]  # Makes the model with random weights.
    patches: int | None = None  # Tokens of an image; None for a model of texts.
    has_adapters: bool = False  # Whether only adapters (LoRA) and the head are trained.

    @property
    def tiny(self) -> Size:
        """The size in which it is rehearsed."""
        layers = 3 if self.build is _modernbert else 1  # one layer of each kind of attention
        return Size(layers, 48, 4, 96, TINY_VOCABULARY)


@dataclass(frozen=True, eq=False)
class RandomImages(Dataset[dict[str, Any]]):
    """Images of random values with labels, with the attributes of `RandomTexts`."""

    pixels: Tensor  # (n, 3, H, W) values.
    patches: int  # Tokens of an image.

    @property
    def lengths(self) -> IntArray:
        """(n,) tokens of each image."""
        return np.full(len(self), self.patches, np.int64)

    @property
    def weights(self) -> FloatArray:
        """(n,) ones: the weight of each image in the loss."""
        return np.ones(len(self))

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": self.pixels[index], "labels": index % 2}

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return the batch of the images `ids`."""
        return {"pixel_values": self.pixels[ids], "labels": torch.from_numpy(ids % 2)}


def _bert(size: Size) -> Any:
    return bert(size.layers, size.width, vocabulary=size.vocabulary)


def _common(size: Size) -> dict[str, int]:
    return {
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.inner,
    }


def _modernbert(size: Size) -> Any:
    names = ("pad", "bos", "eos", "cls", "sep")
    ids: dict[str, int] = dict.fromkeys((f"{name}_token_id" for name in names), PAD)
    config = ModernBertConfig(vocab_size=size.vocabulary, **_common(size), **ids)
    return ModernBertForSequenceClassification(config)


def _deberta(size: Size) -> Any:
    config = DebertaV2Config(
        vocab_size=size.vocabulary,
        **_common(size),
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
    )
    return DebertaV2ForSequenceClassification(config)


def _vit(size: Size) -> Any:
    side = 224 if size.layers > 1 else 32
    return ViTForImageClassification(ViTConfig(image_size=side, **_common(size)))


def _qwen2(size: Size) -> Any:
    if find_spec("peft") is None:
        raise SkippedError("peft is not installed")
    config = Qwen2Config(
        vocab_size=size.vocabulary, num_key_value_heads=2, pad_token_id=PAD, **_common(size)
    )
    model = Qwen2ForSequenceClassification(config)
    add_lora(model, TrainedPartSettings(lora_r=LORA_RANK))
    return model


MODELS: dict[str, Architecture] = {
    "MiniLM": Architecture(Size(6, 384, 12, 1536), _bert),
    "BERT-base": Architecture(Size(12, 768, 12, 3072), _bert),
    "ModernBERT-base": Architecture(Size(22, 768, 12, 1152, 50368), _modernbert),
    "DeBERTa-base": Architecture(Size(12, 768, 12, 3072, 128100), _deberta),
    "ViT-base": Architecture(Size(12, 768, 12, 3072), _vit, patches=197),
    "0.5B decoder, LoRA": Architecture(Size(24, 896, 14, 4864, 151936), _qwen2, has_adapters=True),
    "1.5B decoder, LoRA": Architecture(Size(28, 1536, 12, 8960, 151936), _qwen2, has_adapters=True),
}


@cache
def _built(name: str, is_tiny: bool) -> Any:
    torch.manual_seed(0)
    architecture = MODELS[name]
    size = architecture.tiny if is_tiny else architecture.size
    return architecture.build(size).train()


def model_of(name: str, *, is_tiny: bool) -> Any:
    """Return a new copy of a model of `MODELS` on the CPU, with the same weights each time.

    Raises:
        SkippedError: It needs a package that is missing.
    """
    return copy.deepcopy(_built(name, is_tiny))


def forget_models() -> None:
    """Release the memory of the models of which copies were made."""
    _built.cache_clear()


@cache
def examples_of(name: str, tokens: tuple[int, int], number: int, *, is_tiny: bool) -> Any:
    """Return random examples for a model, the same each time.

    Args:
        name: Name of the model.
        tokens: Mean and maximum length of the texts, in tokens; images are all alike.
        number: Number of examples.
        is_tiny: Whether they are for the tiny size.
    """
    architecture = MODELS[name]
    if architecture.patches is not None:
        side, patches = (32, 5) if is_tiny else (224, architecture.patches)
        draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
        return RandomImages(draw(number, 3, side, side), patches)
    mean, longest = tokens
    size = architecture.tiny if is_tiny else architecture.size
    return random_texts(lengths_of_texts(number, mean, longest=longest), size.vocabulary)


def gflop_of_step(model: nn.Module, lengths: IntArray, batch_size: int) -> float:
    """Return 10^9 operations of a step: of linear layers and of attention, of real tokens.

    A weight costs 2 operations per token forward, 2 for the gradient of its inputs, and 2 for its
    own gradient if it is trained. Attention costs 4 per pair of tokens and feature forward, and
    twice as many backward.

    Args:
        model: The model.
        lengths: (n,) tokens of each example.
        batch_size: Examples of a step.
    """
    base = model.get_submodule(str(model.base_model_prefix))
    linear = [m for m in base.modules() if isinstance(m, nn.Linear)]
    per_token = sum((6 if m.weight.requires_grad else 4) * m.weight.numel() for m in linear)
    config: Any = model.config
    per_pair = 12 * int(config.num_hidden_layers) * int(config.hidden_size)
    tokens, pairs = float(lengths.mean()), float((lengths.astype(float) ** 2).mean())
    return batch_size * (per_token * tokens + per_pair * pairs) / 1e9


def gigabytes_of_update(model: nn.Module) -> float:
    """Return 10^9 bytes that AdamW moves: it reads weight, gradient and two moments, writes three.

    Casts of weights to 16 bits and the zeroing of gradients are not counted.
    """
    return 7 * 4 * sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e9
