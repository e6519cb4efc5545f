"""What `transformers.pipeline` answers about a case, given what its user would type.

Nothing of ampft is between the case and the pipeline. An answer has the form of a row of
predictions.parquet: (units, K) probabilities, or a mask of class indices.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from datasets import Audio
from PIL import Image
from transformers.image_utils import load_image

from ampft.data.dataset import RAW_TEXT_COLUMN, ClassificationData
from ampft.errors import listed
from ampft.media.images import as_rgb, image_conversions, open_image
from ampft.media.media_columns import undecoded_column
from ampft.media.sounds import open_sound
from ampft.text.units import TextUnits, Word

Answer = npt.NDArray[Any]
NO_CLASS = -1  # of a pixel for which a pipeline gives no class


class NoPipelineAnswers(Exception):
    """A case that no pipeline treats as the run did; the message says why, in the plural."""


@dataclass(frozen=True)
class Question:
    """A case of a split, and the pipeline that is asked about it."""

    pipe: Any  # Pipeline of transformers.
    data: ClassificationData
    split: str
    row: int
    # Arguments of the call besides the case, as the model card has them.
    arguments: Mapping[str, Any]
    label_names: Sequence[str]

    @property
    def cells(self) -> list[Any]:
        """The input cells of the case."""
        names = list(self.data.input_columns)
        return list(self.data.splits[self.split].select_columns(names)[self.row].values())

    @property
    def texts(self) -> list[str]:
        """The texts that a user would type."""
        cells = self.cells
        return [self.sentence[0]] if isinstance(cells[0], list) else cells

    @property
    def sentence(self) -> tuple[str, list[Word]]:
        """The text of a list of words that a user would type, and the places of the words."""
        units, part = self.data.text_units or TextUnits(), self.data.splits[self.split]
        if RAW_TEXT_COLUMN not in part.column_names:
            return units.joined(self.cells[0])
        text = part[self.row][RAW_TEXT_COLUMN]
        return text, units.split(text)

    @property
    def file(self) -> Any:
        """The path of an image or sound, or its bytes if it has no file."""
        (column,) = self.data.input_columns
        part = self.data.splits[self.split]
        kind = "sound" if isinstance(part.features[column], Audio) else "image"
        (cell,) = undecoded_column(part.select([self.row]), column, kind)[0].values()
        return cell["path"] if cell["bytes"] is None else cell["bytes"]

    def probabilities(self, scores: Sequence[Mapping[str, Any]]) -> Answer:
        """Return (1, K) probabilities of a list of labels and scores."""
        found = {each["label"]: each["score"] for each in scores}
        return np.array([[found.get(name, np.inf) for name in self.label_names]])


def ask_text(question: Question) -> Answer:
    """Return the probabilities of a text or a pair of texts."""
    cells, tokenizer = question.cells, question.pipe.tokenizer
    limit = tokenizer.model_max_length
    if not question.arguments.get("truncation") and len(tokenizer(*cells)["input_ids"]) > limit:
        raise NoPipelineAnswers(
            f"texts over {limit} tokens, which a pipeline does not split into windows"
        )
    value = cells[0] if len(cells) == 1 else dict(zip(("text", "text_pair"), cells, strict=True))
    scores = question.pipe(value, **{**question.arguments, "top_k": None})
    return question.probabilities(scores)


def ask_words(question: Question) -> Answer:
    """Return the (words, K) probabilities of a sentence, in which only the best class is known.

    A word has the class of its first token, as in the training.
    """
    text, places = question.sentence
    tokenizer = question.pipe.tokenizer
    if len(tokenizer(text)["input_ids"]) > tokenizer.model_max_length:
        limit = tokenizer.model_max_length
        raise NoPipelineAnswers(f"sentences over {limit} tokens, which a pipeline cuts off")
    tokens = question.pipe(text, aggregation_strategy="none", ignore_labels=[])
    answer = np.full((len(places), len(question.label_names)), np.nan)
    index = {name: code for code, name in enumerate(question.label_names)}
    after, position = -1, 0  # a space before the first word can be a token from 0 to 0
    for word, place in enumerate(places):
        while position < len(tokens) and tokens[position]["end"] <= after:
            position += 1
        first = tokens[position] if position < len(tokens) else None
        if first is None or first["start"] >= place.end or first["entity"] not in index:
            answer[word] = np.inf  # no token, or an unknown class
        else:
            answer[word, index[first["entity"]]] = first["score"]
        after = place.end
    return answer


def entities_differ(question: Question, entities: Sequence[tuple[str, int, int]]) -> bool:
    """Return whether the call on the model card finds other entities in a sentence.

    Args:
        entities: Type, first word and end of each entity, from the tags of the run.
    """
    text, places = question.sentence
    found = question.pipe(text, **question.arguments)
    theirs = [(each["entity_group"], each["start"], each["end"]) for each in found]
    return theirs != [(name, places[a].start, places[b - 1].end) for name, a, b in entities]


def ask_picture(question: Question) -> Answer:
    """Return the probabilities of an image."""
    value = _picture(question.file)
    arguments = {**question.arguments, "top_k": len(question.label_names)}
    return question.probabilities(question.pipe(value, **arguments))


def other_picture(question: Question) -> str | None:
    """Return that a pipeline reads an image otherwise than the run, in a sentence; None if not."""
    value = question.file
    image = open_image(value)
    ours, theirs = as_rgb(image), load_image(_picture(value)).convert("RGB")
    if ours.size == theirs.size and np.array_equal(np.asarray(ours), np.asarray(theirs)):
        return None
    name = "an image in memory" if isinstance(value, bytes) else value
    return (
        f"The run reads {name} {listed(image_conversions(image))}, and a pipeline reads other "
        "pixels. Save such images in 8-bit RGB, in training and elsewhere."
    )


def ask_sound(question: Question) -> Answer:
    """Return the probabilities of a sound.

    A pipeline decodes files with the program ffmpeg. Without it, its user decodes them.
    """
    value, wanted = question.file, question.pipe.feature_extractor.sampling_rate
    sound = open_sound(value)
    if sound.rate != wanted:
        raise NoPipelineAnswers(
            f"sounds of other rates than {wanted:,} Hz, which others resample otherwise"
        )
    if shutil.which("ffmpeg") is None:
        value = {"raw": sound.mono(), "sampling_rate": sound.rate}
    arguments = {**question.arguments, "top_k": len(question.label_names)}
    return question.probabilities(question.pipe(value, **arguments))


def ask_mask(question: Question) -> Answer:
    """Return the mask of an image, (height, width) class indices."""
    value = _picture(question.file)
    segments = question.pipe(value, **question.arguments)
    index = {name: code for code, name in enumerate(question.label_names)}
    mask = np.full(np.asarray(segments[0]["mask"]).shape, NO_CLASS)
    for segment in segments:
        mask[np.asarray(segment["mask"]) > 0] = index.get(segment["label"], NO_CLASS)
    return mask


def _picture(value: Any) -> Any:
    return Image.open(io.BytesIO(value)) if isinstance(value, bytes) else str(Path(value))
