"""Tiny images with masks, and tiny models for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.media.erfnet import ErfnetConfig, ErfnetForSemanticSegmentation
from ampft.media.masks import Masks
from ampft.media.pixel_labels import mask_digest, mask_to_png
from ampft.media.pixel_outcome import BINS, PixelPredictions
from ampft.metrics.scores import confusion
from ampft.tasks.task import Task, make_task
from ampft.tasks.task_settings import TaskSettings

SIZE = (16, 24)  # height, width
COLORS = ((40, 40, 40), (200, 60, 60), (60, 60, 200))
IGNORED = 255


def mask_of(row: int, *, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A mask of three classes in rectangles, with as many ignored lines as its row."""
    generator = np.random.default_rng(row)
    mask = np.zeros(size, dtype=np.uint8)
    for label in (1, 2):
        top, left = generator.integers(0, size[0] - 4), generator.integers(0, size[1] - 6)
        mask[top : top + 6, left : left + 9] = label
    mask[: row % 7] = IGNORED
    return mask


def image_of(mask: np.ndarray, row: int) -> np.ndarray:
    """An image in which each class has a colour, with noise."""
    colors = np.array([*COLORS, *[(0, 0, 0)] * 253])[mask]
    noise = np.random.default_rng([row, 1]).integers(0, 30, colors.shape)
    return (colors + noise).astype(np.uint8)


def write_pair(images: Path, masks: Path, name: str, row: int) -> None:
    mask = mask_of(row)
    Image.fromarray(image_of(mask, row)).save(images / f"{name}.png")
    Image.fromarray(mask).save(masks / f"{name}.png")


def write_folders(folder: Path, *, train: int = 13, val: int = 4) -> Path:
    """Write train/, trainannot/, val/ and valannot/."""
    for split, count, first in (("train", train, 0), ("val", val, 100)):
        images, masks = folder / split, folder / f"{split}annot"
        images.mkdir(parents=True)
        masks.mkdir()
        for row in range(count):
            write_pair(images, masks, f"{split}{row:02}", first + row)
    return folder


def save_tiny_segformer(folder: Path) -> Path:
    """A SegFormer with random weights, and its image processor."""
    from transformers import (
        SegformerConfig,
        SegformerForSemanticSegmentation,
        SegformerImageProcessorPil,
    )

    torch.manual_seed(0)
    config = SegformerConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_attention_heads=[1, 2], sr_ratios=[2, 1],
        patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2], num_encoder_blocks=2,
        decoder_hidden_size=16, num_labels=3,
    )  # fmt: skip
    SegformerForSemanticSegmentation(config).save_pretrained(folder)
    SegformerImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def tiny_erfnet(*, batch_norm: bool = False) -> nn.Module:
    """A small ERFNet without dropout; its norms are group norms unless `batch_norm`."""
    torch.manual_seed(0)
    config = ErfnetConfig(
        hidden_sizes=(8, 12, 16), encoder_blocks=1, dilations=(2,), decoder_blocks=1,
        dropout_probs=(0.0, 0.0), num_labels=3,
    )  # fmt: skip
    model = ErfnetForSemanticSegmentation(config)
    if not batch_norm:
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.BatchNorm2d):
                    setattr(module, name, nn.GroupNorm(2, child.num_features))
    return model


def mask_outcome(masks: Masks, predicted: Sequence[np.ndarray], split: str) -> PixelPredictions:
    """The outcome of predicted masks; losses and confidences are 0."""
    n, classes = len(masks), len(masks.classes.names)
    truth = masks.decoded(np.arange(n))
    pairs = [(t[t != IGNORED], p[t != IGNORED]) for t, p in zip(truth, predicted, strict=True)]
    files = np.empty(n, dtype=object)
    files[:] = [mask_to_png(mask) for mask in predicted]
    return PixelPredictions(
        counts=np.stack([confusion(t.astype(int), p.astype(int), classes) for t, p in pairs]),
        losses=np.zeros((n, 2)),
        bins=np.zeros((n, 3, BINS)),
        digests=np.array([mask_digest(mask) for mask in predicted]),
        label_names=masks.classes.names,
        split=split,
        masks=files,
    )


def pixel_task(folder: Path, **settings: Any) -> Task:
    data = load_data(ClassifyArguments(dataset_name=str(folder), task="pixels"))
    settings = {"model_name_or_path": "erfnet"} | settings
    return make_task(data, TaskSettings(task="pixels", **settings))
