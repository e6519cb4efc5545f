"""The user's choices about the data. Imports nothing heavy, so that argument parsing stays fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.data.sources.file_names import named_files
from ampft.errors import InputError
from ampft.flag import DATA, MAX_SEED, flag, split_names
from ampft.hub import HubSettings

if TYPE_CHECKING:
    from ampft.data.model_labels import ModelLabels

IN_MEMORY = "data in memory"  # name of data that Python code passes
CONFIGURATIONS = ("summary", "full")  # of stdlib
_flag = partial(flag, group=DATA)

# What chooses among the configurations, revisions and splits of a data set.
DATA_SET_OPTIONS = (
    *("dataset_config_name", "eval_dataset_config_name", "dataset_revision", "remove_splits"),
    *("train_split_name", "validation_split_name", "test_split_name"),
)
COLUMN_OPTIONS = (
    *("text_column_names", "label_column_name", "image_column_name", "audio_column_name"),
    *("group_column", "id_column", "weight_column", "feature_columns"),
)
DROPS = ("drop_missing_text", "drop_missing_labels")
# Options without an effect on the built-in data sets, which have their own splits.
OF_OWN_DATA = (
    *("class_names_file", "text_units"),
    *(*COLUMN_OPTIONS, *DROPS, "validation_fraction", "test_fraction"),
    *(
        "max_drawn_samples",
        "folds",
        "fold",
        "ignore_label",
        "label_corrections",
        "fail_on_leak",
        "sheet_name",
        "encoding",
    ),
    *DATA_SET_OPTIONS[1:],
)


@dataclass(frozen=True)
class DataRequest(HubSettings):
    """Which data to read, and how. `--help` describes each setting.

    With neither `dataset_name` nor a file, the standard library's docstrings are read.
    """

    dataset_name: str | None = _flag(
        None,
        "stdlib (docstrings of Python's standard library), digits (images), a hub id, or a folder: "
        "one folder of images, sounds or texts per class, also inside train, val and test, or "
        "files that datasets reads; if none, stdlib unless --train_file is set",
        metavar="NAME|DIR",
    )
    dataset_config_name: str | None = _flag(
        None, "configuration of the data set; stdlib has summary and full"
    )
    eval_dataset_config_name: str | None = _flag(
        None,
        "configuration of the validation and test splits, such as another language; if none, that "
        "of training",
        needs=("dataset_config_name",),
    )
    dataset_revision: str | None = _flag(
        None,
        "branch, tag or commit of the data set on the hub; if none, its main branch",
        needs=("dataset_name",),
    )
    train_split_name: str | None = _flag(
        None, "split to train on; if none, train or training", needs=("dataset_name",)
    )
    validation_split_name: str | None = _flag(
        None,
        "split for validation; if none, validation, valid, val or dev",
        needs=("dataset_name",),
    )
    test_split_name: str | None = _flag(
        None, "split for the final report; if none, test", needs=("dataset_name",)
    )
    remove_splits: str | None = _flag(
        None, "splits of the data set to leave out: a,b", joined=True, needs=("dataset_name",)
    )
    train_file: str | None = _flag(
        None,
        "training data: a CSV, TSV, JSON, JSON Lines, Parquet, Excel or CoNLL file, or several: "
        "a.csv,b.csv or 'part-*.csv'",
        joined=True,
        excludes={"dataset_name": "a run uses a single source of data"},
    )
    validation_file: str | None = _flag(
        None,
        "validation data, by which the epoch is chosen; same formats",
        joined=True,
        needs=("train_file",),
    )
    test_file: str | None = _flag(
        None, "test data, for the final report; same formats", joined=True, needs=("train_file",)
    )
    sheet_name: str | None = _flag(None, "sheet of an Excel workbook; if none, the first")
    text_column_names: str | None = _flag(
        None,
        "text column, two columns for text pairs (a,b), or columns to join into one text (a+b); "
        "with tokens the column of words, or of texts with spans",
    )
    text_column_delimiter: str = _flag(
        " ", "text between the columns that a+b joins into one text", needs=("text_column_names",)
    )
    label_column_name: str | None = _flag(
        None,
        "label column; with multi-label also one 0/1 column per label: a,b; with tokens the column "
        "of tags or spans",
    )
    label_order: str | None = _flag(
        None, "labels from the lowest to the highest: bad,fair,good (ordinal); numbers need none"
    )
    text_units: str | None = _flag(
        None,
        "how a text is divided into what has a tag (tokens): words, or graphemes (each character);"
        " for files of words, where predictions divide texts, also spaces (words with punctuation "
        "split off) and blanks; if none, as the data show",
        choices=("words", "graphemes", "spaces", "blanks"),
    )
    label_separator: str = _flag(",", "separator of the labels in a cell (multi-label)")
    image_column_name: str | None = _flag(
        None, "image column; in a table, of paths relative to the file"
    )
    audio_column_name: str | None = _flag(
        None, "column of sounds; in a table, of paths relative to the file"
    )
    group_column: str | None = _flag(
        None,
        "column of documents, patients, users, ...: rows with the same value, or with equal "
        "inputs, stay in one split, and a comparison counts them as one case",
    )
    id_column: str | None = _flag(None, "column of ids to copy into predictions.parquet")
    feature_columns: str | None = _flag(
        None,
        "columns of numbers and categories that are put before each text, in training and in "
        "predictions: age,country gives 'age: 42. country: FR. TEXT'",
        joined=True,
    )
    weight_column: str | None = _flag(
        None, "column of weights: how much a row counts in the loss, a number of at least 0"
    )
    weighted_metrics: bool = _flag(
        False,
        "also count rows in metrics by their weights, as scikit-learn's sample_weight",
        needs=("weight_column",),
    )
    max_train_samples: int | None = _flag(
        None, "number of training examples to keep, chosen at random", at_least=1
    )
    max_eval_samples: int | None = _flag(None, "number of validation examples to keep", at_least=1)
    max_predict_samples: int | None = _flag(None, "number of test examples to keep", at_least=1)
    validation_fraction: float = _flag(
        0.1,
        "share of the training data to hold out for validation if none is given, 0 to 1",
        at_least=0,
        below=1,
    )
    test_fraction: float = _flag(
        0.2,
        "share of the training data to hold out for testing if there is neither validation nor "
        "test data, 0 to 1",
        at_least=0,
        below=1,
    )
    max_drawn_samples: int = _flag(
        20_000,
        "most rows of a validation or test split that is held out from the training data; the "
        "others are trained on; 0 for no limit",
        at_least=0,
    )
    folds: int | None = _flag(
        None,
        "number of folds that the training data are divided into, stratified and with groups kept "
        "together; one of them is the test split",
        at_least=2,
    )
    fold: int = _flag(1, "the fold that is the test split, from 1", at_least=1)
    leave_out_test: bool = _flag(
        False,
        "leave out the test rows, which are split off as usual, for a later judgement: report on "
        "the validation rows, or with --folds on a fold of the others",
    )
    data_seed: int = _flag(
        0, "seed for splitting and subsampling the data", at_least=0, at_most=MAX_SEED
    )
    drop_missing_text: bool = _flag(False, "drop rows without text, and report how many")
    drop_missing_labels: bool = _flag(False, "drop rows without a label, and report how many")
    ignore_label: str | None = _flag(None, "labels whose rows are dropped: a,b", joined=True)
    label_corrections: str | None = _flag(
        None,
        "label_errors.csv of a run with --inspect_data, with right labels in its column corrected; "
        "training rows get them before splits are made",
    )
    fail_on_leak: bool = _flag(
        False, "stop with an error if two splits share rows, or values of --group_column"
    )
    ignore_index: int | None = _flag(
        None,
        "value of the pixels of masks that do not count; if none, 255",
        at_least=0,
        at_most=65535,
    )
    class_names_file: str | None = _flag(
        None,
        "names of the classes of masks, or of tags that are numbers: one per line, for masks with "
        'an optional colour (Road 128 64 128), or JSON: ["Sky", "Road"] or [{"name": "Road", '
        '"color": [128, 64, 128]}, ...]; with colours, colour masks are converted',
    )
    encoding: str = _flag("utf-8", "character encoding of text files")

    @property
    def data_kind(self) -> str | None:
        """Kind of data that the task needs; None infers it from the data."""
        return None

    @property
    def several_labels(self) -> bool:
        """Whether a row can have any number of labels; otherwise it has one."""
        return False

    @property
    def number_labels(self) -> bool:
        """Whether labels are numbers; otherwise they are names of classes."""
        return False

    @property
    def labels_of_columns(self) -> bool:
        """Whether each label column holds its own labels."""
        return False

    @property
    def ordered_labels(self) -> bool:
        """Whether classes have an order."""
        return False

    @property
    def evaluated(self) -> tuple[str, ...]:
        """Splits that a run without training reports on; empty if it trains."""
        return ()

    @property
    def trains_on_evaluated(self) -> bool:
        """Whether a run without training has no other training rows than those it reports on."""
        of_report = (self.validation_file, self.test_file)
        return bool(self.evaluated) and self.train_file is not None and self.train_file in of_report

    @property
    def evaluated_run(self) -> str | None:
        """Folder of the run whose model is evaluated as it is; None for other models."""
        return None

    @property
    def model_labels(self) -> ModelLabels | None:
        """Labels of the model of a run without training; None if the data give the labels."""
        return None

    @property
    def model_columns(self) -> dict[str, str]:
        """Columns that the model of a run without training was trained on, by their setting."""
        return {}

    @property
    def text_columns(self) -> tuple[str, ...] | None:
        """One text column, or two for pairs; None looks for usual names."""
        return split_names(self.text_column_names)

    @property
    def features(self) -> tuple[str, ...]:
        """Columns that are put before each text."""
        return split_names(self.feature_columns) or ()

    @property
    def label_columns(self) -> tuple[str, ...] | None:
        """One label column, or one column of 0 and 1 per label; None looks for usual names."""
        name = self.label_column_name
        return split_names(name) if self.several_labels or name is None else (name,)

    @property
    def ignored_labels(self) -> tuple[str, ...]:
        """Labels whose rows are left out and counted, such as `-100` for no label."""
        return split_names(self.ignore_label) or ()

    @property
    def split_names(self) -> dict[str, str]:
        """The splits that the user chose, by their use."""
        names = {
            "train": self.train_split_name,
            "validation": self.validation_split_name,
            "test": self.test_split_name,
        }
        return {use: name for use, name in names.items() if name is not None}

    @property
    def labels_tokens(self) -> bool | None:
        """Whether each word of a row has a label; None finds out from the data."""
        return None if self.data_kind is None else self.data_kind == "token"

    @property
    def named_media(self) -> dict[str, str]:
        """The named column of images or of sounds, by kind."""
        columns = {"image": self.image_column_name, "sound": self.audio_column_name}
        return {kind: name for kind, name in columns.items() if name is not None}

    @property
    def files(self) -> dict[str, Path]:
        """The files as the user named them, by split: `train`, `validation`, `test`."""
        files = {
            "train": self.train_file,
            "validation": self.validation_file,
            "test": self.test_file,
        }
        return {split: Path(file) for split, file in files.items() if file is not None}

    def paths(self) -> dict[str, tuple[Path, ...]]:
        """Return the files by split, with patterns replaced by the files that fit.

        Raises:
            InputError: `named_files` rejects a name.
        """
        return {
            split: named_files(names, self.flag_of(split)) for split, names in self.files.items()
        }

    def flag_of(self, split: str) -> str:
        """Return the flag that names the files of a split."""
        if split == "train" and self.trains_on_evaluated:
            split = "validation" if self.train_file == self.validation_file else "test"
        return f"--{split}_file"


def refuse_unused_options(request: DataRequest, unused: Sequence[str], source: str) -> None:
    """Raise InputError for an option that was set but has no effect on the source.

    Args:
        request: The user's choices.
        unused: Names of the settings that have no effect.
    """
    for option in unused:
        if getattr(request, option) != getattr(DataRequest, option):
            raise InputError(f"--{option} has no effect on {source}. Remove the flag.")
