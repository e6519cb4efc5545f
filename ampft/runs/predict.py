"""`ampft predict`: predict rows with a model saved by a run."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL.Image import Image

from ampft.arguments.parsing import messages_for_python
from ampft.data.sources.source_table import refuse_surrogates
from ampft.errors import InputError, listed, quoted
from ampft.features.decision_figures import abstention_sentence
from ampft.files import describe_file, special_or_atomic_path
from ampft.kinds.prediction import (
    InputRows,
    LabelReader,
    PredictedRows,
    PredictRequest,
    RowFormat,
    RowOutput,
    TrainingInfo,
)
from ampft.kinds.rows import STANDARD_INPUT, unused_column_names
from ampft.models.tokenizer import read_contract
from ampft.ownership import check_output_file
from ampft.runs.caller_state import caller_state_kept
from ampft.runs.manifest import check_model_files, model_files
from ampft.runs.predictor import Predictor
from ampft.runs.record import RunRecord, not_finished, read_record
from ampft.runs.run_text import report_with_heading, task_row
from ampft.tasks.outcome import Problem, TunableOutcome
from ampft.text.numbers import counted
from ampft.text.terminal import labelled, print_line, quiet_libraries
from ampft.text.units import TextUnits

if TYPE_CHECKING:
    import pandas as pd


Write = Callable[[Sequence[Sequence[Any]]], None]

# What a cell of a JSON file can have, by the error that writing it raises.
UNWRITABLE: dict[type[Exception], str] = {
    UnicodeEncodeError: "half of a surrogate pair",
    RecursionError: "lists or objects nested hundreds of times",
    OverflowError: "a whole number of more than 64 bits",
}


OUTPUT_FORMATS = (".csv", ".jsonl", ".parquet")  # Without an ending, and in a pipe: CSV.


@contextmanager
def opened_output(
    output_file: str | None,
    columns: Sequence[str],
    added: Sequence[str],
    *,
    types: Mapping[str, pa.DataType] | None = None,
    formats: Mapping[str, RowFormat] | None = None,
) -> Iterator[Write]:
    """Yield a function that writes rows, as CSV, JSON Lines or Parquet by the name of the file.

    Args:
        output_file: File to write, atomically; None for CSV on standard output.
        added: Columns of the predictions, which follow.
        types: Types of columns in Parquet, by name. Other columns get their types from the
            first rows.
        formats: Other formats by the ending of the file: the text of a row from its new columns.
    """
    names = [*columns, *added]
    for name in names:
        refuse_surrogates(name, f"the name of the column {name!a}")
    suffix = "" if output_file is None else Path(output_file).suffix.lower()
    is_known = suffix in ("", *OUTPUT_FORMATS, *(formats or ()))
    if not (is_known or _is_pipe(output_file)):
        raise InputError(
            f"--output_file {output_file}: {suffix} files are not written. Use .csv, .jsonl or "
            ".parquet."
        )
    target = nullcontext() if output_file is None else special_or_atomic_path(Path(output_file))
    with target as path:
        if suffix == ".parquet" and path is not None:
            with _parquet(path, names, types or {}) as write:
                yield _refusing(write, names)
            return
        out = sys.stdout if path is None else path.open("w", encoding="utf-8", newline="")
        try:
            if formats is not None and suffix in formats:
                row_text = formats[suffix]
                write = _lines(out, lambda row: row_text(row[len(columns) :]))
            elif suffix == ".jsonl":
                write = _lines(out, lambda row: _json(dict(zip(names, row, strict=True))) + "\n")
            else:
                write = _csv(out, names, len(columns))
            yield _refusing(write, names)
        finally:
            if path is not None:
                out.close()


def _is_pipe(output_file: str | None) -> bool:
    """Return whether an output is a pipe or a device, whose name says nothing of its format."""
    return (
        output_file is not None and Path(output_file).exists() and not Path(output_file).is_file()
    )


def _refusing(write: Write, names: Sequence[str]) -> Write:
    """Return a function that writes rows, or refuses the first cell that the output cannot hold."""
    written = 0

    def write_or_refuse(rows: Sequence[Sequence[Any]]) -> None:
        nonlocal written
        try:
            write(rows)
        except tuple(UNWRITABLE) as error:
            cells = (
                f"row {number}, column {quoted(name)}: "
                for number, row in enumerate(rows, start=written + 1)
                for name, value in zip(names, row, strict=True)
                if _is_unwritable(value, type(error))
            )
            raise InputError(
                f"{next(cells, '')}the cell has {UNWRITABLE[type(error)]}, which the output cannot "
                "hold. Remove the cell or the row."
            ) from None
        written += len(rows)

    return write_or_refuse


def _is_unwritable(value: Any, error: type[Exception]) -> bool:
    """Return whether writing a cell raises an error of `UNWRITABLE`."""
    if error is OverflowError:
        return isinstance(value, int) and value.bit_length() > 63
    try:
        _json(value).encode()
    except error:
        return True
    return False


def _csv(out: Any, columns: Sequence[str], of_input: int) -> Write:
    # With a line feed as the end of lines, csv leaves carriage returns in cells without quotes.
    writer = csv.writer(_LineFeeds(out), lineterminator="\r\n")
    writer.writerow(columns)

    def write(rows: Sequence[Sequence[Any]]) -> None:
        writer.writerows(
            [
                *(_csv_cell(value) for value in row[:of_input]),
                *(_csv_number(v) if isinstance(v, float) else _csv_cell(v) for v in row[of_input:]),
            ]
            for row in rows
        )

    return write


@dataclass(frozen=True)
class _LineFeeds:
    """Writes lines that end in CR LF to a file, with only LF."""

    out: Any

    def write(self, line: str) -> None:
        self.out.write(line.removesuffix("\r\n") + "\n")


def _csv_number(value: float) -> str:
    """Return a rounded probability with six decimals, a number with the digits of float32."""
    return f"{value:z.6f}" if value == round(value, 6) else f"{value:.9g}"


def _csv_cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return _json(value)
    return _as_text(value) if isinstance(value, bytes) else value


def _as_text(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _lines(out: Any, line: Callable[[Sequence[Any]], str]) -> Write:
    def write(rows: Sequence[Sequence[Any]]) -> None:
        out.writelines(map(line, rows))

    return write


def _json(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_as_text)


def _finite(value: Any) -> Any:
    """Return a cell with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


