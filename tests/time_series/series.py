"""Time series: numbers in the columns of a table, and a model that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from datasets import ClassLabel, Dataset, Features, List, Value
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from ampft.data.assembly import finalize
from ampft.data.dataset import ClassificationData
from ampft.data.request import DataRequest
from ampft.data.sources.readers import open_table
from ampft.data.sources.source_table import SourceTable
from ampft.data.splits import with_missing_splits
from ampft.data.step_batches import IntArray
from ampft.errors import InputError
from ampft.kinds.input_settings import InputSettings
from ampft.kinds.prediction import InputRows, PredictRequest, TrainingInfo
from ampft.kinds.rows import find_labels
from ampft.models.weights import LoadedModel

LABEL = "label"


class SeriesConfig(transformers.PreTrainedConfig):
    """The length of a series, and the width of the model."""

    model_type = "series"

    def __init__(self, length: int = 8, width: int = 16, **more: Any) -> None:
        self.length, self.width = length, width
        super().__init__(**more)


class SeriesModel(transformers.PreTrainedModel):
    """Two linear layers."""

    config_class = SeriesConfig

    def __init__(self, config: SeriesConfig) -> None:
        super().__init__(config)
        self.inner = nn.Linear(config.length, config.width)
        self.outer = nn.Linear(config.width, config.num_labels)
        self.post_init()

    def forward(self, values: Tensor) -> SequenceClassifierOutput:
        return SequenceClassifierOutput(logits=self.outer(self.inner(values).tanh()))


transformers.AutoConfig.register("series", SeriesConfig)
transformers.AutoModelForSequenceClassification.register(SeriesConfig, SeriesModel)


def read_series(request: DataRequest, data: Any = None) -> ClassificationData:
    """Read the numbers of a file and their label, and split them."""
    assert data is None
    assert request.train_file is not None
    table = open_table(Path(request.train_file), flag="--train_file", encoding=request.encoding)
    columns = number_columns(table)
    rows = [
        (numbers(cells[:-1], f"{table.origin}, {table.unit} {number}"), str(cells[-1]))
        for number, cells in table.read((*columns, LABEL))
    ]
    series, labels = zip(*rows, strict=True)
    names = sorted(set(labels), key=float)
    codes = np.array([names.index(label) for label in labels])
    features = Features({"series": List(Value("float32")), LABEL: ClassLabel(names=names)})
    all_rows = Dataset.from_dict({"series": series, LABEL: codes}, features=features)
    groups = np.arange(len(codes), dtype=np.uint64)
    splits, notes = with_missing_splits({"train": all_rows}, codes, groups, request)
    return finalize(splits, request, ("series",), "series", str(request.train_file), notes)


def number_columns(table: SourceTable) -> tuple[str, ...]:
    """Return the columns of a table that are numbers: all but the label."""
    return tuple(name for name in table.columns if name != LABEL)


def numbers(cells: Sequence[Any], place: str) -> list[float]:
    """Return the numbers of a row."""
    try:
        return [float(cell) for cell in cells]
    except (TypeError, ValueError) as error:
        raise InputError(f"{place}: a cell is not a number ({error}). Correct it.") from None


@dataclass(frozen=True)
class SeriesExamples:
    """The series of one split."""

    values: Tensor

    @property
    def lengths(self) -> IntArray:
        return np.ones(len(self.values), dtype=np.int64)

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        return {"values": self.values[torch.from_numpy(ids)]}


@dataclass(frozen=True)
class SeriesReader:
    """Converts series for a saved model."""

    def length(self, row: tuple[Any, ...]) -> int:
        return len(row)

    def collate(self, columns: Sequence[Sequence[Any]]) -> Mapping[str, Tensor]:
        (series,) = columns
        return {"values": torch.tensor(series, dtype=torch.float32)}

    def refused(self, columns: Any, model: str, error: Exception) -> None:
        """Return None: every series has numbers."""


@dataclass(frozen=True)
class SeriesInputs:
    """Series as tensors."""

    splits: Mapping[str, SeriesExamples]
    notes: tuple[str, ...] = field(default=())

    def load_model(
        self, model_class: str, label_arguments: Mapping[str, Any], settings: InputSettings
    ) -> LoadedModel:
        length = self.splits["train"].values.shape[1]
        model = SeriesModel(SeriesConfig(length, **label_arguments))
        return LoadedModel(model, "two layers", False, ("random weights",))

    def references(self, split: str, rows: slice) -> Mapping[str, Sequence[str]]:
        values = self.splits[split].values[rows].tolist()
        return {"series": [" ".join(map(str, row)) for row in values]}

    def save_processor(self, folder: Path) -> None:
        """Save nothing: numbers are read as they are."""


def prepare_inputs(data: ClassificationData, settings: InputSettings) -> SeriesInputs:
    """Return the series of all splits."""
    return SeriesInputs(
        {
            name: SeriesExamples(torch.tensor(part["series"][:]))
            for name, part in data.splits.items()
        }
    )


def saved_reader(folder: Path, arguments: Mapping[str, Any], config: Any) -> SeriesReader:
    """Return the conversion of series for a saved model."""
    return SeriesReader()


def open_rows(request: PredictRequest, trained: TrainingInfo) -> InputRows:
    """Return the rows of a table of numbers."""
    (file,) = request.files
    table = open_table(Path(file), flag="FILE", encoding=request.encoding)
    sources = number_columns(table)
    labels = find_labels(table, sources, request, trained)
    return InputRows(
        table, sources, lambda cells, place: (numbers(cells, place),), "no numbers", labels
    )


def rows_in_memory(inputs: Any, trained: TrainingInfo) -> list[tuple[Any, ...]]:
    """Return the rows of a list of series."""
    return [(numbers(row, f"position {number}"),) for number, row in enumerate(inputs)]


def samples(columns: int) -> list[list[float]]:
    """Return four series of as many numbers as there are columns."""
    return [[number / (place + 1) for place in range(columns)] for number in range(4)]
