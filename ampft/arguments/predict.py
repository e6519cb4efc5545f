"""The flags of `ampft predict`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ampft.arguments.compare import ENGINES, LOCAL, RAY
from ampft.arguments.flags import ArgumentParser
from ampft.data.sources.file_names import check_file
from ampft.errors import InputError, quoted
from ampft.precision.modes import BASELINE

STANDARD_INPUT = "-"


def check_model_and_inputs(args: argparse.Namespace) -> None:
    """Check that the model's folder and the files to predict exist, before anything is loaded.

    Raises:
        InputError: One does not exist; the message says how to pass a text.
    """
    if args.engine == RAY and args.output_dir is None:
        raise InputError(
            "--engine ray: it predicts files to --output_dir, which is missing. Add it."
        )
    if bool(args.text) == bool(args.files):
        return  # `predict_file` refuses it
    if not Path(args.model).is_dir():
        raise InputError(f"--model {args.model}: not a folder. Give the --output_dir of a run.")
    for name in args.files:
        path = Path(name)
        if name == STANDARD_INPUT or path.exists():
            continue
        if " " in name or not path.suffix:
            raise InputError(
                f"FILE: there is no file {quoted(name)}. To predict a text, pass --text TEXT."
            )
        check_file(path, flag="FILE")


def add_predict_command(commands: argparse._SubParsersAction[ArgumentParser]) -> None:
    """Add the command `predict` and its flags."""
    predict = commands.add_parser(
        "predict",
        help="predict the rows of a file, texts, images or sounds with a model saved by a run",
        description="Predict rows: every column is kept, in its order, and prediction and "
        "confidence are added. If the rows have labels, the report is printed too.",
    )
    predict.add_argument("--model", required=True, metavar="DIR", help="output folder of a run")
    predict.add_argument(
        "--text",
        action="append",
        default=[],
        help="text to predict instead of a file; repeat it for more, or for the second of a pair",
    )
    predict.add_argument(
        "--output_file",
        metavar="FILE",
        help="file for the rows with their predictions: Parquet or JSON Lines if it ends in "
        ".parquet or .jsonl, otherwise CSV (default: CSV on standard output); texts that begin "
        "with = are not changed, so import them as text into a spreadsheet",
    )
    predict.add_argument(
        "--overwrite", action="store_true", help="replace --output_file if it exists"
    )
    predict.add_argument(
        "--output_dir",
        metavar="DIR",
        help="instead of --output_file, for one or many files and folders of files: folder for a "
        "Parquet file per file; the same command continues after a kill",
    )
    predict.add_argument(
        "--engine",
        choices=ENGINES,
        default=LOCAL,
        help="with --output_dir, where files are predicted: here one after another, or on the "
        "nodes of a Ray cluster (default: local)",
    )
    predict.add_argument(
        "--text_column_names",
        metavar="a[,b] or a+b",
        help="text columns of the file (default: those used in training)",
    )
    predict.add_argument(
        "--label_column_name",
        metavar="NAME",
        help="label column to score (default: that of the training, or one with a usual name)",
    )
    predict.add_argument(
        "--top_k",
        type=int,
        default=0,
        metavar="K",
        help="also write the K most probable labels: label_1, probability_1, ...",
    )
    predict.add_argument(
        "--all_probabilities",
        action="store_true",
        help="also write the probability of each label: probability_LABEL",
    )
    predict.add_argument(
        "--batch_size",
        type=int,
        default=64,
        metavar="N",
        help="rows per batch; of texts that are split, windows (default: 64)",
    )
    predict.add_argument(
        "--mixed_precision",
        default=BASELINE,
        metavar="MODE",
        help="precision of the computation (default: fp32)",
    )
    predict.add_argument(
        "--encoding", default="utf-8", help="character encoding of text files (default: utf-8)"
    )
    predict.add_argument(
        "--sheet_name", metavar="NAME", help="sheet of an Excel workbook (default: the first)"
    )
    predict.add_argument(
        "files",
        nargs="*",
        metavar="INPUT",
        help="CSV, TSV, JSON, JSON Lines, Parquet or Excel; - for standard input, one row per "
        "line, with an empty prediction for a blank one; or images or sounds, and folders of them; "
        "with --output_dir, any number of files, and folders of tables",
    )
