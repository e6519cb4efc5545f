"""How a case of a run is shown, by kind of data: text, tagged sentence, picture, sound or masks."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ampft.data.images import DECODING_ERRORS, as_rgb, open_image
from ampft.data.sounds import open_sound, resample
from ampft.data.tags import OUTSIDE, entities, is_bio
from ampft.errors import InputError
from ampft.runs.predictions import read_rows
from ampft.runs.record import RunRecord
from ampft.tasks.pixel_outcome import MASK_COLUMN
from ampft.text.shown_case import ShownCase, ShownPicture, ShownSound, Span, Tagging

if TYPE_CHECKING:
    from PIL.Image import Image

    from ampft.data.dataset import ClassificationData
    from ampft.data.masks import Color, MaskArray

LONGEST_TEXT = 1200  # characters
MOST_WORDS = 200  # of a sentence
LARGEST_PICTURE = 160  # pixels
LARGEST_PNG = 64  # pixels; larger photos are JPEG, which is several times smaller
JPEG_QUALITY = 80
LONGEST_SOUND = 4.0  # seconds
HIGHEST_RATE = 16_000  # frames per second
WAVE_COLUMNS = 160
LABEL = "label"
MOST_READ_AGAIN = 100_000  # examples; reading more would take many minutes

FoundSpan = tuple[str, int, int]  # type, first word, and word after the last

_SPLIT_AND_ROW = re.compile(r"(train|validation|test)/([0-9]+)")


@dataclass(frozen=True)
class CasePrediction:
    """A prediction of a case.

    Attributes:
        title: Line above it.
        choice: Entry of `Outcome.choices`.
        path: Table of predictions that has it, which also has masks.
    """

    title: str
    choice: Any
    path: Path


@dataclass
class CaseViews:
    """Shows the cases of the final split of a run.

    Files of images and sounds are those that the table of predictions names. Other images, sounds
    and masks are those of the data of the run, which are read again and must be unchanged.

    Attributes:
        record: Record of the run.
        split: Name of the split.
        label_names: The labels.
    """

    record: RunRecord
    split: str
    label_names: Sequence[str]

    def show(
        self,
        case: int,
        inputs: Mapping[str, str],
        truth: Any,
        predictions: Sequence[CasePrediction],
    ) -> ShownCase:
        """Return how a case is shown; as texts if it cannot be read.

        Args:
            case: Row of the split.
            inputs: Input columns of the case in the table of predictions.
            truth: Entry of `Outcome.truth`.
            predictions: Predictions to show beside the truth.
        """
        reference = next(iter(inputs.values()), "")
        shown = None
        if self.record.data.kind == "token":
            shown = self._sentence(reference, truth, predictions)
        elif self.record.data.kind == "image":
            shown = self._picture(reference)
        elif self.record.data.kind == "sound":
            shown = self._sound(reference)
        elif self.record.data.kind == "pixels":
            shown = self._masks(case, reference, predictions)
        return shown or ShownCase(texts={name: _cut(text) for name, text in inputs.items()})

    def _sentence(
        self, text: str, truth: Any, predictions: Sequence[CasePrediction]
    ) -> ShownCase | None:
        words = text.split(" ")
        if len(words) != int((np.asarray(truth) >= 0).sum()):  # a word has a blank in it
            return None
        label = self._spans(truth)
        predicted = {each.title: self._spans(each.choice) for each in predictions}
        in_all = set(label).intersection(*predicted.values())
        return ShownCase(
            words=(*words[:MOST_WORDS], *["…"] * (len(words) > MOST_WORDS)),
            taggings=(
                _tagging(LABEL, label, in_all),
                *(_tagging(title, spans, set(label)) for title, spans in predicted.items()),
            ),
        )

    def _spans(self, codes: Any) -> list[FoundSpan]:
        """Return the entities, and the words whose tag belongs to none; plain tags are of words."""
        tags = [self.label_names[code] for code in codes if code >= 0]
        found = list(entities(tags)) if is_bio(self.label_names) else []
        inside = {word for _, first, end in found for word in range(first, end)}
        lone = [
            (tag, word, word + 1)
            for word, tag in enumerate(tags)
            if word not in inside and tag != OUTSIDE
        ]
        return sorted([*found, *lone], key=lambda span: span[1])

    def _picture(self, reference: str) -> ShownCase | None:
        image = self._opened(reference, open_image)
        if image is None:
            return None
        return ShownCase(pictures=(_photo("", as_rgb(image)),), reference=reference)

    def _sound(self, reference: str) -> ShownCase | None:
        sound = self._opened(reference, open_sound)
        return None if sound is None else ShownCase(sound=_played(sound), reference=reference)

    def _opened(self, reference: str, opener: Any) -> Any:
        """Return the decoded file that a reference names; None if it cannot be read."""
        try:
            match = _SPLIT_AND_ROW.fullmatch(reference)
            if match is None:
                return opener(reference)
            if self._data is None:
                return None
            (column,) = self._data.input_columns
            return opener(self._data.splits[match[1]][int(match[2])][column])
        except (InputError, IndexError, KeyError):
            return None

    def _masks(
        self, case: int, reference: str, predictions: Sequence[CasePrediction]
    ) -> ShownCase | None:
        masks = {each.title: _predicted_mask(each.path, case) for each in predictions}
        found = {title: mask for title, mask in masks.items() if mask is not None}
        if not found:
            return None
        from ampft.kinds.pixel_pictures import errors

        image, truth = self._image_and_truth(case)
        palette = self._palette
        pictures = [] if image is None else [_photo("image", image)]
        pictures += [] if truth is None else [_mask(LABEL, truth, palette)]
        for title, mask in found.items():
            pictures.append(_mask(title, mask, palette))
            if image is not None and truth is not None:
                shown = _in_width(errors(image, truth, mask))
                pictures.append(_encoded(f"{title}: errors in red", shown))
        every = [*found.values(), *([] if truth is None else [truth])]
        return ShownCase(
            pictures=tuple(pictures),
            legend=dict(_legend(every, self.label_names, palette)),
            reference=reference,
        )

    def _image_and_truth(self, case: int) -> tuple[Image | None, MaskArray | None]:
        data = self._data
        if data is None or data.masks is None:
            return None, None
        (column,) = data.input_columns
        image = as_rgb(data.splits[self.split][case][column])
        return image, data.masks[self.split].decoded(np.array([case]))[0]

    @property
    def _palette(self) -> Sequence[Color]:
        from ampft.kinds.pixel_pictures import default_palette

        masks = None if self._data is None else self._data.masks
        colors = None if masks is None else masks[self.split].classes.colors
        return colors or default_palette(len(self.label_names))

    @cached_property
    def _data(self) -> ClassificationData | None:
        """The data of the run; None if they are not available, have changed, or are very many."""
        if sum(self.record.data.examples.values()) > MOST_READ_AGAIN:
            return None
        from ampft.data.load import load_data
        from ampft.runs.audit.rebuild import recorded_arguments

        try:
            data = load_data(recorded_arguments(self.record, ()).data_request())
        except InputError:
            return None
        return data if dict(data.fingerprints) == dict(self.record.data.fingerprints) else None


def _tagging(title: str, spans: Sequence[FoundSpan], shared: Set[FoundSpan]) -> Tagging:
    return Tagging(
        title=title,
        spans=tuple(
            Span(
                name=span[0],
                first=span[1],
                end=min(span[2], MOST_WORDS),
                is_shared=span in shared,
            )
            for span in spans
            if span[1] < MOST_WORDS
        ),
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def _photo(title: str, image: Image) -> ShownPicture:
    image = image.copy()
    image.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE))
    return _encoded(title, image)


def _mask(title: str, mask: MaskArray, palette: Sequence[Color]) -> ShownPicture:
    from ampft.kinds.pixel_pictures import colored

    return _encoded(title, _in_width(colored(mask, palette)), "PNG")


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


def _predicted_mask(path: Path, case: int) -> MaskArray | None:
    png = read_rows(path, [case], lambda name: name == MASK_COLUMN)[case].get(MASK_COLUMN)
    try:
        return None if png is None else np.asarray(open_image(png))
    except (InputError, *DECODING_ERRORS):
        return None


def _legend(
    masks: Sequence[MaskArray], names: Sequence[str], palette: Sequence[Color]
) -> Iterator[tuple[str, str]]:
    from ampft.data.masks import IGNORED

    found = np.unique(np.concatenate([mask.ravel() for mask in masks]))
    for index in found[found != IGNORED].tolist():
        if index < len(names):
            yield names[index], "#{:02x}{:02x}{:02x}".format(*palette[index])


def _played(sound: Any) -> ShownSound:
    """Return the first seconds of a sound in one channel, with its waveform."""
    import soundfile

    seconds = len(sound.samples) / sound.rate
    samples = sound.mono()[: max(1, round(LONGEST_SOUND * sound.rate))]
    rate = min(sound.rate, HIGHEST_RATE)
    peaks = _peaks(samples)
    samples = resample(samples, sound.rate, rate)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples.clip(-1, 1), rate, format="FLAC", subtype="PCM_16")
    cut = f"the first {LONGEST_SOUND:g} of " if seconds > LONGEST_SOUND else ""
    return ShownSound(
        media_type="audio/flac",
        content=base64.b64encode(buffer.getvalue()).decode("ascii"),
        peaks=peaks,
        description=f"{cut}{seconds:.2f} s, {sound.rate:,} Hz",
    )


def _peaks(samples: npt.NDArray[np.float32]) -> tuple[int, ...]:
    """Return the largest amplitudes of equal parts, 100 for the loudest."""
    parts = np.array_split(np.abs(samples), min(WAVE_COLUMNS, len(samples)))
    peaks = np.array([part.max() for part in parts])
    scaled: list[int] = np.rint(100 * peaks / max(peaks.max(), 1e-9)).astype(int).tolist()
    return tuple(scaled)
