"""Writes the results of a finished run: report, predictions, model card and record."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ampft.data.groups import Groups
from ampft.files import write_text
from ampft.runs.card import model_card
from ampft.runs.folder import RunFolder
from ampft.runs.manifest import describe_files
from ampft.runs.predictions import Origins, References, write_predictions
from ampft.runs.record import RunRecord, write_record
from ampft.runs.show import report_with_heading
from ampft.tasks.outcome import Outcome, Report
from ampft.text.json_io import json_text


def write_results(
    folder: RunFolder,
    record: RunRecord,
    report: Report,
    outcome: Outcome,
    references: References,
    *,
    outcome_fp32: Outcome | None = None,
    origins: Origins | None = None,
    groups: Groups | None = None,
) -> None:
    """Write report, predictions, model card and, last, the record of a finished run.

    Args:
        folder: Folder that holds the history, and in its stage the saved model.
        record: Record of the run; `files` is filled in here.
        report: Report of the final evaluation.
        outcome: Outcome of the final evaluation.
        references: Input columns, as for `write_predictions`.
        outcome_fp32: Outcome of the same model in fp32; None writes no file for it.
        origins: Where the examples come from, as for `write_predictions`.
        groups: Groups of examples, as for `write_predictions`.
    """
    selected = bool(record.metrics.get("selected"))
    stage = folder.stage()
    write_text(stage / "report.txt", report_with_heading(report, selected=selected))
    write_text(stage / "report.json", json_text({**report.as_dict(), "selected": selected}))
    write = partial(write_predictions, references=references, origins=origins, groups=groups)
    write(stage / "predictions.parquet", outcome)
    if outcome_fp32 is not None:
        write(stage / "predictions_fp32.parquet", outcome_fp32)
    write_text(stage / "README.md", model_card(record, report))
    folder.check_record()
    folder.staged = describe_files(stage)
    record = replace(record, files=folder.files())
    # Even if the run is killed during the next line, a later run knows which files are results.
    write_record(folder, replace(record, status="running"))
    folder.publish()
    folder.check_record()
    write_record(folder, record)
