"""What a prediction needs and gives: the request, the rows, their labels and the new columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ampft.data.row_labels import Targets
from ampft.data.sources.source_table import SourceTable
from ampft.errors import InputError
from ampft.precision.modes import BASELINE
from ampft.text.units import TextUnits

TABLE_OPTIONS = ("text_column_names", "label_column_name", "sheet_name", "encoding")

Decoded = Mapping[str, npt.NDArray[Any]]
RowFormat = Callable[[Sequence[Any]], str]
# Returns the inputs of a row from its cells and its place; None if it lacks them.
Convert = Callable[[Sequence[Any], str], tuple[Any, ...] | None]


class LabelReader(Protocol):
    """Where labels are: a `LabelParser` of whole rows, or the reader of an add-on."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to read."""

    @property
    def title(self) -> str:
        """Name of the column of the labels."""

    def parse(self, cells: Sequence[object], location: str) -> tuple[str, ...] | None:
        """Return the labels of a row; None if they are missing."""

    def as_trained(self, rows: Sequence[tuple[str, ...]]) -> Sequence[tuple[str, ...]]:
        """Return the labels of all rows in the names of the training."""

    def targets(self, rows: Sequence[tuple[int, ...]], classes: int) -> Targets:
        """Return the labels of all rows from their indices."""


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """What to predict, and how."""

    files: Sequence[str] = ()  # One file, `-` for standard input, or images and folders of images.
    flag: str = "FILE"  # What names the files on the command line.
    texts: Sequence[str] = ()  # Texts to predict instead of files.
    output_file: str | None = None  # File to write; None writes CSV to standard output.
    overwrite: bool = False  # Whether that file may exist, and is then replaced.
    # Comma-separated input columns; None reads those used in training.
    text_column_names: str | None = None
    # Label column to score; None looks for the one used in training.
    label_column_name: str | None = None
    batch_size: int = 64  # Rows per forward pass.
    mixed_precision: str = BASELINE  # Precision of the computation.
    use_cpu: bool = False  # Whether to predict on the CPU even if there is an accelerator.
    trust_remote_code: bool = False  # Whether code from the folder of the model may run.
    top_k: int = 0  # Number of most probable labels to add.
    all_probabilities: bool = False  # Whether to add the probability of every label.
    decimals: int | None = 6  # Decimal places of the probabilities; None does not round.
    # Character encoding of CSV, TSV and JSON files; None if no flag chooses it: UTF-8.
    encoding: str | None = "utf-8"
    sheet_name: str | None = None  # Sheet of an Excel workbook; None takes the first one.

    def refuse_table_options(self, source: str) -> None:
        """Raise InputError for options that have no effect on rows that are not in a table."""
        for name in TABLE_OPTIONS:
            if getattr(self, name) != getattr(PredictRequest, name):
                raise InputError(f"--{name} has no effect on {source}. Remove the flag.")


@dataclass(frozen=True)
class TrainingInfo:
    """What a prediction needs to know of the training."""

    input_columns: tuple[str, ...]  # Columns of the inputs.
    label_names: tuple[str, ...]  # Names of the classes.
    arguments: Mapping[str, Any]  # Its arguments, as in run.json.
    several_labels: bool  # Whether an example could have any number of labels.
    # How texts are divided into words; None for other kinds of data.
    text_units: TextUnits | None = None
    number_labels: bool = False  # Whether labels are numbers.
    labels_of_columns: bool = False  # Whether a row has a label of each of several columns.
    feature_columns: tuple[str, ...] = ()  # Columns that are put before each text.
    text_column_delimiter: str = " "  # Text between joined columns.


