"""The results of a finished run: their files, and what is printed about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.files import write_text
from ampft.runs.card import model_card
from ampft.runs.folder import RunFolder
from ampft.runs.manifest import describe_files
from ampft.runs.record import RunRecord, write_record
from ampft.runs.show import decisions_text, report_with_heading, result_line
from ampft.tasks.outcome import Outcome
from ampft.text.json_io import json_text
from ampft.text.terminal import labelled
from ampft.training.launch_bound import launch_bound_note
from ampft.training.waiting import waiting_note

if TYPE_CHECKING:
    from ampft.runs.prepared import Prepared


def write_results(
    folder: RunFolder,
    record: RunRecord,
    outcome: Outcome,
    write: Callable[[Path, Outcome], None],
    outcome_fp32: Outcome | None = None,
) -> None:
    """Write report, predictions, model card and, last, the record of a finished run.

    Args:
        folder: Folder that holds the history, and in its stage the saved model.
        record: Record of the run; `files` is filled in here.
        outcome: Outcome of the final evaluation.
        write: `write_predictions` with the inputs of the examples.
        outcome_fp32: Outcome of the same model in fp32; None writes no file for it.
    """
    report, stage = outcome.report(), folder.stage()
    selected = bool(record.metrics.get("selected"))
    text = report_with_heading(report, selected=selected)
    write_text(stage / "report.txt", text + decisions_text(record))
    write_text(stage / "report.json", json_text({**report.as_dict(), "selected": selected}))
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


def result_lines(
    folder: Path,
    record: RunRecord,
    prepared: Prepared,
    outcome: Outcome,
    chance: str,
    baselines: Iterable[str],
) -> list[str]:
    """Return the lines to print: report, what it compares with, warnings, where the results are.

    Args:
        folder: Output folder of the run.
        record: Record of the run.
        prepared: Components of the training.
        outcome: Outcome of the final evaluation.
        chance: Result of predicting the class frequencies.
        baselines: Results of simple models.
    """
    selected = bool(record.metrics["selected"])
    report = report_with_heading(outcome.report(), selected=selected)
    lines = [("chance", chance)]
    lines += [("baseline", line) for line in baselines]
    lines += [("warning", warning) for warning in record.warnings.values()]
    if record.reason:
        lines.append(("stopped", record.reason))
    if prepared.loaded.is_random:
        note = (
            "the model began with random weights, which bounds the result: with little data, a "
            "pretrained one (--model_name_or_path) is usually far better"
        )
        lines.append(("note", note))
    if note_on_speed := launch_bound_note(record.timings):
        lines.append(("speed", note_on_speed))
    workers, kind = prepared.args.dataloader_num_workers, prepared.task.row.kind
    if note_on_waiting := waiting_note(record.timings, workers, has_files=kind.has_files):
        lines.append(("waiting", note_on_waiting))
    lines.append(("wrote", f"{folder}: model, report, predictions, history, record"))
    labels = [labelled(name, text) for name, text in lines]
    return [f"\n{report}{decisions_text(record)}", *labels, result_line(record)]
