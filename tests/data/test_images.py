"""Images of every mode come to a model as 8 bits of RGB, as they are meant to be seen."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from ampft.data.images import as_rgb, image_conversions, open_image
from ampft.errors import InputError
from ampft.tasks.image import ImageExamples


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_more_than_eight_bits_are_scaled(dtype):
    image = Image.fromarray(np.array([[0, 1000, 40000, 65535]], dtype=dtype))
    assert image.mode in ("I;16", "I", "F")
    expected = [0, 4, 156, 255]  # value / 257
    assert np.asarray(as_rgb(image))[0].tolist() == [[value] * 3 for value in expected]
    plain = np.asarray(image.convert("RGB"))[0, :, 0].tolist()
    assert plain != expected  # negative control: Pillow's conversion


def test_values_outside_of_sixteen_bits_are_clipped():
    image = Image.fromarray(np.array([[-5, 70000]], dtype=np.int32))
    assert np.asarray(as_rgb(image))[0, :, 0].tolist() == [0, 255]


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
        images=datasets.Dataset.from_dict({"image": [image]}, features=features),
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
    assert "animated, of which the first frame is used" in image_conversions(image)
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
