"""Writes the results of a finished run: report, predictions, card and, last, the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ampft.files import write_text
from ampft.runs.client_answers import SERVED_BACK, ServedPart
from ampft.runs.folder import RunFolder
from ampft.runs.manifest import describe_files
from ampft.runs.record import RunRecord, write_record
from ampft.runs.run_text import decisions_text, report_with_heading
from ampft.tasks.outcome import Outcome
from ampft.tasks.report import Report
from ampft.text.json_io import json_text


def write_results(
    folder: RunFolder,
    record: RunRecord,
    outcome: Outcome,
    write: Callable[[Path, Outcome], None],
    outcome_fp32: Outcome | None = None,
    card: Callable[[RunRecord, Report], str] | None = None,
    serve: Callable[[Path, RunRecord], ServedPart] | None = None,
) -> RunRecord:
    """Write report, predictions, model card and, last, the record of a finished run.

    Args:
        folder: Folder that holds the history, and in its stage the saved model.
        record: Record of the run; `files` is filled in here.
        write: `write_predictions` with the inputs of the examples.
        outcome_fp32: Outcome of the same model in fp32; None writes no file for it.
        card: Function that returns the model card; None writes none.
        serve: Function that asks plain clients about the saved model in a folder; None asks none.

    Returns:
        The record, with what the clients answered.
    """
    report, stage = outcome.report(), folder.stage()
    selected = bool(record.metrics.get("selected"))
    write(stage / "predictions.parquet", outcome)
    if outcome_fp32 is not None:
        write(stage / "predictions_fp32.parquet", outcome_fp32)
    if serve is not None:
        served = serve(stage, record)
        warning = served.warning()
        warnings = {**record.warnings, **({} if warning is None else {SERVED_BACK: warning})}
        record = replace(record, served_back=served, warnings=warnings)
    text = report_with_heading(report, selected=selected)
    write_text(stage / "report.txt", text + decisions_text(record))
    values = {**report.as_dict(), "selected": selected}
    if record.metrics_chosen is not None:
        values["metrics_chosen"] = record.metrics_chosen
    write_text(stage / "report.json", json_text(values))
    if card is not None:
        write_text(stage / "README.md", card(record, report))
    publish(folder, record)
    return record


def publish(folder: RunFolder, record: RunRecord) -> None:
    """Make the staged files of a finished run visible, and write its record last."""
    folder.check_record()
    folder.staged = describe_files(folder.stage())
    record = replace(record, files=folder.files())
    # Even if the run is killed during the next line, a later run knows which files are results.
    write_record(folder, replace(record, status="running"))
    folder.publish()
    folder.check_record()
    write_record(folder, record)
