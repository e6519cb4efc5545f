"""What a user can say about the data. Imports nothing heavy, so that a parser can build it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """Which data to read, and how.

    With neither `dataset_name` nor a file, the standard library's docstrings are read.

    Attributes:
        dataset_name: `stdlib`, `digits`, a dataset's name on the hub, or a folder that
            `datasets.load_dataset` or `datasets.load_from_disk` understands.
        dataset_config_name: The dataset's configuration (`summary` or `full` for `stdlib`).
        train_file: CSV, TSV, JSON, JSON Lines or Parquet, told by the file's ending.
        validation_file: The same for validation.
        test_file: The same for test.
        text_column_names: One column of texts or two columns of a pair. None looks for usual names.
        label_column_names: One column, or one column of 0 and 1 for each of several labels. None
            looks for `label`, then for other usual names.
        several_labels: Whether a row can have any number of labels, otherwise it has one.
        label_separator: What stands between the labels of a cell.
        image_column_name: None takes the only image column.
        max_train_samples: Rows kept of the training split, a seeded random choice. None keeps all.
        max_eval_samples: The same for validation.
        max_predict_samples: The same for test.
        validation_fraction: Share of the training rows split off where no validation is given.
        test_fraction: Share of the training rows split off where neither is given.
        split_seed: Seed of the splits made and of the rows chosen.
        drop_missing_text: Rows without text are dropped and counted instead of refused.
        ignore_labels: Labels whose rows are left out, counted (`-100` and `-1` are refused else).
        fail_on_leak: Rows that stand in training and in validation or test are refused.
        encoding: Character encoding of CSV, TSV and JSON files.
    """

    dataset_name: str | None = None
    dataset_config_name: str | None = None
    train_file: Path | None = None
    validation_file: Path | None = None
    test_file: Path | None = None
    text_column_names: tuple[str, ...] | None = None
    label_column_names: tuple[str, ...] | None = None
    several_labels: bool = False
    label_separator: str = ","
    image_column_name: str | None = None
    max_train_samples: int | None = None
    max_eval_samples: int | None = None
    max_predict_samples: int | None = None
    validation_fraction: float = 0.1
    test_fraction: float = 0.2
    split_seed: int = 0
    drop_missing_text: bool = False
    ignore_labels: tuple[str, ...] = ()
    fail_on_leak: bool = False
    encoding: str = "utf-8"

    @property
    def files(self) -> dict[str, Path]:
        """The files given, by split: `train`, `validation`, `test`."""
        given = {
            "train": self.train_file,
            "validation": self.validation_file,
            "test": self.test_file,
        }
        return {split: Path(file) for split, file in given.items() if file is not None}

    @property
    def limits(self) -> dict[str, int]:
        """The `max_..._samples` given, by split."""
        given = {
            "train": self.max_train_samples,
            "validation": self.max_eval_samples,
            "test": self.max_predict_samples,
        }
        return {split: limit for split, limit in given.items() if limit is not None}
