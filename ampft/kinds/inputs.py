"""What a kind of data gives to a task: examples as tensors, the model that reads them, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from ampft.data.dataset import ClassificationData
from ampft.data.row_labels import Targets
from ampft.data.step_batches import InputExamples
from ampft.errors import InputError
from ampft.kinds.input_settings import InputSettings
from ampft.models.weights import LoadedModel

TRUNCATED = "label_truncated"  # of a collated batch: which texts were truncated


@runtime_checkable
class LabellingInputs(Protocol):
    """Inputs that change the labels, such as the size of masks."""

    def labels(self, split: str) -> Targets:
        """Return the labels of a split."""


@runtime_checkable
class PredictedMasks(Protocol):
    """Predictions of images that are masks."""

    @property
    def split(self) -> str:
        """Name of the split."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the classes."""

    @property
    def masks(self) -> npt.NDArray[np.object_] | None:
        """(n,) PNG files of class indices; None if they were not kept."""

    @property
    def pixel_accuracies(self) -> npt.NDArray[np.float64]:
        """(n,) share of the pixels of each image that are correct."""


@runtime_checkable
class DrawsPredictions(Protocol):
    """Inputs whose predictions are shown in pictures."""

    def picture(self, outcome: PredictedMasks) -> Image.Image:
        """Return a picture of some predictions."""


class Reader(Protocol):
    """Converts rows to the inputs of a saved model, as in its training."""

    def length(self, row: tuple[Any, ...]) -> int:
        """Return what a row costs, so that rows of similar cost form a batch."""

    def collate(self, columns: Sequence[Sequence[Any]]) -> Mapping[str, Tensor]:
        """Return the model's inputs of rows, padded to one shape."""

    def refused(self, columns: Sequence[Sequence[Any]], model: Any, error: Exception) -> InputError:
        """Return the message that a model cannot take these rows together."""


class KindModule(Protocol):
    """The module of a kind of data that makes tensors, see `ampft.kinds.Kind.module`."""

    def prepare_inputs(self, data: ClassificationData, settings: InputSettings) -> Inputs:
        """Return the examples of `data` as tensors for the model that `settings` names.

        Raises:
            InputError: The tokenizer or processor cannot be loaded, or a setting does not fit.
        """

    def saved_reader(self, folder: Path, arguments: Mapping[str, Any], config: Any) -> Reader:
        """Return the conversion of rows for a saved model.

        Args:
            folder: Folder of the model with its tokenizer or processor.
            arguments: Arguments of its training, as in run.json.
        """


class Inputs(Protocol):
    """The conversion of raw examples to the inputs of a model, and the loading of that model."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences to print, such as how many texts were truncated."""

    @property
    def splits(self) -> Mapping[str, InputExamples]:
        """The inputs of each split."""

    def load_model(
        self, model_class: str, label_arguments: Mapping[str, Any], settings: InputSettings
    ) -> LoadedModel:
        """Return the model in float32; new parameters are drawn with torch's current seed.

        Args:
            model_class: Name of the class in transformers that loads it.
            settings: The user's choices.
        """

    def references(self, split: str, rows: slice) -> Mapping[str, Sequence[str]]:
        """Return the columns of `predictions.parquet` that show the examples `rows`."""

    def save_processor(self, folder: Path) -> None:
        """Save the tokenizer or image processor in the folder of the model."""
