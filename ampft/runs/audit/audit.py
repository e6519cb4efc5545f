"""Audits a run: every comparison, in the order in which it is printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ampft.errors import InputError
from ampft.machine import versions
from ampft.precision.accelerator import separate_accelerators
from ampft.runs.audit.findings import DIFFERS, NOT_COMPARED, Audit, Check
from ampft.runs.audit.rebuild import (
    Rebuilt,
    check_configuration,
    check_data,
    check_initial_weights,
    rebuild,
)
from ampft.runs.audit.saved_model import check_predictions, load_model, read_outcomes
from ampft.runs.audit.steps import Replay, check_kept_weights, check_training, replay
from ampft.runs.audit.written import (
    check_card,
    check_history,
    check_ids,
    check_metrics,
    check_warnings,
    compare_files,
    history_rows,
)
from ampft.runs.history import HistoryRow
from ampft.runs.manifest import RECORD_NAME
from ampft.runs.prepared import Prepared
from ampft.runs.record import RunRecord, read_record


def audit_run(folder: Path, flags: Sequence[str], *, steps: int | None, cpu: bool) -> Audit:
    """Audit a run, without writing into its folder.

    Args:
        folder: Folder of a finished run.
        flags: Flags of classify.py that replace recorded settings, such as paths of moved files.
        steps: Number of optimizer steps to repeat; None repeats all.
        cpu: Whether to use the CPU even if there is an accelerator.

    Raises:
        InputError: The folder does not hold a finished run, or data, model or precision are not
            available here.
    """
    record = read_record(folder, verify=False)
    if record.status != "finished":
        raise InputError(
            f"RUN {folder}: the run is {record.status}, so it has nothing to confirm. Pass "
            "the folder of a finished run."
        )
    checks = [compare_files(folder, record)]
    rebuilt = rebuild(folder, record, flags, cpu=cpu)
    try:
        rows, problem = history_rows(folder), None
    except InputError as error:
        rows, problem = (), Check("history", DIFFERS, str(error))
    repeated = rows[:steps]
    checks.append(check_data(rebuilt))
    if checks[-1].status == DIFFERS:
        checks.append(Check("training", NOT_COMPARED, "it needs the data of the run"))
        repeated = ()
    else:
        with separate_accelerators():
            checks += _checks_with_model(rebuilt, rows, repeated, problem)
    return Audit(
        run=str(folder),
        checks=checks,
        machine=rebuilt.differences,
        steps=len(repeated),
        steps_of_run=len(rows),
        versions=versions(),
    )


def _checks_with_model(
    rebuilt: Rebuilt,
    rows: Sequence[HistoryRow],
    repeated: Sequence[HistoryRow],
    problem: Check | None,
) -> Iterator[Check]:
    record, prepared = rebuilt.record, rebuilt.prepare()
    weights = check_initial_weights(rebuilt, prepared)
    yield weights
    yield check_configuration(rebuilt, prepared)
    training = None
    if rows and weights.status != DIFFERS:  # before anything else draws random numbers
        training = replay(
            prepared,
            rebuilt.micro_batches(repeated),
            validated=frozenset(part.step for part in record.validations),
            kept=_kept_step(record, len(rows)),
        )
    if problem is not None:
        yield problem
    else:
        yield check_ids(record, len(rows), prepared.step_batches)
        yield check_history(record, rows, prepared)
    if training is None:
        yield Check("loss", NOT_COMPARED, "it needs the initial weights and the history of the run")
    else:
        yield from check_training(rebuilt, repeated, training)
    yield from _result_checks(rebuilt, prepared, rows, training)


def _kept_step(record: RunRecord, steps: int) -> int:
    """Return the step after which the run saved its model."""
    if record.best is None:
        return steps
    if record.best.step is not None:
        return record.best.step
    kept = [part.step for part in record.validations if part.epoch == record.best.epoch]
    return kept[0] if kept else steps


def _result_checks(
    rebuilt: Rebuilt, prepared: Prepared, rows: Sequence[HistoryRow], training: Replay | None
) -> Iterator[Check]:
    """Compare model, predictions, metrics, warnings and texts with each other."""
    record, task = rebuilt.record, rebuilt.task
    try:
        outcomes = read_outcomes(rebuilt)
        model = load_model(rebuilt, padding_free=prepared.loaded.padding_free)
    except InputError as error:
        yield Check("model", DIFFERS, str(error))
        return
    if training is not None and training.weights is not None:
        yield check_kept_weights(rebuilt, training.weights, model)
    ready = prepared.accelerator.prepare_model(model, evaluation_mode=True)
    outcome = outcomes["metrics"]
    for name, stored in outcomes.items():
        if name == "metrics" or stored is not outcome:
            yield check_predictions(rebuilt, prepared, ready, name, stored)
    if outcome.label_names != task.label_names or outcome.split not in task.labels:
        yield Check("metrics", DIFFERS, f"the predictions are not of a split of {RECORD_NAME}")
        return
    yield check_metrics(rebuilt, outcomes)
    yield check_warnings(record, rows, task, outcome)
    yield check_card(rebuilt)