@contextmanager
def _parquet(
    path: Path, columns: Sequence[str], types: Mapping[str, pa.DataType]
) -> Iterator[Write]:
    writer: pq.ParquetWriter | None = None

    def write(rows: Sequence[Sequence[Any]]) -> None:
        nonlocal writer
        schema = None if writer is None else writer.schema
        try:
            values = [
                pa.array(column, types.get(name) if schema is None else schema.field(name).type)
                for name, column in zip(columns, zip(*rows, strict=True), strict=True)
            ]
        except (pa.ArrowException, TypeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"--output_file: a column has values of several types ({reason}), which Parquet"
                " cannot hold. Choose a .csv or .jsonl file."
            ) from None
        if writer is None:
            # A column without values so far may have texts later.
            values = [v.cast(pa.string()) if pa.types.is_null(v.type) else v for v in values]
            schema = pa.schema([(name, v.type) for name, v in zip(columns, values, strict=True)])
            writer = pq.ParquetWriter(path.absolute(), schema, compression="zstd")
        writer.write_table(pa.Table.from_arrays(values, schema=writer.schema))

    try:
        yield write
        if writer is None:  # without rows
            schema = pa.schema([(name, types.get(name, pa.string())) for name in columns])
            writer = pq.ParquetWriter(path.absolute(), schema)
    finally:
        if writer is not None:
            writer.close()


ROWS_SORTED_AT_ONCE = 8192
MOST_NAMED = 10  # rows that are not answered


@dataclass(frozen=True)
class SavedClassifier:
    """A saved model whose files have been checked, before it is loaded."""

    folder: Path  # Its folder.
    record: RunRecord  # Record of the run that trained it.
    files: Mapping[str, str]  # SHA-256 of each file that the predictions depend on, by name.
    # Function that returns its predictor for a request.
    load: Callable[[PredictRequest], Predictor]
    # What the promise of `--abstain` was proven for; None for this model.
    promised_for: str | None = None

    @property
    def training(self) -> TrainingInfo:
        """What a prediction needs to know of the training."""
        return recorded_training(self.record, self.folder)


