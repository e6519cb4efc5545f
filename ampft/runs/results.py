"""Writes the results of a finished run: report, predictions, card and, last, the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ampft.files import write_text
from ampft.runs.folder import RunFolder
from ampft.runs.later_parts import TRAINED
from ampft.runs.manifest import describe_files
from ampft.runs.record import RunRecord, write_record
from ampft.runs.run_text import decisions_text, report_with_heading
from ampft.tasks.outcome import Outcome
from ampft.tasks.report import Report
from ampft.text.json_io import json_text

WritePredictions = Callable[[Path, Outcome], None]


def write_results(
    folder: RunFolder,
    record: RunRecord,
    outcome: Outcome,
    write: WritePredictions,
    card: Callable[[RunRecord, Report], str] | None = None,
) -> None:
    """Write report, predictions, model card and, last, the record of a finished run.

    Args:
        folder: Folder that holds the history, and in its stage the saved model.
        record: Record of the run; `files` is filled in here.
        write: `write_predictions` with the inputs of the examples.
        card: Function that returns the model card; None writes none.
    """
    report, stage = outcome.report(), folder.stage()
    save_predictions(stage, outcome, None, write)
    save_report(stage, record, report)
    if card is not None:
        write_text(stage / "README.md", card(record, report))
    publish(folder, record)


def save_predictions(
    stage: Path, outcome: Outcome, outcome_fp32: Outcome | None, write: WritePredictions
) -> None:
    """Write the predictions of the final split.

    Args:
        outcome_fp32: Outcome of the same model in fp32; None writes no file for it.
        write: `write_predictions` with the inputs of the examples.
    """
    write(stage / "predictions.parquet", outcome)
    if outcome_fp32 is not None:
        write(stage / "predictions_fp32.parquet", outcome_fp32)


def save_report(stage: Path, record: RunRecord, report: Report) -> None:
    """Write the report as text and as JSON."""
    selected = bool(record.metrics.get("selected"))
    text = report_with_heading(report, selected=selected)
    write_text(stage / "report.txt", text + decisions_text(record))
    values = {**report.as_dict(), "selected": selected}
    if record.metrics_chosen is not None:
        values["metrics_chosen"] = record.metrics_chosen
    write_text(stage / "report.json", json_text(values))


def publish(folder: RunFolder, record: RunRecord) -> None:
    """Make the staged files of a run visible, and write its record last."""
    folder.check_record()
    folder.staged = describe_files(folder.stage())
    record = replace(record, files=folder.files())
    # Even if the run is killed during the next line, a later run knows which files are results.
    write_record(folder, replace(record, status=TRAINED if record.parts else "running"))
    folder.publish()
    folder.check_record()
    write_record(folder, record)
