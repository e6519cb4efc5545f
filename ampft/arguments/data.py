"""Flags of the task and its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampft.arguments.flags import MAX_SEED, flag
from ampft.tasks import TASKS

if TYPE_CHECKING:
    from ampft.data.request import DataRequest

DATA = "data"


@dataclass(frozen=True)
class DataArguments:
    """The task, and the data with their columns and splits."""

    task: str | None = flag(
        None,
        "what to classify; if none, the default task for the data",
        group=DATA,
        choices=TASKS.keys(),
    )
    dataset_name: str | None = flag(
        None,
        "stdlib (docstrings of Python's standard library), digits (images), a hub id, or a folder: "
        "one folder of images or sounds per class, also inside train, val and test, or files that "
        "datasets reads; if none, stdlib unless --train_file is set",
        group=DATA,
    )
    dataset_config_name: str | None = flag(
        None, "configuration of the data set; stdlib has summary and full", group=DATA
    )
    train_file: str | None = flag(
        None,
        "training data: a CSV, TSV, JSON, JSON Lines, Parquet, Excel or CoNLL file, or several: "
        "a.csv,b.csv or 'part-*.csv'",
        group=DATA,
    )
    validation_file: str | None = flag(
        None, "validation data, for choosing the best epoch; same formats", group=DATA
    )
    test_file: str | None = flag(None, "test data, for the final report; same formats", group=DATA)
    sheet_name: str | None = flag(
        None, "sheet of an Excel workbook; if none, the first", group=DATA
    )
    text_column_names: str | None = flag(
        None,
        "text column, two columns for text pairs (a,b), or columns to join into one text (a+b); "
        "with tokens the column of words, or of texts with spans",
        group=DATA,
    )
    label_column_name: str | None = flag(
        None,
        "label column; with multi-label also one 0/1 column per label: a,b; with tokens the column "
        "of tags or spans",
        group=DATA,
    )
    label_separator: str = flag(",", "separator of the labels in a cell (multi-label)", group=DATA)
    image_column_name: str | None = flag(
        None, "image column; in a table, of paths relative to the file", group=DATA
    )
    audio_column_name: str | None = flag(
        None, "column of sounds; in a table, of paths relative to the file", group=DATA
    )
    augment: str | None = flag(
        None,
        "random changes of training examples, comma-separated: flip, crop for images; flip for "
        "images with masks; shift, volume for sounds",
        group=DATA,
    )
    group_column: str | None = flag(
        None,
        "column of documents, patients, users, ...: rows with the same value stay in one split, "
        "and a comparison counts them as one case",
        group=DATA,
    )
    id_column: str | None = flag(None, "column of ids to copy into predictions.parquet", group=DATA)
    max_train_samples: int | None = flag(
        None, "number of training examples to keep, chosen at random", group=DATA, at_least=1
    )
    max_eval_samples: int | None = flag(
        None,
        "number of validation examples to keep",
        group=DATA,
        at_least=1,
    )
    max_predict_samples: int | None = flag(
        None,
        "number of test examples to keep",
        group=DATA,
        at_least=1,
    )
    validation_fraction: float = flag(
        0.1,
        "share of the training data to hold out for validation if none is given, 0 to 1",
        group=DATA,
        at_least=0,
        below=1,
    )
    test_fraction: float = flag(
        0.2,
        "share of the training data to hold out for testing if there is neither validation nor "
        "test data, 0 to 1",
        group=DATA,
        at_least=0,
        below=1,
    )
    data_seed: int = flag(
        0, "seed for splitting and subsampling the data", group=DATA, at_least=0, at_most=MAX_SEED
    )
    drop_missing_text: bool = flag(False, "drop rows without text, and report how many", group=DATA)
    drop_missing_labels: bool = flag(
        False, "drop rows without a label, and report how many", group=DATA
    )
    ignore_label: str | None = flag(None, "labels whose rows are dropped: a,b", group=DATA)
    inspect_data: bool = flag(
        False,
        "before training, list the training labels that are probably wrong (texts)",
        group=DATA,
    )
    fail_on_leak: bool = flag(
        False, "stop with an error if training and test rows overlap", group=DATA
    )
    ignore_index: int | None = flag(
        None,
        "value of the pixels of masks that do not count; if none, 255",
        group=DATA,
        at_least=0,
        at_most=65535,
    )
    class_names_file: str | None = flag(
        None,
        "names of the classes of masks: one per line, with an optional colour (Road 128 64 128), "
        'or JSON: ["Sky", "Road"] or [{"name": "Road", "color": [128, 64, 128]}, ...]; with '
        "colours, colour masks are converted",
        group=DATA,
    )
    encoding: str = flag("utf-8", "character encoding of text files", group=DATA)

    def data_request(self) -> DataRequest:
        """Return the settings of the data."""
        from pathlib import Path

        from ampft.data.request import DataRequest

        def path(name: str | None) -> Path | None:
            return None if name is None else Path(name)

        several = self.task is not None and TASKS[self.task].several_labels
        name = self.label_column_name
        labels = _split_names(name) if several or name is None else (name,)
        return DataRequest(
            dataset_name=self.dataset_name,
            dataset_config_name=self.dataset_config_name,
            train_file=path(self.train_file),
            validation_file=path(self.validation_file),
            test_file=path(self.test_file),
            sheet_name=self.sheet_name,
            text_column_names=_split_names(self.text_column_names),
            label_column_names=labels,
            several_labels=several,
            label_separator=self.label_separator,
            image_column_name=self.image_column_name,
            audio_column_name=self.audio_column_name,
            group_column=self.group_column,
            id_column=self.id_column,
            max_train_samples=self.max_train_samples,
            max_eval_samples=self.max_eval_samples,
            max_predict_samples=self.max_predict_samples,
            validation_fraction=self.validation_fraction,
            test_fraction=self.test_fraction,
            split_seed=self.data_seed,
            drop_missing_text=self.drop_missing_text,
            drop_missing_labels=self.drop_missing_labels,
            ignore_labels=_split_names(self.ignore_label) or (),
            fail_on_leak=self.fail_on_leak,
            encoding=self.encoding,
            data_kind=None if self.task is None else TASKS[self.task].kind.name,
            ignore_index=self.ignore_index,
            class_names_file=path(self.class_names_file),
        )


def _split_names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))
