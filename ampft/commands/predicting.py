"""`ampft predict`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.help_text import Help
from ampft.commands.extension_points import ARTIFACTS, FOLDER_PREDICTION
from ampft.data.sources.file_names import check_file
from ampft.errors import InputError, quoted
from ampft.flag import OUTPUT, REQUIRED, flag, positional
from ampft.imports import no_search_for_garbage
from ampft.precision.modes import BASELINE
from ampft.processes import ENGINES, LOCAL, RAY, are_several
from ampft.runs.start import let_waiting_threads_sleep
from ampft.text.terminal import labelled, print_line

STANDARD_INPUT = "-"
ROWS, COLUMNS = "rows and computation", "columns of the file"


@dataclass(frozen=True, kw_only=True)
class PredictFlags:
    """The flags of `ampft predict`."""

    files: tuple[str, ...] = positional(
        (),
        "INPUT",
        "CSV, TSV, JSON, JSON Lines, Parquet or Excel; - for standard input, one row per line, "
        "with an empty prediction for a blank one; or images or sounds, and folders of them; with "
        "--output_dir, any number of files, and folders of tables",
    )
    model: str = flag(REQUIRED, "output folder of a run", group=ROWS, metavar="DIR")
    text: tuple[str, ...] = flag(
        (),
        "text to predict instead of a file; repeat it for more, or for the second of a pair",
        group=ROWS,
    )
    mixed_precision: str = flag(
        BASELINE, "precision of the computation", group=ROWS, metavar="MODE"
    )
    use_cpu: bool = flag(False, "predict on the CPU even if there is an accelerator", group=ROWS)
    batch_size: int = flag(
        64, "rows per batch; of texts that are split, windows", group=ROWS, at_least=1
    )
    trust_remote_code: bool = flag(
        False, "run code from the folder of the model, as in its training", group=ROWS
    )
    output_file: str | None = flag(
        None,
        "file for the rows with their predictions: Parquet or JSON Lines if it ends in .parquet or "
        ".jsonl, otherwise CSV; if none, CSV on standard output; texts that begin with = are not "
        "changed, so import them as text into a spreadsheet",
        group=OUTPUT,
        excludes={"output_dir": "rows are written to one file or to a folder"},
    )
    overwrite: bool = flag(
        False, "replace --output_file if it exists", group=OUTPUT, needs=("output_file",)
    )
    output_dir: str | None = flag(
        None,
        "instead of --output_file, for one or many files and folders of files: folder for a "
        "Parquet file per file; the same command continues after a kill",
        group=OUTPUT,
    )
    top_k: int = flag(
        0,
        "also write the K most probable labels: label_1, probability_1, ...",
        group=OUTPUT,
        metavar="K",
        at_least=0,
    )
    all_probabilities: bool = flag(
        False, "also write the probability of each label: probability_LABEL", group=OUTPUT
    )
    engine: str = flag(
        LOCAL,
        "where files are predicted: here one after another, or on the nodes of a Ray cluster",
        group=OUTPUT,
        choices=ENGINES,
        needs=("output_dir",),
    )
    text_column_names: str | None = flag(
        None, "text columns; if none, those used in training", group=COLUMNS, metavar="a[,b]|a+b"
    )
    label_column_name: str | None = flag(
        None,
        "label column to score; if none, the one used in training, or one with a usual name",
        group=COLUMNS,
    )
    encoding: str = flag("utf-8", "character encoding of text files", group=COLUMNS)
    sheet_name: str | None = flag(
        None, "sheet of an Excel workbook; if none, the first", group=COLUMNS
    )


def predict(line: CommandLine[PredictFlags]) -> None:
    """Predict rows with the model of a run or with an artifact."""
    flags = line.flags
    check_model_and_inputs(flags)
    from ampft.kinds.prediction import PredictRequest

    others = ("model", "text", "output_dir", "engine")
    settings = {name: value for name, value in vars(flags).items() if name not in others}
    request = PredictRequest(texts=flags.text, **settings)
    if (note := let_waiting_threads_sleep(None)) is not None:
        print_line(labelled("threads", note), file=sys.stderr)
    with no_search_for_garbage(keeps_all="torch" not in sys.modules):
        from ampft.runs.predict import load_run_classifier, predict_file

    is_artifact = (Path(flags.model) / "artifact.json").is_file()
    classifier = ARTIFACTS.require() if is_artifact else load_run_classifier
    if flags.output_dir is None:
        predict_file(flags.model, request, classifier)
        return
    predict_folder = FOLDER_PREDICTION.require()
    predict_folder(flags.model, classifier, request, Path(flags.output_dir), engine=flags.engine)


def check_model_and_inputs(flags: PredictFlags) -> None:
    """Check that the model's folder and the files to predict exist, before anything is loaded.

    Raises:
        InputError: One does not exist; the message says how to pass a text. Or a launcher has
            started several processes.
    """
    if are_several():
        raise InputError(
            "ampft predict runs in one process, but several were started. Start it without "
            f"torchrun; --engine {RAY} predicts the files of --output_dir on several machines."
        )
    if bool(flags.text) == bool(flags.files):
        return  # `predict_file` refuses it
    if not Path(flags.model).is_dir():
        raise InputError(f"--model {flags.model}: not a folder. Give the --output_dir of a run.")
    for name in flags.files:
        path = Path(name)
        if name == STANDARD_INPUT or path.exists():
            continue
        if " " in name or not path.suffix:
            raise InputError(
                f"FILE: {quoted(name)} does not exist. To predict a text, pass --text TEXT."
            )
        check_file(path, flag="FILE")


PREDICT = Command(
    PredictFlags,
    predict,
    Help(
        "Predict rows: every column is kept, in its order, and prediction and confidence are "
        "added. If the rows have labels, the report is printed too."
    ),
)
