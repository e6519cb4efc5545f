"""Rows to predict and their labels, whatever their kind, and samples of them."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from ampft.data.columns import (
    LABEL_FLAG,
    LABELS,
    InputColumns,
    column_renames,
    normalized_name,
    require_columns,
)
from ampft.data.media import MEDIA, kind_of_file
from ampft.data.row_labels import LabelParser
from ampft.data.sources.readers import open_table
from ampft.data.sources.source_table import Row, SourceTable, described_columns, refuse_surrogates
from ampft.decision import is_described, template
from ampft.errors import InputError, quoted, quoted_list
from ampft.kinds.prediction import InputRows, PredictRequest, TrainingInfo
from ampft.text.numbers import counted

STANDARD_INPUT = "-"


def table_of_lists(
    columns: Sequence[str], rows: Sequence[Row], unit: str, origin: str
) -> SourceTable:
    """Return rows in memory as a table."""

    def read(names: Sequence[str]) -> Iterator[Row]:
        indices = [columns.index(name) for name in names]
        for number, row in rows:
            yield number, [row[index] for index in indices]

    return SourceTable(columns=tuple(columns), read=read, unit=unit, origin=origin)


def texts_as_table(texts: Sequence[str], columns: Sequence[str]) -> SourceTable:
    """Return the texts of `--text` as a table; for pairs, two texts are a row.

    Raises:
        InputError: Their number is not a multiple of the number of columns.
    """
    count = len(columns)
    if len(texts) % count:
        raise InputError(
            f"--text: received {len(texts)}; the model was trained on {count} text columns"
            f" ({', '.join(columns)}), so pass --text {count} times per row."
        )
    rows = [texts[start : start + count] for start in range(0, len(texts), count)]
    return table_of_lists(columns, list(enumerate(rows, start=1)), "text", "--text")


def lines_as_table(columns: Sequence[str], *, keeps_blank: bool = True) -> SourceTable:
    """Return the lines of standard input, ended by line feeds, as a table; tabs separate columns.

    Args:
        keeps_blank: Whether a blank line is a row, so that there is one per line.

    Raises:
        InputError: A line does not have one text per column, or is not text; or the first one is
            of a table.
    """
    rows: list[Row] = []
    is_first = True
    for number, line in enumerate(_lines_of_standard_input(), start=1):
        text = line.rstrip("\r\n").removeprefix("\ufeff")
        if not text.strip():
            if keeps_blank:
                rows.append((number, [""] * len(columns)))
            continue
        if is_first and _is_of_table(text, columns):
            raise InputError(
                f"standard input, line {number}: {quoted(text)} is a line of a table, and standard "
                "input has one text per line. Pass the table as FILE."
            )
        is_first = False
        row = text.split("\t") if len(columns) > 1 else [text]
        if len(row) != len(columns):
            raise InputError(
                f"standard input, line {number}: {len(row)} texts, but the model was trained on"
                f" {len(columns)} ({', '.join(columns)}). Separate them by a tab."
            )
        rows.append((number, row))
    return table_of_lists(columns, rows, "line", "standard input")


def _is_of_table(line: str, columns: Sequence[str]) -> bool:
    """Return whether a line is the header of a table with these columns, or a row in JSON."""
    if line.lstrip().startswith("{"):
        try:
            return set(columns) <= set(json.loads(line))
        except ValueError:
            return False
    headers = ({cell.strip(' "') for cell in line.split(each)} for each in ",;\t|")
    return any(set(columns) <= header for header in headers)


def _lines_of_standard_input() -> Iterator[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Strict, because Python's C locale turns bytes into surrogates.
        sys.stdin.reconfigure(errors="strict", newline="\n")
    try:
        yield from sys.stdin
    except UnicodeDecodeError as error:
        raise InputError(
            f"standard input: byte 0x{error.object[error.start]:02x} is not {error.encoding}. "
            "Convert it: iconv -f latin1 -t utf-8 FILE | ampft predict --model DIR -"
        ) from None


def are_media(paths: Sequence[str], kind: str | None = None) -> bool:
    """Return whether paths name folders, or images or sounds, not a table.

    Args:
        kind: `image` or `sound`; None for either.
    """
    kinds = MEDIA if kind is None else (kind,)
    return all(Path(path).is_dir() or kind_of_file(path) in kinds for path in paths)


def unused_column_names(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return names for new columns; one that a file has already gets a number."""
    result: list[str] = []
    for name in names:
        free, number = name, 1
        while free in taken or free in result:
            number += 1
            free = f"{name}_{number}"
        result.append(free)
    return result


def text_rows(request: PredictRequest, trained: TrainingInfo) -> InputRows:
    """Return rows of texts, from `--text`, lines of standard input, or a table."""
    names = trained.input_columns
    if request.texts:
        table, inputs = texts_as_table(request.texts, names), InputColumns.of(names, names)
    else:
        needed = "texts. Give a table of texts"
        table, inputs = table_of_rows(request, trained, flag="--text_column_names", needed=needed)

    def convert(cells: Sequence[Any], place: str) -> tuple[Any, ...] | None:
        texts = inputs.texts(cells, place)
        if None in texts:
            return None
        if not inputs.features:
            _check_described(texts[0], trained, place)
        return tuple(texts)

    missing = f"nothing in column {', '.join(map(repr, inputs.names))}"
    labels = find_labels(table, inputs.sources, request, trained)
    keeps_blank = list(request.files) == [STANDARD_INPUT]
    return InputRows(table, inputs.sources, convert, missing, labels, keeps_blank=keeps_blank)


