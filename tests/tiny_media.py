"""Tiny models for images and sounds, and tasks of tiny files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as t
from media_files import image_folder, sound_table

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.tasks.task import Task, make_task
from ampft.tasks.task_settings import TaskSettings

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
WAV2VEC2 = {
    **SMALL,
    "conv_dim": (8,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
    **dict.fromkeys(("hidden_dropout", "attention_dropout", "activation_dropout"), 0.0),
    **dict.fromkeys(("feat_proj_dropout", "final_dropout"), 0.0),
}
WHISPER = {
    "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32, "dropout": 0.0,
    "num_mel_bins": 40, "max_source_positions": 50, "classifier_proj_size": 16,
}  # fmt: skip
PIXELS = {"height": 16, "width": 16}

# Configuration, and image processor or feature extractor, by name of the family.
IMAGE_FAMILIES: dict[str, tuple[Any, Any]] = {
    "vit": (
        lambda: t.ViTConfig(image_size=16, patch_size=4, **SMALL, **NO_DROPOUT),
        lambda: t.ViTImageProcessorPil(size=PIXELS),
    ),
    "convnext": (
        lambda: t.ConvNextConfig(
            patch_size=2, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, initializer_range=0.2
        ),
        lambda: t.ConvNextImageProcessorPil(size={"shortest_edge": 16}, crop_pct=1.0),
    ),
    "resnet": (
        lambda: t.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
        ),
        lambda: t.ViTImageProcessorPil(size=PIXELS, image_mean=[0.4, 0.5, 0.6]),
    ),
    "swin": (
        lambda: t.SwinConfig(
            image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[1, 2],
            window_size=4, drop_path_rate=0.0, initializer_range=0.2, **NO_DROPOUT,
        ),
        lambda: t.ViTImageProcessorPil(size=PIXELS),
    ),
    "dinov2": (
        lambda: t.Dinov2Config(
            image_size=16, patch_size=4, mlp_ratio=2, initializer_range=0.2, hidden_size=16,
            num_hidden_layers=2, num_attention_heads=2, **NO_DROPOUT,
        ),
        lambda: t.ViTImageProcessorPil(size=PIXELS),
    ),
}  # fmt: skip
SOUND_FAMILIES: dict[str, tuple[Any, Any]] = {
    "wav2vec2 group norm": (
        lambda: t.Wav2Vec2Config(**WAV2VEC2),
        lambda: t.Wav2Vec2FeatureExtractor(),
    ),
    "wav2vec2 layer norm": (
        lambda: t.Wav2Vec2Config(
            feat_extract_norm="layer", do_stable_layer_norm=True, **WAV2VEC2
        ),
        lambda: t.Wav2Vec2FeatureExtractor(return_attention_mask=True),
    ),
    "hubert": (
        lambda: t.HubertConfig(**WAV2VEC2),
        lambda: t.Wav2Vec2FeatureExtractor(),
    ),
    "ast": (
        lambda: t.ASTConfig(max_length=32, num_mel_bins=32, patch_size=8, time_stride=8,
                            frequency_stride=8, **SMALL, **NO_DROPOUT),
        lambda: t.ASTFeatureExtractor(max_length=32, num_mel_bins=32),
    ),
    "whisper": (
        lambda: t.WhisperConfig(init_std=0.2, **WHISPER),
        lambda: t.WhisperFeatureExtractor(feature_size=40, chunk_length=1),
    ),
}  # fmt: skip


def save_model(folder: Path, family: str, *, with_processor: bool = True, labels: int = 3) -> Path:
    """Save a tiny model with random weights in a new folder."""
    is_image = family in IMAGE_FAMILIES
    config, processor = (IMAGE_FAMILIES if is_image else SOUND_FAMILIES)[family]
    auto = t.AutoModelForImageClassification if is_image else t.AutoModelForAudioClassification
    configuration = config()
    configuration.num_labels = labels
    torch.manual_seed(0)
    auto.from_config(configuration).save_pretrained(folder)
    if with_processor:
        processor().save_pretrained(folder)
    return folder


def media_task(folder: Path, family: str | None, *, per_class: int = 4, **settings: Any) -> Task:
    """Return a task of files in a folder; with a family, of a tiny model of it.

    Files that are there are used again. All examples are for training: 3 classes with
    `per_class` each.
    """
    options: dict[str, Any] = {"validation_fraction": 0.0, "test_fraction": 0.0}
    data = folder / "data"
    is_new = not data.exists()
    is_sound = settings.pop("sounds", False) or family in SOUND_FAMILIES
    if is_new:
        (sound_table if is_sound else image_folder)(data, per_class)
    if is_sound:
        options["train_file"] = data / "sounds.csv"
    else:
        options["dataset_name"] = str(data)
    if family is not None:
        settings["model_name_or_path"] = str(folder / "model")
        if is_new:
            save_model(folder / "model", family)
    return make_task(load_data(ClassifyArguments(**options)), TaskSettings(**settings))
