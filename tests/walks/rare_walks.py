"""Rare inputs that a user on one machine can have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
from data_walks import FILE, WHITE, Remedy, Walk, csv, lines
from media_walks import GOOD, PIXELS
from training_walks import without

IMAGE = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


def two_images(path: Path, _: object) -> None:
    """Save a data set with two columns of images, and labels."""
    names = datasets.ClassLabel(names=["a", "b"])
    kinds = {"image": datasets.Image(), "other": datasets.Image(), "label": names}
    table = {"image": [IMAGE] * 8, "other": [IMAGE] * 8, "label": [0, 1] * 4}
    datasets.Dataset.from_dict(table, features=datasets.Features(kinds)).to_parquet(path)


def columns(**values: list[object]) -> Callable[[Path, object], object]:
    """Return a function that saves a data set with these columns."""

    def save(path: Path, _: object) -> object:
        return datasets.Dataset.from_dict(values).to_parquet(path)

    return save


WORDS, TAGS = [["a", "b"], ["c", "d"]] * 4, [["x", "y"], ["y", "x"]] * 4
NUMBERS = {"n": [1, 2] * 4, "t": ["u", "v"] * 4, "label": ["x", "y"] * 4}
SENTENCES = [{"text": w, "label": t} for w, t in zip(WORDS, TAGS, strict=True)]
CORRECTIONS = "label,corrected,text\na,b,t0\na,{},t0\n"
OF_RARE_DATA = {
    "two columns of images in a data set": Walk(
        {"d/train.parquet": two_images}, "--dataset_name d --task images",
        (Remedy("Pass one", add="--image_column_name image"),),
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