def load_run_classifier(folder: Path) -> SavedClassifier:
    """Return the model of a finished run.

    Raises:
        InputError: The folder does not hold a finished run, or its files were changed.
    """
    record = _run_record(folder)
    names = sorted(name for name in model_files(folder, record.files) if (folder / name).is_file())
    files = {n: (record.files.get(n) or describe_file(folder / n)).sha256 for n in names}

    def load(request: PredictRequest) -> Predictor:
        return Predictor.of_run(folder, record, request)

    return SavedClassifier(folder, record, files, load)


def predict_file(
    model: str,
    request: PredictRequest,
    classifier: Callable[[Path], SavedClassifier] = load_run_classifier,
) -> None:
    """Write the rows of a request with all their columns and the columns of the predictions.

    If the rows have labels, the report of the predictions is printed, on standard error if the rows
    go to standard output.

    Args:
        classifier: Function that reads the folder, which is the output folder of a run by default.

    Raises:
        InputError: The folder does not hold a finished run, the rows cannot be read, or an option
            is out of range.
    """
    quiet_libraries()
    check_batch_size(request)
    _check_files(request)
    if request.texts or list(request.files) == [STANDARD_INPUT]:
        request.refuse_table_options("--text" if request.texts else "standard input")
    saved = classifier(Path(model))
    record = saved.record
    check_output_columns(request, record)
    _note_training_files(request, record)
    kind = task_row(record).kind
    rows = checked_rows(request, saved)
    for note in rows.table.notes:
        print_line(labelled("note", note), file=_stream(request))
    predictor = saved.load(request)
    output = kind.new_output(request, predictor.config)
    promise = predictor.decisions.abstention
    if promise is not None and promise.least_confidence is None:
        note = f"no row is answered: validation did not prove --abstain {promise.error:g}, as the "
        note += "report of the run says."
        print_line(labelled("note", note), file=_stream(request))
    scores = None
    if rows.labels is not None:
        required = request.label_column_name is not None
        scores = ScoredRows(rows.labels, predictor.problem, required, saved.promised_for)
    with predictor.numerics:
        count = write_rows(rows, predictor, output, scores, request)
    if scores is not None:
        print_line(scores.text(), file=_stream(request))
    if request.output_file is not None:
        print_line(f"wrote      {request.output_file}: {counted(count, 'row')}")
    if (summary := output.summary()) is not None:
        print_line(f"wrote      {summary}")


def checked_rows(request: PredictRequest, saved: SavedClassifier) -> InputRows:
    """Open the rows of a request, and check that one has its inputs.

    Raises:
        InputError: They cannot be read, or all lack their inputs.
    """
    rows = task_row(saved.record).kind.open_rows(request, saved.training)
    rows.check()
    return rows


def recorded_training(record: RunRecord, folder: Path) -> TrainingInfo:
    """Return what a prediction needs to know of the training, with the units in its contract.

    Raises:
        InputError: The contract in the folder of the model is damaged.
    """
    contract = read_contract(folder)
    units = None if contract is None else contract.units
    return TrainingInfo(
        input_columns=tuple(record.data.input_columns),
        label_names=tuple(record.label_names),
        arguments=record.arguments,
        several_labels=task_row(record).several_labels,
        number_labels=task_row(record).number_labels,
        labels_of_columns=task_row(record).labels_of_columns,
        text_units=None if units is None else TextUnits(**units),
        feature_columns=() if contract is None else contract.feature_columns,
        text_column_delimiter=" " if contract is None else contract.text_column_delimiter,
    )


