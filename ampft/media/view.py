"""How a picture, a sound and masks are shown."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ampft.data.dataset import ClassificationData
from ampft.data.media_kind import FRAMES_COLUMN, RATE_COLUMN
from ampft.errors import InputError
from ampft.kinds.receipt import SHOWN_TEXT, ReceiptRow, cells_of, short, shown_labels
from ampft.kinds.views import LABEL, MASK_COLUMN, Case
from ampft.media.images import DECODING_ERRORS, as_rgb, open_image
from ampft.media.mask_folders import FILE
from ampft.media.media_columns import media_reference, undecoded_column
from ampft.media.sounds import open_sound, resample
from ampft.text.escaping import inert
from ampft.text.page import ShownCase, ShownPicture, ShownSound

if TYPE_CHECKING:
    from PIL.Image import Image

    from ampft.media.masks import MaskArray
    from ampft.words.class_names import Color

LARGEST_PICTURE = 160  # pixels
LARGEST_PNG = 64  # pixels; larger photos are JPEG, which is several times smaller
JPEG_QUALITY = 80
LONGEST_SOUND = 4.0  # seconds
HIGHEST_RATE = 16_000  # frames per second
WAVE_COLUMNS = 160

_SPLIT_AND_ROW = re.compile(r"(train|validation|test)/([0-9]+)")


def show_picture(case: Case) -> ShownCase | None:
    """Return a small picture of an image; None if it cannot be read."""
    image = _opened(case, open_image)
    if image is None:
        return None
    return ShownCase(pictures=(_photo("", as_rgb(image)),), reference=case.reference)


def show_sound(case: Case) -> ShownCase | None:
    """Return the first seconds of a sound; None if it cannot be read."""
    found = _opened(case, open_sound)
    return None if found is None else ShownCase(sound=_played(found), reference=case.reference)


def show_masks(case: Case) -> ShownCase | None:
    """Return an image with its mask, predicted masks and their errors; None without a mask."""
    found = {
        each.title: mask
        for each in case.predictions
        if (mask := _opened_mask(case.stored(each.path, MASK_COLUMN))) is not None
    }
    if not found:
        return None
    from ampft.media.mask_pictures import default_palette, error_image

    data = case.data()
    image = truth = colors = None
    if data is not None and data.masks is not None:
        (column,) = data.input_columns
        image = as_rgb(data.splits[case.split][case.number][column])
        masks = data.masks[case.split]
        truth, colors = masks.decoded(np.array([case.number]))[0], masks.classes.colors
    palette = colors or default_palette(len(case.label_names))
    pictures = [] if image is None else [_photo("image", image)]
    pictures += [] if truth is None else [_mask(LABEL, truth, palette)]
    for title, mask in found.items():
        pictures.append(_mask(title, mask, palette))
        if image is not None and truth is not None:
            shown = _in_width(error_image(image, truth, mask))
            pictures.append(_encoded(f"{title}: errors in red", shown))
    every = [*found.values(), *([] if truth is None else [truth])]
    return ShownCase(
        pictures=tuple(pictures),
        legend=dict(_legend(every, case.label_names, palette)),
        reference=case.reference,
    )


def _opened(case: Case, opener: Any) -> Any:
    """Return the decoded file that a reference names; None if it cannot be read."""
    try:
        match = _SPLIT_AND_ROW.fullmatch(case.reference)
        if match is None:
            return opener(case.reference)
        data = case.data()
        if data is None:
            return None
        (column,) = data.input_columns
        return opener(data.splits[match[1]][int(match[2])][column])
    except (InputError, IndexError, KeyError):
        return None


def _photo(title: str, image: Image) -> ShownPicture:
    image = image.copy()
    image.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE))
    return _encoded(title, image)


def _mask(title: str, mask: MaskArray, palette: Sequence[Color]) -> ShownPicture:
    from ampft.media.mask_pictures import colored_mask

    return _encoded(title, _in_width(colored_mask(mask, palette)), "PNG")


def _in_width(image: Image) -> Image:
    """Return a picture of masks in the size of photos, without mixing classes."""
    from PIL.Image import Resampling

    factor = min(LARGEST_PICTURE / max(image.size), 1)
    width, height = (max(1, round(side * factor)) for side in image.size)
    return image.resize((width, height), Resampling.NEAREST)


def _encoded(title: str, image: Image, kind: str | None = None) -> ShownPicture:
    kind = kind or ("PNG" if max(image.size) <= LARGEST_PNG else "JPEG")
    buffer = io.BytesIO()
    image.save(buffer, kind, quality=JPEG_QUALITY)
    content = base64.b64encode(buffer.getvalue()).decode("ascii")
    return ShownPicture(title=title, media_type=f"image/{kind.lower()}", content=content)


def _opened_mask(png: bytes | None) -> MaskArray | None:
    try:
        return None if png is None else np.asarray(open_image(png))
    except (InputError, *DECODING_ERRORS):
        return None


def _legend(
    masks: Sequence[MaskArray], names: Sequence[str], palette: Sequence[Color]
) -> Iterator[tuple[str, str]]:
    from ampft.media.masks import IGNORED

    found = np.unique(np.concatenate([mask.ravel() for mask in masks]))
    for index in found[found != IGNORED].tolist():
        if index < len(names):
            yield names[index], "#{:02x}{:02x}{:02x}".format(*palette[index])


def _played(found: Any) -> ShownSound:
    """Return the first seconds of a sound in one channel, with its waveform."""
    import soundfile

    seconds = len(found.samples) / found.rate
    samples = found.mono()[: max(1, round(LONGEST_SOUND * found.rate))]
    rate = min(found.rate, HIGHEST_RATE)
    parts = np.array_split(np.abs(samples), min(WAVE_COLUMNS, len(samples)))
    loudest = np.array([part.max() for part in parts])
    peaks = np.rint(100 * loudest / max(loudest.max(), 1e-9)).astype(int).tolist()
    samples = resample(samples, found.rate, rate)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples.clip(-1, 1), rate, format="FLAC", subtype="PCM_16")
    cut = f"the first {LONGEST_SOUND:g} of " if seconds > LONGEST_SOUND else ""
    return ShownSound(
        media_type="audio/flac",
        content=base64.b64encode(buffer.getvalue()).decode("ascii"),
        peaks=tuple(peaks),
        description=f"{cut}{seconds:.2f} s, {found.rate:,} Hz",
    )


def receipt_row(data: ClassificationData, row: int) -> ReceiptRow:
    """Return a training row: the label and the name of an image or sound."""
    cells, _ = cells_of(data, row)
    (column,) = data.input_columns
    files = undecoded_column(data.splits["train"], column, data.kind)
    name = str(media_reference(files, "train", row))
    name = name if len(name) <= SHOWN_TEXT else f"...{name[3 - SHOWN_TEXT :]}"
    if FRAMES_COLUMN in cells:
        name += f" ({cells[FRAMES_COLUMN] / cells[RATE_COLUMN]:.2f} s, {cells[RATE_COLUMN]:,} Hz)"
    return "", shown_labels(data, cells["label"]), inert(name)


def mask_receipt_row(data: ClassificationData, row: int) -> ReceiptRow:
    """Return a training row: the name of an image with a mask."""
    return "", "", short(str(data.splits["train"][row].get(FILE)), SHOWN_TEXT)
