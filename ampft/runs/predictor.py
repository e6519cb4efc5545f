"""A saved model, ready to predict texts or images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor

from ampft.data.dataset import TOKEN
from ampft.data.images import as_rgb, open_image
from ampft.data.sounds import open_sound
from ampft.errors import InputError
from ampft.evaluation.evaluate import as_array
from ampft.kinds.logits import forward_logits
from ampft.kinds.windows import (
    EXAMPLE,
    POSITIONS,
    check_stride,
    encode_texts,
    encode_words,
    window_selection,
    word_selection,
)
from ampft.models.image_processor import pixel_values
from ampft.models.packing.families import packing_support
from ampft.models.packing.install import install_packing
from ampft.models.pretrained import SAVED_MODEL_FLAG, load_saved
from ampft.models.sound_features import SoundFeatures, load_feature_extractor
from ampft.models.tokenizer import load_tokenizer, max_input_length, pad_on_the_right
from ampft.models.weights import cast_in_place
from ampft.precision.accelerator import make_accelerator, numerics, training_device
from ampft.precision.compilation import turn_compilation_off
from ampft.precision.float32_modules import check_float32_modules
from ampft.precision.modes import canonical_mode
from ampft.precision.resolve import resolve
from ampft.runs.record import RunRecord
from ampft.tasks import TASKS
from ampft.tasks.outcome import THRESHOLDS, Problem
from ampft.training.out_of_memory import is_out_of_memory

Decoded = dict[str, npt.NDArray[Any]]

# Images of a forward pass whose predictions are masks: their logits are as large as the images.
MAX_MASKS = 4


@dataclass(frozen=True)
class Predictions:
    """Predictions of n rows, in their order.

    Attributes:
        labels: The n predictions.
        confidence: The probability of each.
        decoded: Arrays of n rows, such as `probabilities`.
        label_names: Names of the K classes.
    """

    labels: list[str]
    confidence: list[float]
    decoded: Decoded
    label_names: tuple[str, ...]

    def columns(self, *, top_k: int = 0, all_probabilities: bool = False) -> dict[str, list[Any]]:
        """Return the columns of the output.

        Args:
            top_k: Number of most probable labels to add, with their probabilities.
            all_probabilities: Whether to add the probability of every label.
        """
        columns: dict[str, list[Any]] = {
            "prediction": self.labels,
            "confidence": [round(value, 6) for value in self.confidence],
        }
        if not top_k and not all_probabilities:
            return columns
        probabilities = self.decoded["probabilities"].round(6)
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
        for rank, indices in enumerate(order.T, start=1):
            columns[f"label_{rank}"] = [self.label_names[index] for index in indices]
            ranked = probabilities[np.arange(len(indices)), indices]
            columns[f"probability_{rank}"] = ranked.astype(float).round(6).tolist()
        if all_probabilities:
            values = probabilities.astype(float).round(6).T.tolist()
            for name, column in zip(self.label_names, values, strict=True):
                columns[f"probability_{name}"] = column
        return columns


def saved_problem(record: RunRecord, config: Any) -> Problem:
    """Return the problem of a saved model, with the thresholds in its configuration.

    Args:
        record: Record of the run.
        config: Configuration of its model.
    """
    tuned = {THRESHOLDS: getattr(config, THRESHOLDS, None)}
    problem_type = TASKS[record.task].problem_type()
    return problem_type.from_arguments(tuple(record.label_names), {**record.arguments, **tuned})


class Predictor:
    """A saved model, ready to predict lists of inputs; enter `numerics` around the calls.

    Attributes:
        numerics: Context for the numerics of the precision.
        config: Configuration of the model.
        problem: Decoding and outcome of the model's labels.
    """

    def __init__(self, folder: Path, record: RunRecord, mode: str, batch_size: int) -> None:
        """Load the model and its tokenizer or image processor.

        Args:
            folder: Folder of a finished run.
            record: Its record.
            mode: Precision of the computation.
            batch_size: Inputs per forward pass; of split texts, windows.
        """
        precision = resolve(canonical_mode(mode), training_device())
        self._mode = precision.mode
        accelerator = make_accelerator(precision)
        turn_compilation_off(accelerator)
        self.numerics = numerics(precision)
        kind = TASKS[record.task]
        self._batch_size = batch_size
        model = load_saved(getattr(transformers, kind.model_class), str(folder))
        self.config = model.config
        self.problem = saved_problem(record, model.config)
        self._inputs: _Texts | _Words | _Images | _ImagesWithSizes | _Sounds
        if record.data.kind in ("text", TOKEN):
            self._inputs = text_inputs(folder, record, model.config)
        elif record.data.kind == "sound":
            extractor, _ = load_feature_extractor(
                str(folder), trust_remote_code=False, flag=SAVED_MODEL_FLAG
            )
            self._inputs = _Sounds(SoundFeatures.of(extractor))
        else:
            images = _Images(transformers.AutoImageProcessor.from_pretrained(str(folder)))
            has_masks = record.data.kind == "pixels"
            self._inputs = _ImagesWithSizes(images) if has_masks else images
            if has_masks:
                self._batch_size = min(batch_size, MAX_MASKS)
        check_float32_modules(model, precision)
        cast_in_place(model, precision.storage_dtype)
        # A training that found other logits without padding ran with it. Older records do not say.
        if packing_support(model).supported and record.model.padding_free is not False:
            install_packing(model)
        self._model = accelerator.prepare(model).eval()

    def __call__(self, columns: Sequence[Sequence[Any]]) -> Predictions:
        """Predict rows, in batches of similar length.

        Args:
            columns: Inputs of the rows, one sequence per input column.
        """
        lengths = [self._inputs.length(row) for row in zip(*columns, strict=True)]
        order = np.argsort(-np.array(lengths), kind="stable")
        parts = [
            self._decode([[column[row] for row in rows] for column in columns])
            for rows in np.split(order, range(self._batch_size, len(order), self._batch_size))
        ]
        back = np.argsort(order)
        decoded = {name: np.concatenate([p[name] for p in parts])[back] for name in parts[0]}
        labels, confidence = zip(*self.problem.predicted(decoded), strict=True)
        return Predictions(list(labels), list(confidence), decoded, self.problem.label_names)

    @torch.no_grad()
    def _decode(self, columns: list[list[Any]]) -> Decoded:
        try:
            inputs = self._inputs.collate(columns)
            logits = forward_logits(self._model, inputs, max_rows=self._batch_size)
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
            if not isinstance(self._inputs, _Sounds) or is_out_of_memory(error):
                raise
            raise self._inputs.refused(columns, type(self._model).__name__, error) from error
        if not torch.isfinite(logits).all():
            remedy = "Use another model." if self._mode == "fp32" else "Use --mixed_precision fp32."
            raise InputError(
                f"--mixed_precision {self._mode}: the model's predictions are not finite in this "
                f"precision. {remedy}"
            )
        return {name: as_array(t) for name, t in self.problem.decode(logits, inputs).items()}


def text_inputs(folder: Path, record: RunRecord, config: Any) -> _Texts | _Words:
    """Return the conversion of texts or words, as in the training of a run."""
    per_word = record.data.kind == TOKEN
    tokenizer = load_tokenizer(str(folder), flag=SAVED_MODEL_FLAG, reads_words=per_word)
    pad_on_the_right(tokenizer, config)
    arguments = record.arguments
    length = max_input_length(int(arguments["max_seq_length"]), tokenizer, config)
    if not per_word and arguments.get("long_text", "truncate") == "truncate":
        return _Texts(tokenizer, length, None)
    stride = check_stride(arguments.get("stride"), length, tokenizer)
    return _Words(tokenizer, length, stride) if per_word else _Texts(tokenizer, length, stride)


@dataclass(frozen=True)
class _Words:
    tokenizer: Any
    max_length: int
    stride: int

    def length(self, row: tuple[Sequence[str], ...]) -> int:
        return sum(map(len, row[0]))

    def collate(self, columns: list[list[Any]]) -> Mapping[str, Tensor]:
        (sentences,) = columns
        encoded, _ = encode_words(
            self.tokenizer, sentences, max_length=self.max_length, stride=self.stride
        )
        del encoded[EXAMPLE]
        positions = encoded.pop(POSITIONS)
        batch = dict(self.tokenizer.pad(encoded, return_tensors="pt"))
        counts = np.array([len(words) for words in sentences], dtype=np.int64)
        return {**batch, **word_selection(positions, counts, batch)}


@dataclass(frozen=True)
class _Texts:
    tokenizer: Any
    max_length: int
    stride: int | None

    def length(self, row: tuple[str, ...]) -> int:
        return sum(map(len, row))

    def collate(self, columns: list[list[str]]) -> Mapping[str, Tensor]:
        if self.stride is not None:
            (texts,) = columns
            encoded = encode_texts(
                self.tokenizer, texts, max_length=self.max_length, stride=self.stride
            )
            windows = np.bincount(encoded.pop(EXAMPLE), minlength=len(texts))
            batch = dict(self.tokenizer.pad(encoded, return_tensors="pt"))
            return {**batch, **window_selection(windows)}
        tokens: Mapping[str, Tensor] = self.tokenizer(
            *columns,
            truncation=True,
            max_length=self.max_length,
            padding=True,
            return_tensors="pt",
        )
        return tokens


@dataclass(frozen=True)
class _Images:
    processor: Any

    def length(self, row: tuple[Any, ...]) -> int:
        del row
        return 1

    def collate(self, columns: list[list[Any]]) -> Mapping[str, Tensor]:
        (images,) = columns
        values = pixel_values(self.processor, [as_rgb(open_image(image)) for image in images])
        return {"pixel_values": torch.from_numpy(values)}


@dataclass(frozen=True)
class _Sounds:
    features: SoundFeatures

    def length(self, row: tuple[Any, ...]) -> int:
        del row
        return 1

    def collate(self, columns: list[list[Any]]) -> Mapping[str, Tensor]:
        (sounds,) = columns
        waveforms = [self.features.waveform(open_sound(sound)) for sound in sounds]
        return self.features.batch([self.features.features(samples) for samples in waveforms])

    def refused(self, columns: list[list[Any]], model: str, error: Exception) -> InputError:
        """Return the error for a batch of sounds that the model cannot run on."""
        (sounds,) = columns
        opened = [open_sound(sound) for sound in sounds]
        seconds = [len(sound.samples) / sound.rate for sound in opened]
        shortest = int(np.argmin(seconds))
        sound = sounds[shortest]
        name = sound.get("path") if isinstance(sound, dict) else sound
        place = name if isinstance(name, str | Path) else "a sound in memory"
        reason = " ".join(str(error).split()).rstrip(".")
        return InputError(
            f"{place}: {model} cannot run on this sound of {seconds[shortest]:.3f} s, the shortest "
            f"of its batch ({reason}). Remove sounds that are too short."
        )


@dataclass(frozen=True)
class _ImagesWithSizes:
    images: _Images

    def length(self, row: tuple[Any, ...]) -> int:
        return self.images.length(row)

    def collate(self, columns: list[list[Any]]) -> Mapping[str, Tensor]:
        """Return pixels, and the height and width of each image for its mask."""
        (images,) = columns
        opened = [as_rgb(open_image(image)) for image in images]
        sizes = torch.tensor([image.size[::-1] for image in opened])
        return {**self.images.collate([opened]), "label_sizes": sizes}