def write_rows(
    rows: InputRows,
    predictor: Predictor,
    output: RowOutput,
    scores: ScoredRows | None,
    request: PredictRequest,
) -> int:
    """Predict rows in the numerics of the predictor, and write them; return their number."""
    table = rows.table
    added = list(output.columns([], predictor.no_rows()))
    places = [table.columns.index(name) for name in rows.sources]
    label_places = [table.columns.index(name) for name in scores.reader.columns] if scores else []
    new = unused_column_names(added, table.columns)
    of_columns = zip(new, added, strict=True)
    types = {name: output.types[old] for name, old in of_columns if old in output.types}
    count, truncated, unanswered = 0, 0, list[str]()
    with opened_output(
        request.output_file, table.columns, new, types=types, formats=output.formats
    ) as write:
        cells_of_rows = table.read(table.columns)
        while chunk := list(islice(cells_of_rows, ROWS_SORTED_AT_ONCE)):
            count += len(chunk)
            where = [rows.place(number) for number, _ in chunk]
            read = [rows.inputs_of([cells[i] for i in places], number) for number, cells in chunk]
            predictions, refused = _answers(predictor, [each for each, _ in read])
            truncated += predictions.truncated
            reasons = {row: why for row, (_, why) in enumerate(read) if why} | refused
            unanswered += [f"{where[row]}: {reasons[row]}" for row in sorted(reasons)]
            converted = [None if row in reasons else each for row, (each, _) in enumerate(read)]
            inputs = [each for each in converted if each is not None]
            if scores is not None:
                known = [row for row, each in enumerate(converted) if each is not None]
                labels = [[chunk[row][1][i] for i in label_places] for row in known]
                scores.add(labels, [where[row] for row in known], predictions.decoded)
            found = zip(*output.columns(inputs, predictions).values(), strict=True)
            nothing = [None] * len(new)
            write(
                [
                    (*map(output_cell, cells), *(nothing if each is None else next(found)))
                    for (_, cells), each in zip(chunk, converted, strict=True)
                ]
            )
    if unanswered:
        shown = listed(unanswered, limit=MOST_NAMED, separator="\n").splitlines()
        note = f"{counted(len(unanswered), 'row')} without an answer, left empty:"
        print_line(labelled("warning", note, *shown), file=_stream(request))
    if truncated:
        note = _truncation_note(truncated, count, can_split=len(rows.sources) == 1)
        print_line(labelled("note", note), file=_stream(request))
    return count


def _truncation_note(truncated: int, count: int, *, can_split: bool) -> str:
    """Return how many rows were not read whole, and which training reads more of them."""
    of_windows = ", with --long_text windows all of them" if can_split else ""
    return (
        f"{truncated} of {counted(count, 'text')} ({truncated / count:.0%}) truncated, as in "
        "training. A model that is trained with a larger --max_seq_length reads more of "
        f"{'it' if truncated == 1 else 'them'}{of_windows}."
    )


def _answers(
    predictor: Predictor, converted: Sequence[tuple[Any, ...] | None]
) -> tuple[PredictedRows, dict[int, str]]:
    """Return the predictions of rows, and why some that have inputs are not answered, by row."""
    given = [row for row, each in enumerate(converted) if each is not None]
    if not given:
        return predictor.no_rows(), {}
    columns = list(zip(*(each for each in converted if each is not None), strict=True))
    predictions, refused = predictor.answer(columns)
    return predictions, {given[index]: reason for index, reason in sorted(refused.items())}


def output_cell(cell: Any) -> Any:
    """Return a cell for the output; of an image with its bytes, only its path."""
    is_image = isinstance(cell, dict) and cell.keys() == {"bytes", "path"}
    return cell["path"] if is_image else cell


