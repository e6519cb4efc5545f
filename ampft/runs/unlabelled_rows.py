"""Test rows without labels in a command that only evaluates: they are predicted, without a report.

A run reports on its test rows, so it needs their labels.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ampft.arguments import ClassifyArguments
from ampft.data.row_labels import NO_LABEL, UNLABELLED
from ampft.data.sources.file_names import named_files
from ampft.decision import CONTRACT_NAME
from ampft.engine.threads import restore_cpu_threads
from ampft.errors import InputError
from ampft.kinds.prediction import InputRows, PredictRequest
from ampft.precision.accelerator import training_device
from ampft.precision.resolve import requested_mode
from ampft.runs.predict import checked_rows, load_run_classifier, predict_file
from ampft.runs.run_text import task_row
from ampft.text.numbers import counted
from ampft.text.terminal import labelled, print_line

PREDICTIONS = "test_predictions.parquet"  # without "test_", it has the rows of the report


@dataclass(frozen=True)
class UnlabelledRows:
    """A test file that has rows without labels."""

    file: Path
    number: int | None  # Number of rows without a label; None if there is no column of labels.
    args: ClassifyArguments  # Settings of the command.

    @property
    def remaining(self) -> ClassifyArguments | None:
        """Settings of what is left to evaluate; None if nothing is."""
        if "validation" not in self.args.evaluated:
            return None
        train = self.args.train_file
        return replace(
            self.args,
            evaluate_only="validation",
            test_file=None,
            train_file=self.args.validation_file if train == self.args.test_file else train,
        )

    def predict(self, folder: Path | None) -> None:
        """Write the predictions of all rows.

        Args:
            folder: Folder of the report on the validation rows; None if there is none.

        Raises:
            InputError: The rows or the output cannot be used.
        """
        args, model = self.args, Path(str(self.args.model_name_or_path))
        if folder is not None and not (model / CONTRACT_NAME).is_file():
            model = folder  # the same model, with what an evaluation adds to it
        training_device(cpu=args.use_cpu)
        restore_cpu_threads(args.cpu_threads, num_processes=1)
        output = Path(str(args.output_dir)) if folder is None else folder
        target = output / PREDICTIONS
        output.mkdir(parents=True, exist_ok=True)
        if args.overwrite_output_dir:
            target.unlink(missing_ok=True)
        print_line(labelled("test", self._line()))
        predict_file(str(model), replace(_request(args, self.file), output_file=str(target)))

    def _line(self) -> str:
        if self.number is None:
            return f"{self.file} has no labels, so all rows are predicted without a report"
        lacking = f"{self.file} lacks a label in {counted(self.number, 'row')}"
        return f"{lacking}, so all rows are predicted, and no report of a run has them"


def rows_left_out(args: ClassifyArguments, splits: Iterable[str]) -> UnlabelledRows | None:
    """Return the test file that an evaluation left out because it has no labels; None for none.

    Args:
        args: Settings of the evaluation.
        splits: Names of the splits that it has.
    """
    if "test" not in args.evaluated or args.test_file is None or "test" in splits:
        return None
    files = named_files(args.test_file, "--test_file")
    return UnlabelledRows(files[0], None, args) if len(files) == 1 else None


def find_unlabelled_rows(args: ClassifyArguments) -> UnlabelledRows | None:
    """Return the test file if a run without training lacks labels there; None if it has them all.

    Raises:
        InputError: They would be predicted, and the model, a row or the output cannot be used.
    """
    model = Path(args.model_name_or_path or "")
    if "test" not in args.evaluated or args.test_file is None:
        return None
    files = named_files(args.test_file, "--test_file")
    if len(files) != 1 or not (model / CONTRACT_NAME).is_file():
        return None
    saved = load_run_classifier(model)
    if task_row(saved.record).kind.name not in ("text", "token"):
        return None
    try:
        rows = checked_rows(_request(args, files[0]), saved)
        names = saved.record.label_names
        number, with_label = (None, 0) if rows.labels is None else _count_labels(rows, names)
    except InputError:  # the evaluation says what is wrong, in the words of its flags
        return None
    if number == 0 or (with_label and args.drop_missing_labels):
        return None
    found = UnlabelledRows(files[0], number, args)
    if args.max_predict_samples is not None:
        raise InputError(
            f"--max_predict_samples {args.max_predict_samples}: {files[0]} has rows without "
            "labels, and all of its rows are predicted. Remove the flag."
        )
    if found.remaining is None:
        output = args.output_dir
        if output is None:
            raise InputError(
                f"--output_dir: {files[0]} has rows without labels, but no folder was given for "
                "their predictions. Choose one."
            )
        if (Path(output) / "run.json").exists():
            raise InputError(
                f"--output_dir {output}: this folder holds a run, which predictions without a "
                "report do not replace. Choose another folder."
            )
    return found


def _request(args: ClassifyArguments, file: Path) -> PredictRequest:
    return PredictRequest(
        files=(str(file),),
        text_column_names=args.text_column_names,
        label_column_name=None,  # the one of the training, or a usual one
        batch_size=args.per_device_eval_batch_size,
        mixed_precision=requested_mode(args.mixed_precision, os.environ),
        encoding=args.encoding,
        sheet_name=args.sheet_name,
    )


def _count_labels(rows: InputRows, label_names: Sequence[str]) -> tuple[int, int]:
    """Return how many rows have no label, or one that stands for none, and how many have one."""
    assert rows.labels is not None, "the rows have a column of labels"
    none = {(str(code),) for code in (NO_LABEL, UNLABELLED) if str(code) not in label_names}
    if getattr(rows.labels, "numbers", False):
        none = set()
    cells = rows.table.read(rows.labels.columns)
    parsed = (rows.labels.parse(values, rows.place(number)) for number, values in cells)
    without = [labels is None or labels in none for labels in parsed]
    return sum(without), len(without) - sum(without)
