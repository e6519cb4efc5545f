"""Masks of every mode become class indices by stated rules, and others are refused."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from ampft.errors import InputError
from ampft.media.images import has_lossy_pixels, open_image
from ampft.media.masks import (
    IGNORED,
    MaskClasses,
    MaskError,
    class_pixels,
    read_class_names,
    resized_mask,
)
from ampft.words.class_names import ClassEntry

VALUES = np.array([[0, 1, 2], [2, 255, 0]], dtype=np.uint8)
PLAIN = MaskClasses(("a", "b", "c"), (0, 1, 2), 255)
COLORED = MaskClasses(
    ("road", "sky"), (0, 1), 255,
    colors=((128, 64, 128), (70, 130, 180)), ignored_colors=((0, 0, 0),),
)  # fmt: skip


def rgb(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.repeat(values[..., None], 3, axis=2))


def in_palette(values: np.ndarray) -> Image.Image:
    mask = Image.fromarray(values)
    mask.putpalette(list(range(255, -1, -1)) * 3)  # of other colours than the indices
    return mask


def test_a_jpeg_is_refused_because_its_values_are_not_those_that_were_saved():
    content = io.BytesIO()
    Image.fromarray(VALUES).save(content, format="JPEG")
    mask = Image.open(content)
    assert not (np.asarray(mask) == VALUES).all()
    with pytest.raises(MaskError, match=r"a JPEG, whose compression .*: save it as PNG"):
        PLAIN.indices(mask)


@pytest.mark.parametrize(
    "mask",
    [
        Image.fromarray(VALUES), Image.fromarray(VALUES.astype(np.uint16)), in_palette(VALUES),
        Image.fromarray(VALUES.astype(np.int32)), rgb(VALUES), rgb(VALUES).convert("RGBA"),
        Image.fromarray(VALUES).convert("LA"),
    ],
    ids=["L", "16 bits", "palette", "32 bits", "grey RGB", "RGBA", "LA"],
)  # fmt: skip
def test_values_are_used_as_they_are(mask):
    assert PLAIN.indices(mask).tolist() == [[0, 1, 2], [2, IGNORED, 0]]


def test_black_and_white_masks_have_two_classes():
    mask = Image.fromarray(np.array([[0, 255]], dtype=np.uint8)).convert("1")
    assert MaskClasses(("no", "yes"), (0, 1), 255).indices(mask).tolist() == [[0, 1]]


def test_an_ignored_value_in_the_middle_is_no_class():
    classes = MaskClasses(("a", "c"), (0, 2), ignore_index=1)
    mask = Image.fromarray(np.array([[0, 1, 2]], dtype=np.uint8))
    assert classes.indices(mask).tolist() == [[0, IGNORED, 1]]


def test_colours_are_converted_to_their_classes():
    colors = np.array([[(70, 130, 180), (128, 64, 128), (0, 0, 0)]], dtype=np.uint8)
    assert COLORED.indices(Image.fromarray(colors)).tolist() == [[1, 0, IGNORED]]
    assert COLORED.indices(Image.fromarray(colors).convert("RGBA")).tolist() == [[1, 0, IGNORED]]
    # A mask of one channel has values.
    assert COLORED.indices(Image.fromarray(VALUES[:1, :2])).tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("classes", "mask", "message"),
    [
        (PLAIN, Image.fromarray(np.full((2, 2), 7, np.uint8)), "4 pixels have the value 7"),
        (PLAIN, Image.fromarray(np.full((1, 2), 4660, np.uint16)), "the value 4660"),
        (PLAIN, Image.fromarray(np.array([[[1, 2, 3]]], np.uint8)), "colour mask.*class_names_fi"),
        (PLAIN, Image.fromarray(np.ones((1, 1), np.float32)), "fractions"),
        (COLORED, Image.fromarray(np.array([[[1, 2, 3]]], np.uint8)), r"colour \(1, 2, 3\)"),
    ],
)
def test_other_masks_are_refused(classes, mask, message):
    with pytest.raises(MaskError, match=message):
        classes.indices(mask)


def test_masks_are_resized_by_the_nearest_pixel():
    mask = np.array([[0, 2]], dtype=np.uint8).repeat(2, axis=0).repeat(2, axis=1)
    assert set(np.unique(resized_mask(mask, (3, 5)))) == {0, 2}  # 1 would be between them
    assert resized_mask(mask, (3, 5)).shape == (3, 5)


def test_only_pixels_that_count_are_counted():
    assert class_pixels(VALUES, 3).tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "# classes\nRoad\n\nDirt track\n", [("Road", None), ("Dirt track", None)]),
        (
            "a.txt", "Road 1 2 3\nDirt track: 4,5,6\n",
            [("Road", (1, 2, 3)), ("Dirt track", (4, 5, 6))],
        ),
        ("a.json", '["Road", "Sky"]', [("Road", None), ("Sky", None)]),
        (
            "a.json",
            '[{"name": "Road", "color": [1, 2, 3]}, {"name": "Sky", "color": [4, 5, 6]}]',
            [("Road", (1, 2, 3)), ("Sky", (4, 5, 6))],
        ),
    ],
)  # fmt: skip
def test_files_of_class_names(tmp_path, name, text, expected):
    path = tmp_path / name
    path.write_text(text)
    assert read_class_names(path) == tuple(ClassEntry(*each) for each in expected)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "Road\n", "1 classes; there must be 2"),
        ("a.txt", "Road\nRoad\n", "'Road' occurs twice"),
        ("a.txt", "Road 1 2 3\nSky 1 2 3\n", r"\(1, 2, 3\) occurs twice"),
        ("a.txt", "Road 1 2 3\nSky\n", "'Sky' has no colour"),
        ("a.txt", "Road 1 2 300\nSky 1 2 3\n", "line 1: the colour must be"),
        ("a.json", "{", "not valid JSON"),
        ("a.json", '{"Road": 1}', "not a list"),
        ("a.json", '["Road", 3]', "entry 2: received 3"),
        ("a.json", '["Road", {"name": "Sky", "colour": [1, 2, 3]}]', "unknown key 'colour'"),
    ],
)
def test_damaged_files_of_class_names(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_class_names(path)


def test_a_class_can_be_ignored(tmp_path):
    path = tmp_path / "a.json"
    entries = ["Road", "Sky", {"name": "Void", "ignore": True}]
    path.write_text(json.dumps(entries))
    assert [entry.ignore for entry in read_class_names(path)] == [False, False, True]


@pytest.mark.parametrize("size", [(16, 16), (31, 17)])
@pytest.mark.parametrize("alpha", [False, True])
def test_a_lossy_webp_is_refused_and_a_lossless_one_is_not(size, alpha):
    values = np.random.default_rng(0).integers(3, size=size, dtype=np.uint8)
    channels = [values] * 3 + [np.full_like(values, 200)] * alpha
    image, files = Image.fromarray(np.stack(channels, axis=-1)), {}
    for lossless in (True, False):
        file = io.BytesIO()
        image.save(file, "WEBP", lossless=lossless, quality=90)
        files[lossless] = file.getvalue()
    assert (PLAIN.indices(open_image(files[True])) == values).all()
    lossy = np.asarray(Image.open(io.BytesIO(files[False])).convert("RGB"))[..., 0]
    assert not (lossy == values).all()
    with pytest.raises(MaskError, match=r"a lossy WebP, whose compression .*: save it as PNG"):
        PLAIN.indices(open_image(files[False]))


def test_an_animation_of_webp_is_lossy_if_its_frames_are():
    frames = [Image.fromarray(np.full((16, 16, 3), value, np.uint8)) for value in (1, 200)]
    for lossless in (True, False):
        file = io.BytesIO()
        frames[0].save(
            file, "WEBP", save_all=True, append_images=frames[1:], lossless=lossless,
            allow_mixed=False,
        )  # fmt: skip
        assert has_lossy_pixels(file.getvalue()) is not lossless


@pytest.mark.parametrize("compression", ["jpeg", "tiff_deflate"])
def test_a_tiff_with_jpeg_compression_is_refused(compression):
    values, file = np.tile(VALUES % 3, (8, 8)), io.BytesIO()
    Image.fromarray(values).save(file, "TIFF", compression=compression)
    mask = open_image(file.getvalue())
    if compression == "jpeg":
        with pytest.raises(MaskError, match=r"a TIFF with JPEG compression, whose compression"):
            PLAIN.indices(mask)
    else:
        assert (PLAIN.indices(mask) == values).all()
