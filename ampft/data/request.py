"""The user's choices about the data. Imports nothing heavy, so that argument parsing stays fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ampft.data.sources.file_names import named_files
from ampft.errors import InputError


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """Which data to read, and how.

    With neither `dataset_name` nor a file, the standard library's docstrings are read.

    Attributes:
        dataset_name: `stdlib`, `digits`, a dataset's name on the hub, a folder of class folders of
            images or sounds, or a folder that `datasets.load_dataset` or
            `datasets.load_from_disk` understands.
        dataset_config_name: The dataset's configuration (`summary` or `full` for `stdlib`).
        train_file: CSV, TSV, JSON, JSON Lines, Parquet or Excel file; its extension decides.
            Several are separated by commas, and patterns such as `part-*.csv` name all that fit.
        validation_file: File or files of the validation split.
        test_file: File or files of the test split.
        sheet_name: Sheet of Excel workbooks; None takes the first one.
        text_column_names: One text column, or two for pairs; `a+b` joins columns into one text.
            None looks for usual names.
        label_column_names: One label column, or one column of 0 and 1 per label. None looks for
            `label`, then for other usual names.
        several_labels: Whether a row can have any number of labels; otherwise it has one.
        label_separator: Text between the labels of a cell.
        image_column_name: Image column. None uses the only one.
        audio_column_name: Column of sounds. None uses the only one.
        group_column: Column whose equal values mark rows that are not independent, such as a
            document, patient or user. With None, only duplicates are grouped.
        id_column: Column of ids, which the predictions file contains too.
        max_train_samples: Number of training rows to use, chosen at random with `split_seed`. None
            uses all.
        max_eval_samples: Number of validation rows to use.
        max_predict_samples: Number of test rows to use.
        validation_fraction: Share of the training rows split off if there is no validation split.
        test_fraction: Share of the training rows split off if there is neither validation nor test.
        split_seed: Seed of new splits and of the choice of rows.
        drop_missing_text: Whether rows without text are left out and counted; otherwise they are an
            error.
        drop_missing_labels: Whether rows without a label are left out and counted; otherwise they
            are an error.
        ignore_labels: Labels whose rows are left out and counted. `-100` and `-1` are an error
            otherwise.
        fail_on_leak: Whether rows that are in two splits are an error; otherwise they are counted.
        encoding: Character encoding of CSV, TSV and JSON files.
        data_kind: Kind of data that the task needs; None infers it from the data.
        ignore_index: Value of the pixels of masks that do not count; None for the usual 255.
        class_names_file: File with the names, and the colours, of the classes of masks.
    """

    dataset_name: str | None = None
    dataset_config_name: str | None = None
    train_file: Path | None = None
    validation_file: Path | None = None
    test_file: Path | None = None
    sheet_name: str | None = None
    text_column_names: tuple[str, ...] | None = None
    label_column_names: tuple[str, ...] | None = None
    several_labels: bool = False
    label_separator: str = ","
    image_column_name: str | None = None
    audio_column_name: str | None = None
    group_column: str | None = None
    id_column: str | None = None
    max_train_samples: int | None = None
    max_eval_samples: int | None = None
    max_predict_samples: int | None = None
    validation_fraction: float = 0.1
    test_fraction: float = 0.2
    split_seed: int = 0
    drop_missing_text: bool = False
    drop_missing_labels: bool = False
    ignore_labels: tuple[str, ...] = ()
    fail_on_leak: bool = False
    encoding: str = "utf-8"
    data_kind: str | None = None
    ignore_index: int | None = None
    class_names_file: Path | None = None

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
        return {split: named_files(names, f"--{split}_file") for split, names in self.files.items()}

    @property
    def limits(self) -> dict[str, int]:
        """The `max_..._samples` that are set, by split."""
        limits = {
            "train": self.max_train_samples,
            "validation": self.max_eval_samples,
            "test": self.max_predict_samples,
        }
        return {split: limit for split, limit in limits.items() if limit is not None}


def refuse_unused_options(request: DataRequest, unused: Sequence[str], source: str) -> None:
    """Raise InputError for an option that was set but has no effect on the source.

    Args:
        request: The user's choices.
        unused: Fields of the request that have no effect.
        source: The data, for the message.
    """
    for option in unused:
        if getattr(request, option) != getattr(DataRequest, option):
            flag = option.replace("label_column_names", "label_column_name")
            raise InputError(f"--{flag} has no effect on {source}. Remove the flag.")
