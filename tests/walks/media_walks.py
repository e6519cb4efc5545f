"""Masks, images, sounds and words that cause a message, and what the message advises."""

from __future__ import annotations

import io
import json

import numpy as np
from data_walks import PIXEL, WHITE, Files, Remedy, T, Walk, lines
from file_walks import FIRST, PICTURES, SPANS, parquet
from PIL import Image
from training_walks import instead


def mask(*values: int, palette: tuple[tuple[int, int, int], ...] = ()) -> bytes:
    """Return a mask of 16 x 16 pixels, with equal shares of values."""
    pixels = np.resize(np.asarray(values, dtype=np.uint8), (16, 16)).T
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if palette:
        image = image.convert("L")
        image.putpalette([channel for color in palette for channel in color])
    content = io.BytesIO()
    image.save(content, "png")
    return content.getvalue()


def array_as(kind: str, values: np.ndarray) -> bytes:
    """Return an image of an array, as PNG or TIFF."""
    content = io.BytesIO()
    Image.fromarray(values).save(content, kind)
    return content.getvalue()


IMAGE = PIXEL
RED, BLUE, GREEN = (200, 0, 0), (0, 0, 200), (0, 200, 0)


def masks(*of_train: bytes, val: bytes | None = None) -> Files:
    """Return a folder of images and masks."""
    files: Files = {}
    for split, some in (("train", of_train), ("val", (val or of_train[0],))):
        for number, content in enumerate(some):
            files |= {f"d/{split}/{number}.png": IMAGE, f"d/{split}annot/{number}.png": content}
    return files


M = mask(0, 1, 2)
GOOD = masks(M, M, M)
PIXELS = "--dataset_name d --task pixels"
NAMES = f"{PIXELS} --class_names_file n.txt"
SPREAD = mask(0, 100, 200)
PALETTE = (RED, BLUE, GREEN)


def of_masks(files: Files, *remedies: Remedy, words: str = PIXELS) -> Walk:
    """Return the walk of a folder of masks."""
    return Walk(GOOD | files, words, remedies)


