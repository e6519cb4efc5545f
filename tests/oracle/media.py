"""Tiny pictures and sounds, and models of both."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from oracle.cases import Case

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 48, "hidden_dropout_prob": 0.0,
         "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}  # fmt: skip
RATE = 16_000  # frames per second, as the models want it
MODES = ("RGB", "L", "RGBA", "P", "CMYK", "1", "LA", "I;16", "turned")


def write_files(case: Case, folder: Path, split: str, rows: list[dict[str, Any]]) -> None:
    """Write a file for each row, and its path, relative to the table, into the row."""
    from oracle.draw import CLASSES

    random_ = random.Random(f"{case.seed} {split}")
    (folder / "files").mkdir(exist_ok=True)
    for index, row in enumerate(rows):
        column = "picture" if case.task == "images" else "sound"
        number = [*CLASSES, "None", "007", "NA", "été", "a b", "10"].index(str(row["label"])) % 6
        stem = f"files/{split}{index}"
        if "duplicates" in case.traits and index in (2, 3):
            row[column] = rows[1][column]
        elif case.task == "images":
            row[column] = _picture(folder, stem, number, random_, "specials" in case.traits)
        else:
            row[column] = _sound(folder, stem, number, random_, "specials" in case.traits)


def _picture(folder: Path, stem: str, number: int, random_: random.Random, odd: bool) -> str:
    from PIL import Image

    generator = np.random.default_rng(random_.randrange(10**9))
    size = (random_.randint(9, 20), random_.randint(9, 20), 3)
    pixels = generator.integers(0, 160, size, dtype=np.uint8)
    pixels[..., number % 3] += 40 + 15 * (number // 3)
    picture = Image.fromarray(pixels)
    mode = random_.choice(MODES) if odd else "RGB"
    if mode == "I;16":
        picture = Image.fromarray((pixels[..., 0].astype(np.uint16) << 8) + 7)
    elif mode in ("RGBA", "LA"):
        alpha = Image.fromarray(generator.integers(0, 256, size[:2], dtype=np.uint8))
        picture = picture.convert("L" if mode == "LA" else "RGB")
        picture.putalpha(alpha)
    elif mode != "turned":
        picture = picture.convert(mode)
    name = f"{stem}.{'tiff' if mode == 'CMYK' else 'png'}"
    exif = Image.Exif()
    if mode == "turned":
        exif[0x0112] = random_.randint(2, 8)
    picture.save(folder / name, **({"exif": exif} if mode == "turned" else {}))
    return name


def _sound(folder: Path, stem: str, number: int, random_: random.Random, odd: bool) -> str:
    import soundfile

    count = random_.randint(900, 3000)
    times = np.arange(count) / RATE + random_.random()
    noise = np.random.default_rng(random_.randrange(10**9)).normal(scale=0.05, size=count)
    wave = 0.4 * np.sin(2 * np.pi * (200 + 500 * number) * times) + noise
    stereo = odd and random_.random() < 0.5
    frames = np.stack([wave, 0.3 * wave + noise], axis=1) if stereo else wave
    name = f"{stem}.{'flac' if odd and random_.random() < 0.5 else 'wav'}"
    soundfile.write(folder / name, frames, RATE, subtype="PCM_16")
    return name


def as_array(case: Case, path: str) -> Any:
    """Return the pixels or frames of a file, as the documentation describes them."""
    if case.task == "sounds":
        import soundfile

        frames, _ = soundfile.read(path, dtype="float32", always_2d=True)
        return frames.mean(1)
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(Image.open(path))
    if picture.mode.startswith("I"):
        grey = np.rint(np.asarray(picture, dtype=np.float64) * 255 / 65535).astype(np.uint8)
        picture = Image.fromarray(grey)
    if picture.mode in ("RGBA", "LA"):
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return picture.convert("RGB")


def encode(case: Case, processor: Any, path: str) -> dict[str, Any]:
    """Return the inputs of one file in float64."""
    if case.task == "sounds":
        given = processor(as_array(case, path), sampling_rate=RATE, return_tensors="pt")
        return {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
    given = processor(images=[as_array(case, path)], return_tensors="pt")
    return {"pixel_values": given["pixel_values"].double()}


FAMILIES = {"images": ("vit", "convnext", "dinov2"), "sounds": ("ast", "wav2vec2")}


def save_model(case: Case, names: list[str], folder: Path) -> None:
    """Save a model with a head for the labels, and its processor."""
    import torch
    import transformers as t

    pixels, labels = {"height": 16, "width": 16}, {
        "id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}
    }  # fmt: skip
    config, processor = {
        "vit": lambda: (t.ViTConfig(image_size=16, patch_size=4, **SMALL, **labels),
                        t.ViTImageProcessorPil(size=pixels)),
        "dinov2": lambda: (t.Dinov2Config(image_size=16, patch_size=4, mlp_ratio=2, **SMALL,
                                          **labels),
                           t.ViTImageProcessorPil(size=pixels, image_mean=[0.4, 0.5, 0.6])),
        "convnext": lambda: (t.ConvNextConfig(patch_size=2, hidden_sizes=[8, 16], depths=[1, 1],
                                              num_stages=2, initializer_range=0.2, **labels),
                             t.ViTImageProcessorPil(size=pixels)),
        "ast": lambda: (t.ASTConfig(max_length=32, num_mel_bins=32, patch_size=8, time_stride=8,
                                    frequency_stride=8, **SMALL, **labels),
                        t.ASTFeatureExtractor(max_length=32, num_mel_bins=32)),
        "wav2vec2": lambda: (
            t.Wav2Vec2Config(
                feat_extract_norm="layer", do_stable_layer_norm=True, conv_dim=(8,) * 7,
                num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, layerdrop=0.0,
                classifier_proj_size=16, mask_time_prob=0.0, feat_proj_dropout=0.0,
                final_dropout=0.0, activation_dropout=0.0, hidden_dropout=0.0,
                attention_dropout=0.0, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                intermediate_size=32, **labels),
            t.Wav2Vec2FeatureExtractor(return_attention_mask=True)),
    }[case.family]()  # fmt: skip
    torch.manual_seed(case.seed)
    auto = t.AutoModelForImageClassification
    if case.task == "sounds":
        auto = t.AutoModelForAudioClassification
    auto.from_config(config).save_pretrained(folder)
    processor.save_pretrained(folder)