@dataclass(frozen=True)
class InputRows:
    """Rows to predict."""

    table: SourceTable  # The rows with all their columns.
    sources: tuple[str, ...]  # Columns of the table that the inputs are made of.
    convert: Convert  # Function that returns the inputs of a row.
    missing: str  # What a row lacks for which `convert` returns None.
    labels: LabelReader | None = None  # Where the labels are; None if there are none.
    # Whether a row whose inputs are all blank is written without a prediction, as of lines.
    keeps_blank: bool = False

    def inputs_of(self, cells: Sequence[Any], number: int) -> tuple[tuple[Any, ...] | None, str]:
        """Return the inputs of a row, or None and why it has none; nothing for a blank line.

        Args:
            cells: Its cells of `sources`.
        """
        place = self.place(number)
        try:
            inputs = self.convert(cells, place)
        except InputError as error:
            return None, str(error).removeprefix(f"{place}: ")
        is_blank = self.keeps_blank and not any(str(cell).strip() for cell in cells)
        return inputs, "" if inputs is not None or is_blank else f"{self.missing}."

    def check(self) -> None:
        """Check that a row has its inputs.

        Raises:
            InputError: All lack them; the message names the rows.
        """
        without, reason, has_usable = list[int](), "", False
        for number, cells in self.table.read(self.sources):
            inputs, why = self.inputs_of(cells, number)
            if inputs is not None or not why:
                has_usable = True
            else:
                without.append(number)
                reason = reason or why
        if without and not has_usable:
            raise InputError(f"{self.table.place(*without)}: {reason}")

    def place(self, number: int) -> str:
        return f"{self.table.origin}, {self.table.unit} {number}"


@dataclass(frozen=True)
class PredictedRows:
    """Predictions of n rows, in their order."""

    labels: list[str]  # The n predictions.
    confidence: list[float]  # The probability of each.
    decoded: Decoded  # Arrays of n rows, such as `probabilities`.
    label_names: tuple[str, ...]  # Names of the K classes.
    answered: list[bool] | None = None  # Whether each row is answered; None without abstention.
    truncated: int = 0  # Number of rows of which the model did not read all.

    def columns(
        self, *, top_k: int = 0, all_probabilities: bool = False, decimals: int | None = 6
    ) -> dict[str, list[Any]]:
        """Return the columns of the output. A row that is not answered has an empty prediction.

        Args:
            top_k: Number of most probable labels to add, with their probabilities.
            all_probabilities: Whether to add the probability of every label.
            decimals: Decimal places of the probabilities; None does not round.
        """

        def shown(probabilities: npt.NDArray[Any]) -> list[Any]:
            values = probabilities.astype(float)
            result: list[Any] = (values if decimals is None else values.round(decimals)).tolist()
            return result

        if "values" in self.decoded:  # numbers, which have no probability
            return {"prediction": self.decoded["values"][:, 0].astype(float).tolist()}
        columns: dict[str, list[Any]] = {
            "prediction": self.labels,
            "confidence": shown(np.asarray(self.confidence)),
        }
        if self.answered is not None:
            pairs = zip(self.labels, self.answered, strict=True)
            columns["prediction"] = [label if is_answered else "" for label, is_answered in pairs]
            columns["answered"] = self.answered
        if not top_k and not all_probabilities:
            return columns
        probabilities = self.decoded["probabilities"]
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
        for rank, indices in enumerate(order.T, start=1):
            columns[f"label_{rank}"] = [self.label_names[index] for index in indices]
            columns[f"probability_{rank}"] = shown(probabilities[np.arange(len(indices)), indices])
        if all_probabilities:
            for name, column in zip(self.label_names, shown(probabilities.T), strict=True):
                columns[f"probability_{name}"] = column
        return columns


@dataclass(frozen=True)
class RowOutput:
    """What a prediction adds to rows."""

    # Function that returns the new columns of rows, from their inputs and predictions; called once
    # without rows for the names.
    columns: Callable[[Sequence[tuple[Any, ...]], PredictedRows], dict[str, list[Any]]]
    # Types of columns in Parquet, by name, where the first rows may not show them.
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    # Formats of files besides CSV, JSON Lines and Parquet, by ending: the text of a row from its
    # new columns.
    formats: Mapping[str, RowFormat] = field(default_factory=dict)
    # Function that returns what was written besides the table; None for nothing.
    summary: Callable[[], str | None] = lambda: None


def label_output(request: PredictRequest, config: Any) -> RowOutput:
    """Return what predictions add to rows: label, confidence and, if asked for, probabilities."""
    del config
    asked = partial(
        PredictedRows.columns,
        top_k=request.top_k,
        all_probabilities=request.all_probabilities,
        decimals=request.decimals,
    )
    return RowOutput(lambda rows, predictions: asked(predictions))
