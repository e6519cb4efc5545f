"""Images of every mode come to a model as 8 bits of RGB, as they are meant to be seen."""

from __future__ import annotations

import struct

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.errors import InputError
from ampft.media.image_tensors import ImageExamples
from ampft.media.images import as_rgb, image_conversions, open_image

SCALES = {"uint8": 255, "uint16": 65535, "int32": 65535, "float32": 1}  # what is white
RANGES = [(0, 1), (0, 255), (0, 4095), (0, 65535), (-1, 1), (0, 100_000), (0, np.nan), (0, np.inf)]


def holds(dtype, low, high):
    return dtype == "float32" or (np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(d, *extent) for d in SCALES for extent in RANGES if holds(d, *extent)],
)
def test_grey_values_are_scaled_by_their_type_or_refused(tmp_path, dtype, low, high):
    values = np.array([[low, (low + high) / 2, high]]).astype(dtype)
    Image.fromarray(values).save(tmp_path / "x.tiff")
    scale, image = SCALES[dtype], open_image(tmp_path / "x.tiff")
    if low < 0 or not high <= scale:
        with pytest.raises(InputError, match=rf"x\.tiff: .*(from .* to|NaN).*from 0 to {scale}\."):
            as_rgb(image)
        return
    expected = np.rint(values[0].astype(float) * 255 / scale).tolist()
    assert np.asarray(as_rgb(image))[0].tolist() == [[value] * 3 for value in expected]
    if dtype != "uint8" and high > 1:
        plain = np.asarray(image.convert("RGB"))[0, :, 0].tolist()
        assert plain != expected  # negative control: Pillow's conversion


@pytest.mark.parametrize(
    ("bits", "white_is_zero", "content", "expected"),
    [
        (12, 0, bytes.fromhex("000808fff000"), [0, 128, 255]),
        (16, 0, struct.pack("<3H", 0, 128 * 257, 65535), [0, 128, 255]),
        (16, 1, struct.pack("<3H", 0, 128 * 257, 65535), [255, 127, 0]),
    ],
)
def test_a_tiff_declares_its_depth_and_its_white(tmp_path, bits, white_is_zero, content, expected):
    photometric = 0 if white_is_zero else 1
    tags = [(256, 3), (257, 1), (258, bits), (259, 1), (262, photometric), (273, 200), (277, 1)]
    tags += [(278, 1), (279, len(content))]
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + directory
    (tmp_path / "x.tif").write_bytes(head.ljust(200, b"\0") + content)
    image = open_image(tmp_path / "x.tif")
    assert np.asarray(as_rgb(image))[0, :, 0].tolist() == expected
    assert image_conversions(image) == (f"with {bits}-bit grey values, scaled to 8 bits",)


DARK = [
    ("12 bits in 16", np.uint16, 4095, 65535),
    ("zeros and ones", np.uint8, 1, 255),
    ("8 bits in float", np.float32, 1 / 255, 1),
]


@pytest.mark.parametrize("task", ["images", "pixels"])
@pytest.mark.parametrize(("dtype", "high", "full"), [row[1:] for row in DARK], ids=lambda r: str(r))
def test_data_that_would_be_black_are_refused(tmp_path, dtype, high, full, task):
    def write(name, value):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.array([[0, value], [value, 0]]).astype(dtype)).save(path)
        if task == "pixels":
            path = tmp_path / "data" / "masks" / f"{path.stem}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(np.array([[0, 1], [1, 0]], np.uint8)).save(path)

    folders = ("a", "b") if task == "images" else ("images",)
    for folder in folders:
        for index in range(4):
            write(f"{folder}/{index}.tiff", high)
    request = ClassifyArguments(
        dataset_name=str(tmp_path / "data"), validation_fraction=0.0, test_fraction=0.0, task=task
    )
    with pytest.raises(InputError, match=r"all [48] images would be nearly black"):
        load_data(request)
    write(f"{folders[0]}/0.tiff", full)  # negative control: one image shows the range
    assert load_data(request).splits


@pytest.mark.parametrize("mode", ["La", "PA", "RGBa", "RGBX", "YCbCr", "LAB", "HSV", "I;16B"])
def test_every_mode_of_pillow_becomes_rgb(mode):
    assert as_rgb(Image.new(mode, (2, 1))).mode == "RGB"


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_lies_on_white(mode):
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 255))
    image = image.convert(mode)
    assert np.asarray(as_rgb(image))[0, :, 0].tolist() == [255, 0]
    assert np.asarray(image.convert("RGB"))[0, :, 0].tolist() == [0, 0]  # negative control


def test_images_are_turned_as_their_exif_says():
    image = Image.fromarray(np.array([[[10] * 3, [20] * 3]], dtype=np.uint8))
    image.getexif()[0x0112] = 6  # a quarter turn
    assert as_rgb(image).size == (1, 2)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK"])
def test_other_modes_are_converted_by_pillow(mode):
    image = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4) * 16).convert(mode)
    assert np.array_equal(np.asarray(as_rgb(image)), np.asarray(image.convert("RGB")))


def test_a_model_gets_them_so():
    image = Image.fromarray(np.full((8, 8), 40000, dtype=np.uint16))
    features = datasets.Features({"image": datasets.Image()})
    examples = ImageExamples(
        files=datasets.Dataset.from_dict({"image": [image]}, features=features),
        lengths=np.ones(1, dtype=np.int64),
        processor=ViTImageProcessorPil(size={"height": 8, "width": 8}),
    )
    pixels = examples.collate(np.array([0]))["pixel_values"]
    expected = 156 / 255 * 2 - 1  # the processor's mean and deviation are 0.5
    assert torch.allclose(pixels, torch.full((1, 3, 8, 8), expected), rtol=0, atol=1e-6)


def saved(folder, image, name, **options):
    image.save(folder / name, **options)
    return open_image(str(folder / name))


def test_conversions_are_named(tmp_path):
    colours = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
    grey16 = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000)
    exif = Image.Exif()
    exif[0x0112] = 3
    cases = {
        "plain.jpg": (colours, {}, ()),
        "grey.png": (colours.convert("L"), {}, ()),
        "turned.jpg": (colours, {"exif": exif}, ("rotated as its EXIF data says",)),
        "deep.png": (grey16, {}, ("with 16-bit grey values, scaled to 8 bits",)),
        "print.jpg": (colours.convert("CMYK"), {}, ("in CMYK",)),
        "alpha.png": (colours.convert("RGBA"), {}, ("with transparency, drawn on white",)),
        "still.gif": (colours.convert("P"), {}, ("with a palette",)),
    }
    for name, (image, options, expected) in cases.items():
        assert image_conversions(saved(tmp_path, image, name, **options)) == expected, name


def test_of_an_animation_the_first_frame_is_used(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    image = saved(tmp_path, frames[0], "two.gif", save_all=True, append_images=frames[1:])
    assert "animated (only the first frame is used)" in image_conversions(image)
    assert as_rgb(image).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"text", "not an image file"), (None, "truncated"), (b"", "not an image file")],
)
def test_a_damaged_file_is_named(tmp_path, content, reason):
    path = tmp_path / "x.jpg"
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:-900] if content is None else content)
    for value in (path, str(path), {"path": str(path), "bytes": path.read_bytes()}):
        with pytest.raises(InputError, match=rf"x\.jpg: not a readable image \(.*{reason}"):
            open_image(value)
