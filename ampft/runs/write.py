"""Every file that a finished run leaves beside its model."""

from __future__ import annotations

from dataclasses import replace

from ampft.metrics.classification import Report
from ampft.metrics.predictions import Predictions
from ampft.runs.card import model_card
from ampft.runs.folder import RunFolder
from ampft.runs.predictions import References, write_predictions
from ampft.runs.record import RunRecord, write_record
from ampft.runs.show import headed_report


def write_results(
    folder: RunFolder,
    record: RunRecord,
    report: Report,
    predictions: Predictions,
    references: References,
    *,
    predictions_fp32: Predictions | None = None,
) -> RunRecord:
    """Write report, predictions, model card and, last, the record of a finished run.

    Args:
        folder: Holds the history, and the model as `save_pretrained` wrote it.
        record: Its `files` are filled in here.
        report: Of the final evaluation.
        predictions: Of the final evaluation.
        references: What `write_predictions` shows of the examples.
        predictions_fp32: The same model's in fp32; None writes no file of them.

    Returns:
        The record as it was written.
    """
    selected = bool(record.metrics.get("selected"))
    folder.write_text("report.txt", headed_report(report, selected=selected))
    folder.write_json("report.json", {**report.as_dict(), "selected": selected})
    write_predictions(folder / "predictions.parquet", predictions, references)
    if predictions_fp32 is not None:
        write_predictions(folder / "predictions_fp32.parquet", predictions_fp32, references)
    folder.write_text("README.md", model_card(record, report))
    names = {path.name for path in folder.path.iterdir() if not path.name.startswith(".")}
    record = replace(record, files=sorted(names | {"run.json"}))
    write_record(folder, record)
    return record
