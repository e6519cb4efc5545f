"""`ampft predict`: classify a file of texts with a model saved by a run."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

import torch
import transformers

from ampft.arguments.keywords import messages_for_python
from ampft.data.sources.files import load_texts
from ampft.errors import InputError
from ampft.files import special_or_atomic_path
from ampft.models.packing.families import packing_support
from ampft.models.packing.install import install_packing
from ampft.models.pretrained import SAVED_MODEL_FLAG, load_saved
from ampft.models.tokenizer import load_tokenizer, max_input_length
from ampft.models.weights import cast_in_place
from ampft.precision.accelerator import make_accelerator, numerics, training_device
from ampft.precision.modes import canonical_mode
from ampft.precision.resolve import resolve
from ampft.runs.caller_state import caller_state_kept
from ampft.runs.manifest import check_files, model_files
from ampft.runs.record import RunRecord, read_record
from ampft.tasks import TASKS
from ampft.tasks.task import forward_logits
from ampft.text.numbers import counted
from ampft.text.terminal import quiet_libraries

if TYPE_CHECKING:
    import pandas as pd

TEXTS_SORTED_AT_ONCE = 8192


def predict_file(
    model: str,
    file: str,
    *,
    output_file: str | None,
    text_column_names: str | None,
    batch_size: int,
    mixed_precision: str,
) -> None:
    """Write a CSV with a row for each row of `file`: its texts, `prediction` and `confidence`.

    Args:
        model: Output folder of a run.
        file: CSV, TSV, JSON, JSON Lines or Parquet file; needs no labels.
        output_file: CSV file to write; None writes to standard output.
        text_column_names: Comma-separated text columns; None reads those used in training.
        batch_size: Texts per forward pass.
        mixed_precision: Precision of the computation.

    Raises:
        InputError: The folder does not hold a finished run on texts, the file cannot be read, or an
            option is out of range.
    """
    quiet_libraries()
    if batch_size < 1:
        raise InputError(f"--batch_size: received {batch_size}; it must be at least 1.")
    if output_file is not None:
        _check_output(Path(output_file), Path(file))
    folder = Path(model)
    record = _text_run_record(folder)
    columns = _columns(text_column_names, record.data.input_columns)
    texts = load_texts(Path(file), text_column_names=columns)
    predict = _Predictor(folder, record, mixed_precision, batch_size)
    names = [name for name in texts.column_names if name in columns]
    target = nullcontext() if output_file is None else special_or_atomic_path(Path(output_file))
    with predict.numerics, target as path:
        out: IO[str] = sys.stdout if path is None else path.open("w", encoding="utf-8", newline="")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*names, "prediction", "confidence"])
        for batch in texts.iter(batch_size=TEXTS_SORTED_AT_ONCE):
            inputs = [batch[name] for name in columns]
            for row, (label, confidence) in zip(
                zip(*(batch[name] for name in names), strict=True), predict(inputs), strict=True
            ):
                writer.writerow([*row, label, f"{confidence:.6f}"])
        if path is not None:
            out.close()


def predict_texts(
    folder: Path,
    texts: str | Sequence[str] | Sequence[tuple[str, str]],
    *,
    mixed_precision: str,
    batch_size: int,
) -> pd.DataFrame:
    """Return `prediction` and `confidence` of each text.

    Args:
        folder: Output folder of a run.
        texts: One text, a list of texts, or a list of pairs.
        mixed_precision: Precision of the computation.
        batch_size: Texts per forward pass.
    """
    import pandas as pd

    with messages_for_python(), caller_state_kept():
        quiet_libraries()
        record = _text_run_record(folder)
        rows = [texts] if isinstance(texts, str) else list(texts)
        pairs = [(row,) if isinstance(row, str) else tuple(row) for row in rows]
        count = len(record.data.input_columns)
        for number, pair in enumerate(pairs, start=1):
            if len(pair) != count or not all(isinstance(text, str) for text in pair):
                raise InputError(
                    f"texts, row {number}: received {rows[number - 1]!r}. The model needs "
                    f"{counted(count, 'text')} per row."
                )
        predict = _Predictor(folder, record, mixed_precision, batch_size)
        inputs = [[pair[column] for pair in pairs] for column in range(count)]
        with predict.numerics:
            return pd.DataFrame(predict(inputs), columns=["prediction", "confidence"])


class _Predictor:
    """A saved model, ready to classify lists of texts."""

    def __init__(self, folder: Path, record: RunRecord, mode: str, batch_size: int) -> None:
        precision = resolve(canonical_mode(mode), training_device())
        self._mode = precision.mode
        accelerator = make_accelerator(precision)
        self.numerics = numerics(precision)
        kind = TASKS[record.task]
        self._problem = kind.problem_type().from_arguments(
            tuple(record.label_names), record.arguments
        )
        self._batch_size = batch_size
        model = load_saved(getattr(transformers, kind.model_class), str(folder))
        self._tokenizer = load_tokenizer(str(folder), flag=SAVED_MODEL_FLAG)
        longest = int(record.arguments["max_seq_length"])
        self._max_length = max_input_length(longest, self._tokenizer, model.config)
        cast_in_place(model, precision.storage_dtype)
        if packing_support(model).supported:
            install_packing(model)
        self._model = accelerator.prepare(model).eval()

    def __call__(self, inputs: list[list[str]]) -> Iterator[tuple[str, float]]:
        """Yield prediction and confidence of each example in order; batches are by length."""
        order = sorted(
            range(len(inputs[0])), key=lambda row: -sum(len(column[row]) for column in inputs)
        )
        predictions: list[tuple[str, float]] = [("", 0.0)] * len(order)
        for start in range(0, len(order), self._batch_size):
            rows = order[start : start + self._batch_size]
            for row, prediction in zip(rows, self._predict_batch(inputs, rows), strict=True):
                predictions[row] = prediction
        yield from predictions

    @torch.no_grad()
    def _predict_batch(self, inputs: list[list[str]], rows: list[int]) -> list[tuple[str, float]]:
        tokens = self._tokenizer(
            *([column[row] for row in rows] for column in inputs),
            truncation=True,
            max_length=self._max_length,
            padding=True,
            return_tensors="pt",
        )
        logits = forward_logits(self._model, tokens)
        if not torch.isfinite(logits).all():
            remedy = "Use another model." if self._mode == "fp32" else "Use --mixed_precision fp32."
            raise InputError(
                f"--mixed_precision {self._mode}: the model's predictions are not finite in this "
                f"precision. {remedy}"
            )
        decoded = self._problem.decode(logits)
        return self._problem.predicted({name: t.cpu().numpy() for name, t in decoded.items()})


def _check_output(output: Path, file: Path) -> None:
    if output.is_dir():
        raise InputError(f"--output_file {output}: this is a folder. Name a file.")
    if not output.parent.is_dir():
        raise InputError(f"--output_file {output}: its folder does not exist. Create it first.")
    if output.exists() and file.exists() and output.samefile(file):
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


def _text_run_record(folder: Path) -> RunRecord:
    if not folder.is_dir():
        raise InputError(f"--model {folder}: not a folder. Name the --output_dir of a run.")
    record = read_record(folder)
    if record.status != "finished":
        raise InputError(f"--model {folder}: the run is {record.status}; it has no final model.")
    if record.data.kind != "text":
        raise InputError(
            f"--model {folder}: the model was trained on {record.data.kind}s, and this command "
            "reads only texts. Use transformers.pipeline."
        )
    check_files(folder, record.files, sorted(model_files(folder, record.files)))
    return record
