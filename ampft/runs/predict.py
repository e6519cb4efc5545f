"""`ampft predict`: predict rows with a model saved by a run."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from ampft.arguments.keywords import messages_for_python
from ampft.data.dataset import TOKEN
from ampft.data.input_columns import InputColumns
from ampft.data.media import MEDIA
from ampft.data.sources.files import as_file
from ampft.data.sources.table import Row, Table, refuse_surrogates
from ampft.errors import InputError, quoted
from ampft.files import describe_file
from ampft.runs.caller_state import caller_state_kept
from ampft.runs.manifest import check_files, model_files
from ampft.runs.predict_rows import (
    FILE_COLUMN,
    STANDARD_INPUT,
    PredictRequest,
    are_media,
    check_texts,
    lines_as_table,
    media_as_table,
    new_names,
    open_rows,
    opened_output,
    texts_as_table,
)
from ampft.runs.predict_scores import Scores, find_labels
from ampft.runs.predict_words import (
    predict_sentences,
    predict_words_file,
    sentences_in_memory,
)
from ampft.runs.predicted_masks import MASK_COLUMN, MaskFolder
from ampft.runs.predictor import Predictions, Predictor
from ampft.runs.record import RunRecord, read_record
from ampft.text.escaping import inert_lines
from ampft.text.numbers import counted
from ampft.text.terminal import labelled, quiet_libraries

if TYPE_CHECKING:
    import pandas as pd

ROWS_SORTED_AT_ONCE = 8192
# Kinds of data whose predictions have no probabilities of a whole row.
WITHOUT_PROBABILITIES = {
    TOKEN: "words, which have a class each",
    "pixels": "masks, which have a class per pixel",
}


def predict_file(model: str, request: PredictRequest) -> None:
    """Write the rows of a request with all their columns, `prediction` and `confidence`.

    If the rows have labels, the report of the predictions is printed: on standard error if standard
    output has the rows.

    Args:
        model: Output folder of a run.
        request: What to predict, and how.

    Raises:
        InputError: The folder does not hold a finished run, the rows cannot be read, or an option
            is out of range.
    """
    quiet_libraries()
    _check_batch_size(request)
    _check_files(request)
    if request.texts or list(request.files) == [STANDARD_INPUT]:
        _refuse_table_options(request, "--text" if request.texts else "standard input")
    folder = Path(model)
    record = _run_record(folder)
    _check_columns(request, record)
    _note_training_files(request, record)
    if record.data.kind == TOKEN:
        predict_words_file(folder, record, request)
        return
    table, inputs = _open(request, record)
    is_text = record.data.kind == "text"
    if is_text:
        check_texts(table, inputs)
    has_masks = record.data.kind == "pixels"
    labels = None
    if not has_masks:
        labels = find_labels(table, inputs.sources, record, request.label_column_name)
    predictor = Predictor(folder, record, request.mixed_precision, request.batch_size)
    masks = MaskFolder(request.output_file, predictor.config.label_colors) if has_masks else None
    scores = None
    if labels is not None:
        required = request.label_column_name is not None
        scores = Scores(labels, predictor.problem, required=required)
    count = _write(table, inputs, predictor, scores, request, masks, is_text=is_text)
    if scores is not None:
        print(inert_lines(scores.text()), file=_stream(request))
    if request.output_file is not None:
        print(inert_lines(f"wrote      {request.output_file}: {counted(count, 'row')}"))
    if masks is not None:
        print(inert_lines(f"wrote      {masks.path}: {counted(count, 'mask')}"))


def _write(
    table: Table,
    inputs: InputColumns,
    predictor: Predictor,
    scores: Scores | None,
    request: PredictRequest,
    masks: MaskFolder | None,
    *,
    is_text: bool,
) -> int:
    """Predict the rows of a table and write them; return their number."""
    names = predictor.problem.label_names
    empty = Predictions([], [], {"probabilities": np.zeros((0, len(names)))}, names)
    new_columns = partial(
        Predictions.columns, top_k=request.top_k, all_probabilities=request.all_probabilities
    )
    added = [*new_columns(empty), *([] if masks is None else [MASK_COLUMN])]
    added = new_names(added, table.columns)
    places = [table.columns.index(name) for name in inputs.sources]
    label_places = [table.columns.index(name) for name in scores.parser.columns] if scores else []
    count = 0
    with predictor.numerics, opened_output(request.output_file, table.columns, added) as write:
        for rows in _chunks(table):
            count += len(rows)
            values: list[list[Any]] = [[row[place] for place in places] for _, row in rows]
            if is_text:
                values = [
                    [*inputs.texts(cells, f"{table.origin}, {table.unit} {number}")]
                    for cells, (number, _) in zip(values, rows, strict=True)
                ]
            elif table.unit not in MEDIA:  # a table of files, relative to its folder
                folder = Path(table.origin).parent
                values = [[as_file(cell, folder) for cell in cells] for cells in values]
            predictions = predictor(list(zip(*values, strict=True)))
            if scores is not None:
                scores.add(
                    [[row[place] for place in label_places] for _, row in rows],
                    [f"{table.origin}, {table.unit} {number}" for number, _ in rows],
                    predictions,
                )
            columns = list(new_columns(predictions).values())
            if masks is not None:
                images = [cells[0] for cells in values]
                columns.append(masks.save(images, predictions.decoded[MASK_COLUMN]))
            write(
                [
                    (*(shown(cell) for cell in row), *new)
                    for (_, row), *new in zip(rows, *columns, strict=True)
                ]
            )
    return count


def shown(cell: Any) -> Any:
    """Return a cell for the output; of an image with its bytes, only its path."""
    is_image = isinstance(cell, dict) and cell.keys() == {"bytes", "path"}
    return cell["path"] if is_image else cell


def _chunks(table: Table) -> Iterator[list[Row]]:
    rows = table.read(table.columns)
    while chunk := list(islice(rows, ROWS_SORTED_AT_ONCE)):
        yield chunk


def _open(request: PredictRequest, record: RunRecord) -> tuple[Table, InputColumns]:
    """Return the rows to predict, and their input columns."""
    trained = tuple(record.data.input_columns)
    kind = record.data.kind
    media = {"image": "image", "pixels": "image", "sound": "sound"}.get(kind)
    if media is not None and request.texts:
        raise InputError(f"--text: the model was trained on {media}s. Name {media}s or folders.")
    if request.texts:
        return texts_as_table(request.texts, trained), InputColumns.of(trained, trained)
    if media is not None and are_media(request.files, media):
        _refuse_table_options(request, f"files of {media}s")
        has_classes = kind != "pixels"
        table = media_as_table(request.files, media, record.label_names if has_classes else ())
        return table, InputColumns.of((FILE_COLUMN,), (FILE_COLUMN,))
    if len(request.files) > 1:
        raise InputError(
            f"FILE: received {len(request.files)} files; name one. Several are possible only for"
            " images and sounds."
        )
    (file,) = request.files
    if file == STANDARD_INPUT:
        return lines_as_table(trained), InputColumns.of(trained, trained)
    if are_media([file]):
        needed = "a table of texts" if media is None else f"{media}s, folders of them or a table"
        raise InputError(
            f"FILE: {file} is an image, a sound or a folder, and the model was trained on"
            f" {media or kind}s. Name {needed}."
        )
    flag = "--text_column_names" if kind == "text" else "FILE"
    inputs = _columns(request.text_column_names, trained)
    return open_rows(
        Path(file), inputs=inputs, flag=flag, encoding=request.encoding, sheet=request.sheet_name
    )


def predict_inputs(
    folder: Path,
    inputs: Any,
    *,
    mixed_precision: str,
    batch_size: int,
    top_k: int,
    all_probabilities: bool,
) -> pd.DataFrame:
    """Return the predictions of texts or images in memory, one row each.

    Args:
        folder: Output folder of a run.
        inputs: One text, image or path of one, or a list of them; a list of pairs if the model
            reads pairs.
        mixed_precision: Precision of the computation.
        batch_size: Inputs per forward pass.
        top_k: Number of most probable labels to add.
        all_probabilities: Whether to add the probability of every label.
    """
    import pandas as pd
    from PIL import Image

    with messages_for_python(), caller_state_kept():
        quiet_libraries()
        request = PredictRequest(
            batch_size=batch_size, top_k=top_k, all_probabilities=all_probabilities
        )
        _check_batch_size(request)
        record = _run_record(folder)
        _check_columns(request, record)
        if record.data.kind == TOKEN:
            sentences = sentences_in_memory(inputs, record)
            predictor = Predictor(folder, record, mixed_precision, batch_size)
            with predictor.numerics:
                return pd.DataFrame(predict_sentences(predictor, sentences).columns())
        rows = [inputs] if isinstance(inputs, str | os.PathLike | Image.Image) else list(inputs)
        tuples = [tuple(row) if isinstance(row, list | tuple) else (row,) for row in rows]
        count, is_text = len(record.data.input_columns), record.data.kind == "text"
        for number, row in enumerate(tuples):
            place = f"position {number} (from 0)"
            if len(row) != count or (is_text and not all(isinstance(t, str) for t in row)):
                raise InputError(
                    f"{place}: received {quoted(rows[number])}. The model needs "
                    f"{counted(count, record.data.kind)} per row."
                )
            for text in row if is_text else ():
                refuse_surrogates(text, place)
        if not rows:
            raise InputError("the list is empty. Pass at least one row.")
        predictor = Predictor(folder, record, mixed_precision, batch_size)
        with predictor.numerics:
            predictions = predictor(list(zip(*tuples, strict=True)))
        columns = predictions.columns(top_k=top_k, all_probabilities=all_probabilities)
        if MASK_COLUMN in predictions.decoded:
            columns[MASK_COLUMN] = [
                Image.open(io.BytesIO(png)) for png in predictions.decoded[MASK_COLUMN]
            ]
        return pd.DataFrame(columns)


def _check_batch_size(request: PredictRequest) -> None:
    if request.batch_size < 1:
        raise InputError(f"--batch_size: received {request.batch_size}; it must be at least 1.")


def _check_files(request: PredictRequest) -> None:
    if bool(request.texts) == bool(request.files):
        problem = "received both" if request.texts else "received neither"
        raise InputError(
            f"FILE or --text: {problem}. Name a file (or - for standard input, one text per line),"
            " or pass --text TEXT."
        )
    if request.output_file is not None:
        _check_output(Path(request.output_file), [Path(file) for file in request.files])


def _note_training_files(request: PredictRequest, record: RunRecord) -> None:
    """Print which files the model was trained on: predictions of their rows look too good."""
    held_out = [
        name.strip()
        for flag in ("validation_file", "test_file")
        for name in str(record.arguments.get(flag) or "").split(",")
    ]
    trained = {
        digest
        for path, digest in record.data.files.items()
        if not any(path == name or fnmatch(path, name) for name in held_out)
    }
    for file in map(Path, request.files if trained else ()):
        if file.is_file() and describe_file(file).sha256 in trained:
            note = f"{file} has rows that the model was trained on (same SHA-256 as the training "
            note += "file), so its predictions there are better than on new rows."
            print(inert_lines(labelled("note", note)), file=_stream(request))


def _stream(request: PredictRequest) -> TextIO:
    """Return where messages are printed: standard error if standard output has the rows."""
    return sys.stderr if request.output_file is None else sys.stdout


def _refuse_table_options(request: PredictRequest, source: str) -> None:
    for name in ("text_column_names", "label_column_name", "sheet_name", "encoding"):
        if getattr(request, name) != getattr(PredictRequest, name):
            raise InputError(f"--{name} has no effect on {source}. Remove the flag.")


def _check_columns(request: PredictRequest, record: RunRecord) -> None:
    """Check the columns of probabilities and of labels that are asked for."""
    units = WITHOUT_PROBABILITIES.get(record.data.kind)
    for name in ("top_k", "all_probabilities"):
        if units is not None and getattr(request, name):
            raise InputError(f"--{name} has no effect on {units}. Remove the flag.")
    if record.data.kind == "pixels" and request.label_column_name is not None:
        raise InputError(
            f"--label_column_name {request.label_column_name}: predicted masks are not scored. "
            "Remove the flag."
        )
    classes = len(record.label_names)
    if not 0 <= request.top_k <= classes:
        raise InputError(
            f"--top_k: received {request.top_k}; the model has {classes} labels, so it must be"
            f" between 1 and {classes}."
        )


def _check_output(output: Path, files: Sequence[Path]) -> None:
    if output.is_dir():
        raise InputError(f"--output_file {output}: this is a folder. Name a file.")
    if not output.parent.is_dir():
        raise InputError(f"--output_file {output}: its folder does not exist. Create it first.")
    if output.exists() and any(file.exists() and output.samefile(file) for file in files):
        raise InputError(f"--output_file {output}: this is the input file. Name another file.")


def _columns(requested: str | None, trained: Sequence[str]) -> tuple[str, ...]:
    """Return the requested columns to read, or the model's training columns if None."""
    if requested is None:
        return tuple(trained)
    columns = tuple(name.strip() for name in requested.split(","))
    if len(columns) != len(trained):
        raise InputError(
            f"--text_column_names {requested}: the model was trained on "
            f"{counted(len(trained), 'text column')} ({', '.join(trained)}), but received "
            f"{len(columns)}. Name as many columns as in training."
        )
    return columns


def _run_record(folder: Path) -> RunRecord:
    if not folder.is_dir():
        raise InputError(f"--model {folder}: not a folder. Name the --output_dir of a run.")
    record = read_record(folder)
    if record.status != "finished":
        raise InputError(f"--model {folder}: the run is {record.status}; it has no final model.")
    check_files(folder, record.files, sorted(model_files(folder, record.files)))
    return record
