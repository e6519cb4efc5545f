"""Tables of masks, sounds, words and values that cannot be read as they are."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import soundfile
from data_walks import AB, FILE, PIXEL, WHITE, Remedy, T, Walk, csv, lines
from file_walks import FIRST, SECOND, parquet, workbook
from media_walks import GOOD, PIXELS, M, mask, masks


def loud(scale: float) -> bytes:
    """Return a second of a tone as WAV with samples in floating point."""
    content = io.BytesIO()
    wave = scale * np.sin(np.arange(8000) / 3)
    soundfile.write(content, wave.astype(np.float32), 8000, format="WAV", subtype="FLOAT")
    return content.getvalue()


def png(content: bytes) -> dict[str, object]:
    return {"bytes": content, "path": "x.png"}


IMAGES = [png(PIXEL), png(WHITE)] * 2
MASKS = [png(M)] * 4
OF_MASK_TABLES = {
    "no column of masks": Walk(
        {"t.parquet": parquet(image=IMAGES, other=MASKS)},
        "--train_file t.parquet --task pixels",
        (Remedy("Pass the column of the masks", add="--label_column_name other"),),
    ),
    "two columns of images": Walk(
        {"t.parquet": parquet(image=IMAGES, second=IMAGES, mask=MASKS)},
        "--train_file t.parquet --task pixels",
        (Remedy("Pass one", add="--image_column_name image"),),
    ),
    "a damaged Parquet file of masks": Walk(
        {"t.parquet": b"PAR1 and no more"},
        "--train_file t.parquet --task pixels",
        (Remedy("cannot read", files={"t.parquet": parquet(image=IMAGES, mask=MASKS)}),),
    ),
    "a row without a mask": Walk(
        {"t.parquet": parquet(image=IMAGES, mask=[*MASKS[1:], None])},
        "--train_file t.parquet --task pixels",
        (Remedy("Add it", files={"t.parquet": parquet(image=IMAGES, mask=MASKS)}),
         Remedy("remove the row", files={"t.parquet": parquet(image=IMAGES[1:], mask=MASKS[1:])})),
    ),
    "pixels of one class": Walk(
        masks(mask(0, 0), mask(0, 0)) | {"n.txt": "Road\nCar\n"},
        f"{PIXELS} --class_names_file n.txt",
        (Remedy("check the masks", files=masks(mask(0, 1), mask(0, 1))),),
    ),
    "images in two splits": Walk(
        GOOD, f"{PIXELS} --fail_on_leak",
        (Remedy("Remove them from one of the splits", files={"d/val/0.png": WHITE}),),
    ),
    "boxes": Walk(
        {"d/train/a.png": PIXEL, "d/train/b.png": WHITE,
         "d/train/_annotations.coco.json": "{}"},
        "--dataset_name d",
        (Remedy("put each class into its own folder", files={
            "d/train/_annotations.coco.json": None, "d/train/a.png": None, "d/train/b.png": None,
            "d/train/x/a.png": PIXEL, "d/train/y/b.png": WHITE}),
         Remedy("To classify pixels, export masks", add="--task pixels", files={
             "d/train/_annotations.coco.json": None, "d/trainannot/a.png": M,
             "d/trainannot/b.png": M})),
    ),
    "a loud sound": Walk(
        {"d/a/1.wav": loud(20000), "d/a/2.wav": FIRST, "d/b/1.wav": SECOND, "d/b/2.wav": SECOND},
        "--dataset_name d",
        (Remedy("Divide samples that were 16-bit integers by 32768",
                files={"d/a/1.wav": loud(20000 / 32768)}),
         Remedy("or save them as such", files={"d/a/1.wav": FIRST})),
    ),
}  # fmt: skip

OF_TABLES = {
    "a choice in a file": Walk(
        T | {"c.yaml": "train_file: t.csv\nmixed_precision: fp17\n"}, "--config c.yaml",
        (Remedy("choose from", files={"c.yaml": "train_file: t.csv\nmixed_precision: bf16\n"}),),
    ),
    "lists of words as texts": Walk(
        {"t.parquet": parquet(tokens=[["a", "b"], ["c"]] * 2, label=["x", "y"] * 2)},
        "--train_file t.parquet --text_column_names tokens --task text",
        (Remedy("add --task tokens", without=" --text_column_names tokens --task text",
                add=" --task tokens", files={"t.parquet": parquet(
                    tokens=[["a", "b"], ["c"]] * 2, label=[["O", "B-X"], ["O"]] * 2)}),),
    ),
    "folders of splits without classes": Walk(
        {"d/train/a.png": PIXEL, "d/test/b.png": WHITE}, "--dataset_name d",
        (Remedy("Put the images of each class into its own folder", files={
            "d/train/a.png": None, "d/test/b.png": None, "d/train/x/a.png": PIXEL,
            "d/train/y/b.png": WHITE, "d/test/x/a.png": WHITE, "d/test/y/b.png": PIXEL}),
         Remedy("pass a table of paths and labels with --train_file", without="--dataset_name d",
                add=FILE, files={"t.csv": "image,label\nd/train/a.png,x\nd/test/b.png,y\n"})),
    ),
    "a test split that is not there": Walk(
        T | {"v.csv": AB}, f"{FILE} --validation_file v.csv --folds 2 --leave_out_test",
        (Remedy("Pass --test_file", add="--test_file u.csv", files={"u.csv": csv("b a")}),
         Remedy("remove --validation_file", without="--validation_file v.csv "),
         ),
    ),
    "a tag that no name has": Walk(
        {"t.jsonl": lines(*({"tokens": ["Ann", "ran"], "ner_tags": ["B-PER", "O"]},) * 4,
                          {"tokens": ["Rome", "is"], "ner_tags": ["B-LOC", "O"]}),
         "n.txt": "O\nB-PER\nI-PER\n"},
        "--train_file t.jsonl --task tokens --class_names_file n.txt",
        (Remedy("Fix the tag", files={"t.jsonl": lines(
            *({"tokens": ["Ann", "ran"], "ner_tags": ["B-PER", "O"]},) * 5)}),
         Remedy("or add its name", files={"n.txt": "O\nB-PER\nI-PER\nB-LOC\nI-LOC\n"})),
    ),
}  # fmt: skip

TORN = pa.array([b"caf\xe9", b"x"], pa.binary()).view(pa.string())
OF_ODD_FILES = {
    "formulas without values": Walk(
        {"t.xlsx": workbook(("text", "label"), ("x", "=B3"), ("y", "b"), ("z", "a"))},
        "--train_file t.xlsx",
        (Remedy("Open the workbook in Excel and save it", files={
            "t.xlsx": workbook(("text", "label"), ("x", "b"), ("y", "b"), ("z", "a"))}),),
    ),
    "texts in Parquet that are not UTF-8": Walk(
        {"t.parquet": parquet(text=TORN, label=["a", "b"])}, "--train_file t.parquet",
        (Remedy("write the file again from decoded strings", files={
            "t.parquet": parquet(text=["caf\xe9", "x"], label=["a", "b"])}),),
    ),
}  # fmt: skip

DATA = {**OF_MASK_TABLES, **OF_TABLES, **OF_ODD_FILES}