def table_of_rows(
    request: PredictRequest, trained: TrainingInfo, *, flag: str, needed: str
) -> tuple[SourceTable, InputColumns]:
    """Return the rows of a file or of standard input, and their input columns."""
    if len(request.files) > 1:
        raise InputError(
            f"{request.flag}: received {len(request.files)} files; give one. Several are possible "
            "only for images and sounds."
        )
    (file,) = request.files
    if file == STANDARD_INPUT:
        names = trained.input_columns
        return lines_as_table(names), InputColumns.of(names, names)
    if are_media([file]):
        raise InputError(
            f"{request.flag}: {file} is an image, a sound or a folder, and the model was trained "
            f"on {needed}."
        )
    names = _requested_columns(request.text_column_names, trained.input_columns)
    table = open_table(
        Path(file), flag=request.flag, encoding=request.encoding, sheet=request.sheet_name
    )
    columns = InputColumns.of(
        names, table.columns, trained.feature_columns, trained.text_column_delimiter
    )
    # Their names in the table differ at most in case and blanks.
    renamed = {new: old for old, new in column_renames(table.columns, columns.sources).items()}
    require_columns(
        [name for name in columns.sources if name not in renamed],
        table.columns,
        flag,
        origin=table.origin,
        describe=lambda: described_columns(table),
    )
    return table, columns.renamed(renamed)


def _requested_columns(requested: str | None, trained: Sequence[str]) -> tuple[str, ...]:
    """Return the requested columns to read, or the model's training columns if None."""
    if requested is None:
        return tuple(trained)
    columns = tuple(name.strip() for name in requested.split(","))
    if len(columns) != len(trained):
        raise InputError(
            f"--text_column_names {requested}: the model was trained on "
            f"{counted(len(trained), 'text column')} ({', '.join(trained)}), but received "
            f"{len(columns)}. Give as many columns as in training."
        )
    return columns


def find_labels(
    table: SourceTable, inputs: Sequence[str], request: PredictRequest, trained: TrainingInfo
) -> LabelParser | None:
    """Return where the labels of whole rows are; None if the table has none.

    Args:
        request: The user's choices.
        trained: Information about the training, including its label column.

    Raises:
        InputError: The requested column is missing.
    """
    several, requested = trained.several_labels, request.label_column_name
    named = requested or trained.arguments.get("label_column_name")
    columns = tuple(part.strip() for part in named.split(",")) if named and several else (named,)
    if requested:
        names = tuple(name for name in columns if name is not None)
        describe = lambda: described_columns(table)  # noqa: E731
        require_columns(names, table.columns, LABEL_FLAG, origin=table.origin, describe=describe)
    elif named is None or not set(columns) <= set(table.columns):
        usual = [c for c in table.columns if normalized_name(c) in LABELS and c not in inputs]
        usual = [c for c in usual if c == "label"] or usual
        if len(usual) != 1:
            return None
        columns = (usual[0],)
    if trained.number_labels:
        return LabelParser((str(columns[0]),), numbers=True)
    separator = str(trained.arguments.get("label_separator", ","))
    names = tuple(map(str, columns))
    return LabelParser(
        names, several, separator, table.classes, of_columns=trained.labels_of_columns
    )


def rows_in_memory(noun: str, inputs: Any, trained: TrainingInfo) -> list[tuple[Any, ...]]:
    """Return the rows to predict, a tuple with one cell per input column each.

    Args:
        noun: What a cell is: "text", "image" or "sound".
        inputs: One text, image or path, or a list of cells or of tuples of cells.

    Raises:
        InputError: A row has another number of cells, or a cell of "text" is not a valid string.
    """
    rows = [inputs] if isinstance(inputs, str | os.PathLike | Image.Image) else list(inputs)
    count, is_text = len(trained.input_columns), noun == "text"
    tuples = []
    for number, row in enumerate(rows):
        place = f"position {number} (from 0)"
        if is_text and isinstance(row, Mapping):
            names = tuple(row)
            columns = InputColumns.of(
                trained.input_columns, names, trained.feature_columns, trained.text_column_delimiter
            )
            require_columns(columns.sources, names, "inputs", origin=place)
            row = list(columns.texts([row[name] for name in columns.sources], place))
            if None in row:
                wanted = quoted_list(trained.input_columns)
                raise InputError(f"{place}: the row has no text in {wanted}.")
        tuples.append(tuple(row) if isinstance(row, list | tuple) else (row,))
    for number, row in enumerate(tuples):
        place = f"position {number} (from 0)"
        if len(row) != count or (is_text and not all(isinstance(t, str) for t in row)):
            raise InputError(
                f"{place}: received {quoted(rows[number])}. The model needs "
                f"{counted(count, noun)} per row."
            )
        for text in row if is_text else ():
            refuse_surrogates(text, place)
        if is_text:
            _check_described(row[0], trained, place)
    return tuples


def _check_described(text: Any, trained: TrainingInfo, place: str) -> None:
    """Raise InputError if a text lacks the columns that were put before it in training."""
    features = trained.feature_columns
    if features and not is_described(features, text):
        raise InputError(
            f"{place}: the model was trained on texts after {quoted_list(features)}. Pass rows with"
            f" these columns, or write them before each text: {template(features)}"
        )


# Inputs of each kind that need no data: an exported model is traced and tried with them.
LENGTHS = (3, 5, 7, 9)  # words of a text


def sample_texts(columns: int) -> list[tuple[str, ...]]:
    """Return texts of unequal lengths, or tuples of as many texts as there are input columns."""
    return [tuple(" ".join(words) for _ in range(columns)) for words in sample_sentences(columns)]


def sample_sentences(columns: int) -> list[list[str]]:
    """Return lists of words of unequal lengths."""
    del columns
    return [["one", "two", "three"] * (count // 3) + ["end"] * (count % 3) for count in LENGTHS]
