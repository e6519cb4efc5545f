"""Rare inputs that a user on one machine can have."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
from data_walks import FILE, WHITE, Remedy, Walk, csv
from media_walks import GOOD, PIXELS
from training_walks import without

IMAGE = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


def two_images(path: Path, _: object) -> None:
    """Save a data set with two columns of images, and labels."""
    names = datasets.ClassLabel(names=["a", "b"])
    kinds = {"image": datasets.Image(), "other": datasets.Image(), "label": names}
    table = {"image": [IMAGE] * 8, "other": [IMAGE] * 8, "label": [0, 1] * 4}
    datasets.Dataset.from_dict(table, features=datasets.Features(kinds)).to_parquet(path)


CORRECTIONS = "label,corrected,text\na,b,t0\na,{},t0\n"
OF_RARE_DATA = {
    "two columns of images in a data set": Walk(
        {"d/train.parquet": two_images}, "--dataset_name d --task images",
        (Remedy("Pass one", add="--image_column_name image"),),
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