@dataclass
class ScoredRows:
    """Collects the predictions of rows with labels."""

    reader: LabelReader  # Where the labels are.
    problem: Problem  # Problem of the model.
    required: bool  # Whether a label that cannot be read is an error; otherwise nothing is scored.
    promised_for: str | None  # What the promise of `--abstain` was proven for; None for this model.
    _truth: list[tuple[str, ...]] = field(default_factory=list)
    _parts: list[dict[str, npt.NDArray[Any]]] = field(default_factory=list)
    _missing: int = 0
    _unreadable: str | None = None

    def add(
        self,
        cells: Sequence[Sequence[object]],
        places: Sequence[str],
        decoded: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        """Add the label cells of rows, with their places in the file, and their predictions."""
        if self._unreadable:
            return
        with_labels = []
        for row, (values, place) in enumerate(zip(cells, places, strict=True)):
            try:
                labels = self.reader.parse(values, place)
            except InputError as error:
                if self.required:
                    raise
                self._unreadable = str(error)
                return
            if labels is None:
                self._missing += 1
            else:
                with_labels.append(row)
                self._truth.append(labels)
        self._parts.append({name: array[with_labels] for name, array in decoded.items()})

    def text(self) -> str:
        """Return the report, or why there is none.

        Raises:
            InputError: The labels have another form than in training, and are required.
        """
        column = self.reader.title
        if self._unreadable:
            return f"not scored: {self._unreadable}"
        try:
            truth = self.reader.as_trained(self._truth)
        except InputError as error:
            if self.required:
                raise
            return f"not scored: {error}"
        if getattr(self.reader, "numbers", False):
            return self._numbers_text([float(number) for (number,) in truth])
        index = {name: number for number, name in enumerate(self.problem.label_names)}
        known = [row for row, labels in enumerate(truth) if index.keys() >= set(labels)]
        if not truth:
            return f"not scored: no row has a label in column {column!r}"
        if not known:
            return f"not scored: no label in column {column!r} is known to the model"
        codes = [tuple(index[name] for name in truth[row]) for row in known]
        decoded = {n: np.concatenate([p[n] for p in self._parts])[known] for n in self._parts[0]}
        outcome = self.problem.outcome("file", self.reader.targets(codes, len(index)), decoded)
        left_out = {
            "labels that the model does not know": len(truth) - len(known),
            "no label": self._missing,
        }
        notes = [
            f"{counted(count, 'row')} with {what} left out"
            for what, count in left_out.items()
            if count
        ]
        heading = f"labels from column {column!r}{''.join(f'; {note}' for note in notes)}"
        report = report_with_heading(outcome.report(), selected=False)
        answers = None
        if isinstance(outcome, TunableOutcome):
            answers = abstention_sentence(outcome, self.promised_for)
        return f"{heading}\n{report}" + ("" if answers is None else f"\nAbstention: {answers}")

    def _numbers_text(self, truth: Sequence[float]) -> str:
        """Return the report of rows whose labels are numbers."""
        if not truth:
            return f"not scored: no row has a number in column {self.reader.title!r}"
        decoded = {n: np.concatenate([p[n] for p in self._parts]) for n in self._parts[0]}
        outcome = self.problem.outcome("file", np.array(truth), decoded)
        missing = f"; {counted(self._missing, 'row')} without one left out" if self._missing else ""
        report = report_with_heading(outcome.report(), selected=False)
        return f"numbers from column {self.reader.title!r}{missing}\n{report}"


def predict_inputs(
    folder: Path, inputs: Any, request: PredictRequest, opened: RunRecord | None = None
) -> pd.DataFrame:
    """Return the predictions of inputs in memory, one row each.

    Args:
        folder: Output folder of a run.
        inputs: One text, image or path of one, or a list of them; a list of pairs if the model
            reads pairs, and of lists of words if it reads words. A row of texts can also be a
            dictionary of its cells by column.
        request: How to predict, without files and texts.
        opened: Record of the run when the caller opened it; None accepts any.

    Raises:
        InputError: Another run has been written to the folder since, or see `FinishedRun.predict`.
    """
    import pandas as pd

    with messages_for_python(), caller_state_kept():
        quiet_libraries()
        _check_numbers(request)
        check_batch_size(request)
        if not hasattr(inputs, "__iter__") and not isinstance(inputs, PathLike | Image):
            raise InputError(f"inputs: received {quoted(inputs)}. Pass a list of rows.")
        saved = load_run_classifier(folder)
        record = saved.record
        if opened is not None and record.files != opened.files:
            raise InputError(
                f"{folder}: another run was written to this folder after it was opened. Open it "
                "again (FinishedRun, or fit of an estimator), or give each run its own output_dir."
            )
        check_output_columns(request, record)
        kind = task_row(record).kind
        if isinstance(inputs, Mapping | Set) or hasattr(inputs, "columns"):
            rows_of_frame = f"list(frame[{record.data.input_columns[0]!r}])"
            if saved.training.feature_columns:
                rows_of_frame = 'frame.to_dict("records")'
            raise InputError(
                f"inputs: received a {type(inputs).__name__}, whose items are not its rows in "
                f"order. Pass a list, such as {rows_of_frame}."
            )
        rows = kind.rows_in_memory(inputs, saved.training)
        if not rows:
            raise InputError("the list is empty. Pass at least one row.")
        predictor = saved.load(request)
        output = kind.new_output(request, predictor.config)
        with predictor.numerics:
            predictions = predictor(list(zip(*rows, strict=True)))
        return pd.DataFrame(output.columns(rows, predictions))


def _check_numbers(request: PredictRequest) -> None:
    """Raise InputError for numbers that are not whole; Python takes any value."""
    for name in ("batch_size", "top_k", "decimals"):
        value = getattr(request, name)
        is_off = value is None and name == "decimals"
        if not is_off and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise InputError(f"--{name}: received {quoted(value)}; it must be a whole number.")
    if request.decimals is not None and request.decimals < 0:
        raise InputError(f"--decimals: received {request.decimals}; it must be at least 0.")


def check_batch_size(request: PredictRequest) -> None:
    """Raise InputError if there are no rows in a batch."""
    if request.batch_size < 1:
        raise InputError(f"--batch_size: received {request.batch_size}; it must be at least 1.")


def _check_files(request: PredictRequest) -> None:
    if bool(request.texts) == bool(request.files):
        problem = "received both" if request.texts else "received neither"
        raise InputError(
            f"FILE or --text: {problem}. Give a file (or - for standard input, one text per line),"
            " or pass --text TEXT."
        )
    if request.output_file is not None:
        output = Path(request.output_file)
        check_output_file("--output_file", output)
        files = map(Path, request.files)
        if output.exists() and any(file.exists() and output.samefile(file) for file in files):
            raise InputError(
                f"--output_file {output}: this is the input file. Choose another file."
            )
        if output.is_file() and output.stat().st_size and not request.overwrite:
            raise InputError(
                f"--output_file {output}: this file exists. Choose another file, or add "
                "--overwrite to replace it."
            )
    elif request.overwrite:
        raise InputError("--overwrite has no effect without --output_file. Remove the flag.")


def _note_training_files(request: PredictRequest, record: RunRecord) -> None:
    """Print which files the model was trained on: predictions of their rows look too good."""
    trained = {each.sha256 for each in record.data.training_files(record.arguments)}
    for file in map(Path, request.files if trained else ()):
        if file.is_file() and describe_file(file).sha256 in trained:
            note = f"{file} has rows that the model was trained on (same SHA-256 as the training "
            note += "file), so its predictions there are better than on new rows."
            print_line(labelled("note", note), file=_stream(request))


def _stream(request: PredictRequest) -> TextIO:
    """Return where messages are printed: standard error if standard output has the rows."""
    return sys.stderr if request.output_file is None else sys.stdout


def check_output_columns(request: PredictRequest, record: RunRecord) -> None:
    """Check that the model can fill the columns of `--top_k` and `--all_probabilities`.

    Raises:
        InputError: A flag has no effect on this kind of data, `--top_k` exceeds the labels, or a
            label has the name of a rank.
    """
    units = "numbers" if task_row(record).number_labels else task_row(record).kind.units
    for name in ("top_k", "all_probabilities"):
        if units is not None and getattr(request, name):
            raise InputError(f"--{name} has no effect on {units}. Remove the flag.")
    decimals = request.decimals
    if units == "numbers" and decimals not in (None, PredictRequest.decimals):
        raise InputError(
            f"decimals: received {decimals}, but it rounds probabilities, and this model predicts "
            "numbers. Remove it, and round the column prediction yourself."
        )
    classes = len(record.label_names)
    if not 0 <= request.top_k <= classes:
        raise InputError(
            f"--top_k: received {request.top_k}; the model has {classes} labels, so it must be"
            f" between 1 and {classes}."
        )
    ranks = {str(rank) for rank in range(1, request.top_k + 1)}
    both = ranks.intersection(record.label_names) if request.all_probabilities else ()
    if both:
        name = min(both, key=int)
        raise InputError(
            f"--top_k: with --all_probabilities, the column probability_{name} would be both the"
            f" probability of rank {name} and that of the label {quoted(name)}. Remove one of the"
            " flags."
        )


def _run_record(folder: Path) -> RunRecord:
    if not folder.is_dir():
        raise InputError(f"--model {folder}: not a folder. Give the --output_dir of a run.")
    record = read_record(folder)
    if record.status != "finished":
        raise InputError(f"--model {folder}: {not_finished(record)}.")
    check_model_files(folder, record.files)
    return record
