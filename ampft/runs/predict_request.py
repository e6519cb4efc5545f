"""What `ampft predict` is asked to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampft.precision.modes import BASELINE


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """What to predict, and how.

    Attributes:
        files: One file, `-` for standard input, or images and folders of images.
        texts: Texts to predict instead of files.
        output_file: File to write; None writes CSV to standard output.
        text_column_names: Comma-separated input columns; None reads those used in training.
        label_column_name: Label column to score; None looks for that of the training.
        batch_size: Rows per forward pass.
        mixed_precision: Precision of the computation.
        top_k: Number of most probable labels to add.
        all_probabilities: Whether to add the probability of every label.
        encoding: Character encoding of CSV, TSV and JSON files.
        sheet_name: Sheet of an Excel workbook; None takes the first one.
    """

    files: Sequence[str] = ()
    texts: Sequence[str] = ()
    output_file: str | None = None
    text_column_names: str | None = None
    label_column_name: str | None = None
    batch_size: int = 64
    mixed_precision: str = BASELINE
    top_k: int = 0
    all_probabilities: bool = False
    encoding: str = "utf-8"
    sheet_name: str | None = None
