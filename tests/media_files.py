"""Writes tiny images and sounds for tests."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from ampft.text.page import ShownPicture

SHARED = Path(__file__).parents[2] / "shared" / "data"  # beside the checkout
CIFAR, FSDD = SHARED / "cifar10_subset", SHARED / "fsdd"


def shared_data(folder: Path) -> Path:
    """Return a folder of real data, or skip the test."""
    if not folder.is_dir():
        pytest.skip(f"real data: {folder} is absent")
    return folder


def decoded(picture: ShownPicture) -> np.ndarray:
    """Return the pixels of a picture on a page."""
    content = io.BytesIO(base64.b64decode(picture.content))
    return np.asarray(Image.open(content).convert("RGB"))


def picture(seed: int, size: tuple[int, int] = (12, 10)) -> Image.Image:
    """Return an image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def coloured(label: int, seed: int) -> Image.Image:
    """Return an image of 16 x 16 pixels of noise, with more red (0), green (1) or blue (2)."""
    pixels = np.random.default_rng([label, seed]).integers(0, 100, (16, 16, 3), dtype=np.uint8)
    pixels[..., label] += 150
    return Image.fromarray(pixels)


def image_folder(folder: Path, per_class: int = 8, splits: Sequence[str] = ()) -> Path:
    """Write `class/file.png` for three classes that a model can tell apart, or splits of them."""
    for part, split in enumerate(splits or ("",)):
        for label, name in enumerate(("red", "green", "blue")):
            (folder / split / name).mkdir(parents=True)
            for index in range(per_class):
                coloured(label, 1000 * part + index).save(folder / split / name / f"{index}.png")
    return folder


def tone(frequency: float, seed: int, *, rate: int = 8000, frames: int = 1600) -> np.ndarray:
    """Return (frames,) float32: a tone in noise, which differs by the seed."""
    random = np.random.default_rng(seed)
    times = np.arange(frames) / rate + random.random()
    noise = random.normal(scale=0.05, size=frames)
    return (0.4 * np.sin(2 * np.pi * frequency * times) + noise).astype(np.float32)


def sound_table(folder: Path, per_class: int = 8, *, rate: int = 8000) -> Path:
    """Write sounds of three pitches and unequal lengths, and a table with `path` and `label`."""
    (folder / "clips").mkdir(parents=True)
    rows = []
    for label, frequency in {"low": 200, "middle": 700, "high": 1900}.items():
        for index in range(per_class):
            path = folder / "clips" / f"{label}{index}.wav"
            frames = 1200 + 130 * ((index * 7 + len(label)) % 11)
            sound = tone(frequency, index + per_class * frequency, rate=rate, frames=frames)
            soundfile.write(path, sound, rate, subtype="PCM_16")
            rows.append((f"clips/{path.name}", label))
    return write_table(folder / "sounds.csv", rows)


def write_table(path: Path, rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header or ("path", "label"), *rows])
    return path