OF_MASKS = {
    "greys far apart": Walk(
        masks(SPREAD, SPREAD),
        PIXELS,
        (
            Remedy(
                "Pass a file with a line per class",
                add="--class_names_file n.txt",
                files={"n.txt": "Void 0 0 0\nRoad 100 100 100\nCar 200 200 200\n"},
            ),
            Remedy("pass --ignore_index", add="--ignore_index 255"),
        ),
    ),
    "greys that are numbers and colours": Walk(
        masks(mask(0, 1)) | {"n.txt": "Road 1 1 1\nCar 0 0 0\n"},
        NAMES,
        (Remedy("Remove the colours if masks hold numbers", files={"n.txt": "Road\nCar\n"}),),
    ),
    "several palettes": Walk(
        masks(mask(0, 1, palette=(RED, BLUE)), mask(0, 1, palette=(BLUE, RED))),
        PIXELS,
        (
            Remedy(
                "Pass the colours of the classes with --class_names_file",
                add="--class_names_file n.txt",
                files={"n.txt": "Road 200 0 0\nCar 0 0 200\n"},
            ),
            Remedy(
                "save all masks with one palette",
                files={"d/trainannot/1.png": mask(0, 1, palette=(RED, BLUE))},
            ),
        ),
    ),
    "a colour that no class has": Walk(
        masks(mask(0, 1, 2, palette=PALETTE)) | {"n.txt": "Road 0 0 200\nCar 200 0 0\n"},
        NAMES,
        (
            Remedy("Add the colour", files={"n.txt": "Road 0 0 200\nCar 200 0 0\nTree 0 200 0\n"}),
            Remedy(
                "remove the colours if the numbers are the classes",
                files={"n.txt": "Road\nCar\nTree\n"},
            ),
        ),
    ),
    "no masks": Walk(
        {"d/train/a.png": IMAGE},
        PIXELS,
        (Remedy("Folders that are read: train/", files=GOOD | {"d/train/a.png": None}),),
    ),
    "one class of masks": Walk(
        masks(mask(1, 1), mask(1, 1)), PIXELS, (Remedy("Convert the masks", files=masks(M, M)),)
    ),
    "all pixels ignored": Walk(
        masks(M, M, val=mask(255)),
        PIXELS,
        (Remedy("Check --ignore_index", files={"d/valannot/0.png": M}),),
    ),
    "no class but one": Walk(
        masks(M, M) | {"n.txt": "Road\nCar\n"},
        f"{NAMES} --ignore_index 1",
        (
            instead("--ignore_index 1", "--ignore_index 2", "Check the flag"),
            Remedy("add classes", files={"n.txt": "Road\nCar\nTree\n"}),
        ),
    ),
    "masks of no training": Walk(
        {n.replace("train", "test"): c for n, c in GOOD.items()},
        PIXELS,
        (Remedy("but not for training", files=GOOD),),
    ),
    "masks without images": of_masks(
        {"d/test" + "annot/0.png": M},
        Remedy("Create it", files={"d/test/0.png": IMAGE}),
        Remedy("remove the masks", files={"d/testannot/0.png": None}),
    ),
    "another file among images": of_masks(
        {"d/train/x.txt": "x"}, Remedy("Move the file elsewhere", files={"d/train/x.txt": None})
    ),
    "two images of one name": of_masks(
        {"d/train/0.jpg": array_as("jpeg", np.zeros((16, 16, 3), np.uint8))},
        Remedy("Rename or remove one", files={"d/train/0.jpg": None}),
    ),
    "an empty folder of images": of_masks(
        {"d/test/.keep": "", "d/testannot/0.png": M},
        Remedy("Add some", files={"d/test/0.png": IMAGE}),
        Remedy("remove the folder", files={"d/test/.keep": None, "d/testannot/0.png": None}),
    ),
    "a list of VOC": Walk(
        {
            "d/JPEGImages/a.png": IMAGE,
            "d/JPEGImages/b.png": WHITE,
            "d/SegmentationClass/a.png": M,
            "d/SegmentationClass/b.png": M,
            "d/ImageSets/Segmentation/train.txt": "a\nb\nc\n",
        },
        PIXELS,
        (
            Remedy("remove the line", files={"d/ImageSets/Segmentation/train.txt": "a\nb\n"}),
            Remedy("Add it", files={"d/JPEGImages/c.png": PIXEL, "d/SegmentationClass/c.png": M}),
        ),
    ),
    "masks in a CSV": Walk(
        T,
        "--train_file t.csv --task pixels",
        (
            Remedy(
                "or a folder with --dataset_name",
                without="--train_file t.csv",
                add="--dataset_name d",
                files=GOOD,
            ),
        ),
    ),
    "class names with some colours": Walk(
        masks(M, M) | {"n.txt": "Road 1 1 1\nCar\nTree\n"},
        NAMES,
        (Remedy("or none", files={"n.txt": "Road\nCar\nTree\n"}),),
    ),
}
SIXTEEN = np.arange(256, dtype=np.int32).reshape(16, 16) * 400
OF_PICTURES = {
    "masks among images": Walk(
        PICTURES | {"d/a/1_mask.png": WHITE},
        "--dataset_name d --task images",
        (Remedy("Move them elsewhere to classify images", files={"d/a/1_mask.png": None}),),
    ),
    "values beyond the scale": Walk(
        {
            "d/a/1.tif": array_as("tiff", SIXTEEN),
            "d/a/2.png": PIXEL,
            "d/b/1.png": WHITE,
            "d/b/2.png": PIXEL,
        },
        "--dataset_name d",
        (
            Remedy(
                "save the image with 8 bits",
                files={"d/a/1.tif": array_as("tiff", (SIXTEEN // 400).astype(np.uint8))},
            ),
            Remedy(
                "Scale the values to this range",
                files={"d/a/1.tif": array_as("tiff", SIXTEEN // 400)},
            ),
        ),
    ),
    "images and sounds in columns": Walk(
        {
            "t.parquet": parquet(
                image=[{"bytes": PIXEL, "path": "a.png"}, {"bytes": WHITE, "path": "b.png"}] * 2,
                audio=[{"bytes": FIRST, "path": "a.wav"}] * 4,
                label=["a", "b"] * 2,
            )
        },
        "--train_file t.parquet",
        (Remedy("Pass the right one", add="--image_column_name image"),),
    ),
}
CONLL = "Ann B-PER\nran O\n\nBo B-PER\nsat O\n\n"
WORDS = "--train_file t.conll"
TOKENS = "--train_file t.jsonl --task tokens"
OF_WORDS = {
    "a column with one value": Walk(
        {"t.conll": "d Ann B-PER\nd ran O\nd far O\nd on O\nd it O\nd B-PER O\n\n" * 3},
        WORDS,
        (Remedy("Keep the columns of words and tags", files={"t.conll": CONLL}),),
    ),
    "words without tags": Walk(
        {"t.conll": "Ann O\nran O\n\nBo O\nsat O\n\n"},
        WORDS,
        (Remedy("Check --label_column_name", files={"t.conll": CONLL}),),
    ),
    "shifted spans": Walk(
        {
            "t.jsonl": lines(
                *(
                    {"text": f"Ann saw {name} there", "label": [[9, 9 + len(name), "PER"]]}
                    for name in ("Bobby", "Carla", "Dora", "Emil", "Frank", "Greta")
                )
            )
        },
        f"{TOKENS} --text_column_names text",
        (Remedy("convert the spans", files={"t.jsonl": SPANS}), Remedy("--text_units graphemes")),
    ),
    "a word of two lines": Walk(
        {"w.csv": 'sentence,word,tag\n1,Ann,B-PER\n1,"ra\nn",O\n2,Bo,B-PER\n2,sat,O\n'},
        "--train_file w.csv --task tokens",
        (
            Remedy(
                "If a quote is a word",
                files={"w.csv": 'sentence,word,tag\n1,Ann,B-PER\n1,"""",O\n2,Bo,B-PER\n2,sat,O\n'},
            ),
        ),
    ),
}
NESTED = "x: " + "[" * 3000 + "]" * 3000 + "\n"
OF_SETTINGS = {
    "a NUL in a setting": Walk(
        T | {"c.yaml": 'train_file: "t\\0.csv"\n'},
        "--config c.yaml",
        (Remedy("Remove it", files={"c.yaml": "train_file: t.csv\n"}),),
    ),
    "deep settings": Walk(
        T | {"c.yaml": NESTED},
        "--config c.yaml",
        (Remedy("nested too deeply", files={"c.yaml": "train_file: t.csv\n"}),),
    ),
}
OF_JSON = {
    "a key twice": Walk(
        {"t.json": json.dumps({"columns": ["text", "text", "label"], "data": [["x", "y", "a"]]})},
        "--train_file t.json",
        (
            Remedy(
                "Rename one",
                files={
                    "t.json": json.dumps(
                        {
                            "columns": ["text", "t2", "label"],
                            "data": [["x", "y", "a"], ["z", "y", "b"]],
                        }
                    )
                },
            ),
        ),
    ),
    "a row that is too short": Walk(
        {"t.json": json.dumps({"columns": ["text", "label"], "data": [["x", "a"], ["y"]]})},
        "--train_file t.json",
        (
            Remedy(
                "Correct the file",
                files={
                    "t.json": json.dumps(
                        {"columns": ["text", "label"], "data": [["x", "a"], ["y", "b"]]}
                    )
                },
            ),
        ),
    ),
    "annotations of labelme": Walk(
        {"t.json": json.dumps({"shapes": [], "imagePath": "a.png", "version": "5"})}
        | dict(GOOD.items()),
        "--train_file t.json",
        (Remedy("--dataset_name", without="--train_file t.json", add=PIXELS),),
    ),
}
WALKS = {**OF_MASKS, **OF_PICTURES, **OF_WORDS, **OF_SETTINGS, **OF_JSON}
