"""Rare inputs that a user on one machine can have."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import soundfile
from data_walks import FILE, WHITE, Remedy, Walk, csv, lines
from media_walks import GOOD, PIXELS
from training_walks import without

IMAGE = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
LETTERS = datasets.ClassLabel(names=["a", "b"])


def two_images(path: Path, _: object) -> None:
    """Save a data set with two columns of images, and labels."""
    kinds = {"image": datasets.Image(), "other": datasets.Image(), "label": LETTERS}
    table = {"image": [IMAGE] * 8, "other": [IMAGE] * 8, "label": [0, 1] * 4}
    datasets.Dataset.from_dict(table, features=datasets.Features(kinds)).to_parquet(path)


def images_and_sounds(path: Path, _: object) -> None:
    """Save a data set with a column of images and a column of sounds."""
    content = io.BytesIO()
    soundfile.write(content, np.sin(np.arange(800) / 9), 8000, format="WAV")
    kinds = {"image": datasets.Image(), "audio": datasets.Value("binary"), "label": LETTERS}
    table = {"image": [IMAGE] * 8, "audio": [content.getvalue()] * 8, "label": [0, 1] * 4}
    stored = datasets.Dataset.from_dict(table, features=datasets.Features(kinds))
    # Features of sounds in the table would need torchcodec.
    stored.cast_column("audio", datasets.Audio(decode=False)).to_parquet(path)


def png(bits: int, colour_type: int, pixel: bytes, *, transparent: bytes = b"") -> bytes:
    """Return a PNG of one pixel, with the colour that its file calls transparent."""
    size = struct.pack(">IIBBBBB", 1, 1, bits, colour_type, 0, 0, 0)
    chunks = {b"IHDR": size, b"tRNS": transparent, b"IDAT": zlib.compress(b"\0" + pixel)}
    if not transparent:
        del chunks[b"tRNS"]
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in (chunks | {b"IEND": b""}).items():
        content += struct.pack(">I", len(data)) + name + data
        content += struct.pack(">I", zlib.crc32(name + data))
    return content


def columns(**values: list[object]) -> Callable[[Path, object], object]:
    """Return a function that saves a data set with these columns."""

    def save(path: Path, _: object) -> object:
        return datasets.Dataset.from_dict(values).to_parquet(path)

    return save


WORDS, TAGS = [["a", "b"], ["c", "d"]] * 4, [["x", "y"], ["y", "x"]] * 4
NUMBERS = {"n": [1, 2] * 4, "t": ["u", "v"] * 4, "label": ["x", "y"] * 4}
SENTENCES = [{"text": w, "label": t} for w, t in zip(WORDS, TAGS, strict=True)]
PICTURES = {f"d/train/{'ab'[i % 2]}/{i}.png": png(8, 2, bytes((i, 0, 0))) for i in range(8)}
CORRECTIONS = "label,corrected,text\na,b,t0\na,{},t0\n"
OF_RARE_DATA = {
    "two columns of images in a data set": Walk(
        {"d/train.parquet": two_images}, "--dataset_name d --task images",
        (Remedy("Pass one", add="--image_column_name image"),),
    ),
    "images beside sounds": Walk(
        {"d/train.parquet": images_and_sounds}, "--dataset_name d",
        (Remedy("--task images"), Remedy("or --task sounds", add="--task sounds")),
    ),
    "a transparent colour of 16 bits": Walk(
        PICTURES | {"d/train/a/0.png": png(16, 2, b"\1\2" * 3, transparent=b"\1\2" * 3)},
        "--dataset_name d --task images",
        (
            Remedy("Save the image with 8 bits", files={
                "d/train/a/0.png": png(8, 2, b"\1" * 3, transparent=b"\0\1" * 3)}),
            Remedy("or with an alpha channel", files={"d/train/a/0.png": png(16, 6, b"\1\2" * 4)}),
        ),
    ),
    "a column of numbers as texts": Walk(
        {"d/train.parquet": columns(**NUMBERS)}, "--dataset_name d --text_column_names n",
        (
            Remedy(
                "Convert it to texts",
                files={"d/train.parquet": columns(**NUMBERS | {"n": ["1", "2"] * 4})},
            ),
            Remedy("or pass another column", without="names n", add="names t"),
        ),
    ),
    "a column of lists as texts": Walk(
        {"d/train.parquet": columns(text=WORDS, label=["x", "y"] * 4)}, "--dataset_name d",
        (
            Remedy(
                "Join each cell into one text",
                files={"d/train.parquet": columns(text=["a b", "c d"] * 4, label=["x", "y"] * 4)},
            ),
            Remedy(
                "or for words with tags, add --task tokens",
                add="--task tokens",
                files={"d/train.parquet": columns(text=WORDS, label=TAGS)},
            ),
        ),
    ),
    "words with tags without their task": Walk(
        {"t.jsonl": lines(*SENTENCES)}, "--train_file t.jsonl",
        (
            Remedy(
                "Write it as one string",
                files={"t.jsonl": lines(*({"text": "a b", "label": y} for y in "xyxy"))},
            ),
            Remedy("or pass another column", add="--text_column_names a", files={
                "t.jsonl": lines(*({"a": "a b", "text": ["a"], "label": y} for y in "xyxy"))}),
            Remedy("For words with tags, add --task tokens"),
        ),
    ),
    "a label corrected to two others": Walk(
        {"t.csv": csv("a b c a b c"), "c.csv": CORRECTIONS.format("c")},
        f"{FILE} --label_corrections c.csv",
        (Remedy("Give both one label", files={"c.csv": CORRECTIONS.format("b")}),),
    ),
    "an image with a mask in two splits": Walk(
        GOOD, f"{PIXELS} --fail_on_leak",
        (Remedy("Remove these images from one of the splits", files={"d/val/0.png": WHITE}),),
    ),
}  # fmt: skip
OF_RARE_PARSERS = {
    "a flag that a resume check sets": Walk(
        {"t.py": ""}, "resume-check -- t.py --checkpointing_steps 2",
        (without(" --checkpointing_steps 2", "Remove the flag"),),
    ),
}  # fmt: skip
