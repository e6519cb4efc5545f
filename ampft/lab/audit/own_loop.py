"""Audits the run of an own loop: what follows from its files, without the code that trained it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from ampft.data.steps import StepBatches, TensorExamples
from ampft.errors import InputError
from ampft.lab.audit.audit_result import DIFFERS, NOT_COMPARED, Check, check_from_problems
from ampft.lab.audit.written import check_ids, history_rows
from ampft.runs.history import HistoryRow
from ampft.runs.predictions import read_predictions
from ampft.runs.record import RunRecord
from ampft.text.numbers import counted


def own_loop_checks(folder: Path, record: RunRecord) -> Iterator[Check]:
    """Yield what can be checked of an own loop: the order of examples, the steps, the metrics."""
    try:
        rows = history_rows(folder)
    except InputError as error:
        yield Check("history", DIFFERS, str(error))
        return
    settings, size = record.arguments, record.data.examples["train"]
    batches = StepBatches(
        TensorExamples({"examples": torch.empty(size)}),
        effective_batch_size=int(settings["batch_size"]),
        seed=int(settings["seed"]),
    )
    yield check_ids(record, len(rows), batches)
    yield check_from_problems("history", list(_history_problems(record, batches, rows)),
                              f"{counted(len(rows), 'row')} agree with the record")  # fmt: skip
    yield Check("training", NOT_COMPARED, "only the code of the loop can repeat it")
    path = folder / "predictions.parquet"
    if not path.is_file():
        yield Check("metrics", NOT_COMPARED, "the loop gave no predictions")
        return
    found = read_predictions(path).metrics()
    wrong = [
        f"{name} of run.json is {record.metrics.get(name)}, not {value}"
        for name, value in found.items()
        if record.metrics.get(name) != value
    ]
    text = f"{counted(len(found), 'value')} of run.json follow from the predictions"
    yield check_from_problems("metrics", wrong, text)


def _history_problems(
    record: RunRecord, batches: StepBatches, rows: tuple[HistoryRow, ...]
) -> Iterator[str]:
    skipped = sum(row.skipped for row in rows)
    if (record.steps.applied, record.steps.skipped) != (len(rows) - skipped, skipped):
        yield "the numbers of applied and skipped steps differ from the record"
    for row in rows:
        epoch, step = divmod(row.step - 1, len(batches))
        examples = len(batches.effective_ids(epoch, step))
        if (row.epoch, row.examples) != (epoch, examples):
            yield f"step {row.step} is not step {step + 1} of epoch {epoch + 1}, of {examples}"
            return
