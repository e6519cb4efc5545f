"""Audits a run: every comparison in its order, and the predictions of the saved model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import transformers
from torch import nn

from ampft.errors import InputError, TrainingStopped
from ampft.evaluation.evaluate import evaluate, in_float32
from ampft.lab.audit.audit_result import (
    DIFFERS,
    EQUAL,
    NOT_COMPARED,
    TOLERANCES,
    WITHIN,
    Audit,
    Check,
)
from ampft.lab.audit.own_loop import own_loop_checks
from ampft.lab.audit.rebuild import (
    RebuiltRun,
    check_configuration,
    check_data,
    check_initial_weights,
    rebuild,
)
from ampft.lab.audit.steps import (
    ReplayedSteps,
    check_kept_weights,
    check_training,
    replay_first_steps,
)
from ampft.lab.audit.written import (
    check_card,
    check_history,
    check_ids,
    check_metrics,
    check_warnings,
    compare_files,
    history_rows,
)
from ampft.machine import versions
from ampft.models.packing.families import packing_support
from ampft.models.packing.install import install_packing
from ampft.models.pretrained import load_saved
from ampft.models.weights import cast_in_place
from ampft.precision.accelerator import numerics, separate_accelerators
from ampft.runs.history import HistoryRow
from ampft.runs.manifest import RECORD_NAME
from ampft.runs.predictions import RESERVED_COLUMNS, read_predictions
from ampft.runs.prepared import Prepared
from ampft.runs.record import RunRecord, read_record
from ampft.runs.state import fitted_decisions
from ampft.tasks import OWN_TASKS
from ampft.tasks.outcome import Outcome
from ampft.text.numbers import counted


def audit_run(folder: Path, flags: Sequence[str], *, steps: int | None, cpu: bool) -> Audit:
    """Audit a run, without writing into its folder.

    Args:
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
    if record.task in OWN_TASKS:
        checks += own_loop_checks(folder, record)
        total = record.steps.applied + record.steps.skipped
        return Audit(run=str(folder), checks=checks, machine=(), steps=0, steps_of_run=total)
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
    rebuilt: RebuiltRun,
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
        training = replay_first_steps(
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
    padding_free = prepared.loaded.padding_free
    free_weights(prepared)
    yield from _result_checks(rebuilt, prepared, rows, training, padding_free=padding_free)


def free_weights(prepared: Prepared) -> None:
    """Free the memory of a training that is over, so that the saved model takes its place."""
    if prepared.accelerator.num_processes > 1:  # in buffers of all processes
        return
    prepared.optimizer.state.clear()
    for parameter in prepared.loaded.model.parameters():
        parameter.grad = None
        parameter.data = parameter.data.new_empty(0)


def _kept_step(record: RunRecord, steps: int) -> int:
    """Return the step after which the run saved its model."""
    if record.best is None:
        return steps
    if record.best.step is not None:
        return record.best.step
    kept = [part.step for part in record.validations if part.epoch == record.best.epoch]
    return kept[0] if kept else steps


def _result_checks(
    rebuilt: RebuiltRun,
    prepared: Prepared,
    rows: Sequence[HistoryRow],
    training: ReplayedSteps | None,
    *,
    padding_free: bool,
) -> Iterator[Check]:
    """Compare model, predictions, metrics, warnings and texts with each other."""
    record, task = rebuilt.record, rebuilt.task
    try:
        outcomes = _read_outcomes(rebuilt)
        model = _load_model(rebuilt, padding_free=padding_free)
    except InputError as error:
        yield Check("model", DIFFERS, str(error))
        return
    if training is not None and training.weights is not None:
        yield check_kept_weights(rebuilt, training.weights, model)
    ready = prepared.accelerator.prepare_model(model, evaluation_mode=True)
    outcome = outcomes["metrics"]
    for name, stored in outcomes.items():
        if name == "metrics" or stored is not outcome:
            yield _check_predictions(rebuilt, prepared, ready, name, stored)
    if outcome.label_names != task.label_names or outcome.split not in task.labels:
        yield Check("metrics", DIFFERS, f"the predictions are not of a split of {RECORD_NAME}")
        return
    yield check_metrics(rebuilt, outcomes)
    yield check_warnings(record, rows, task, outcome)
    yield check_card(rebuilt)


FILES = {"metrics": "predictions.parquet", "metrics_fp32": "predictions_fp32.parquet"}


def _read_outcomes(rebuilt: RebuiltRun) -> dict[str, Outcome]:
    """Return the outcomes of a run, by the field of the record that holds their metrics."""
    outcomes = {"metrics": read_predictions(rebuilt.folder / FILES["metrics"])}
    if rebuilt.record.metrics_fp32 is not None:
        path = rebuilt.folder / FILES["metrics_fp32"]
        # A run in fp32 predicts in fp32 only once.
        outcomes["metrics_fp32"] = read_predictions(path) if path.is_file() else outcomes["metrics"]
    return outcomes


def _load_model(rebuilt: RebuiltRun, *, padding_free: bool) -> nn.Module:
    """Return the saved model as the evaluation of the run used it."""
    model_class = getattr(transformers, rebuilt.task.row.model_class)
    model: nn.Module = load_saved(model_class, str(rebuilt.folder))
    cast_in_place(model, rebuilt.precision.storage_dtype)
    if padding_free and packing_support(model).supported:
        install_packing(model)
    return model


def _check_predictions(
    rebuilt: RebuiltRun, prepared: Prepared, model: nn.Module, name: str, stored: Outcome
) -> Check:
    """Predict the final split with the saved model, and compare with the stored predictions.

    Args:
        prepared: Its training, whose accelerator runs the model.
        name: Key of `FILES`: predictions in the mode of the run, or in fp32.
    """
    in_fp32 = name != "metrics"
    if not in_fp32 and (problem := _data_problem(rebuilt, stored, prepared.final_split)):
        return Check("predicted", DIFFERS, problem)
    try:
        outcome = _predict(prepared, model, prepared.final_split, in_fp32=in_fp32)
        if (decisions := fitted_decisions(prepared)) is not None:
            validation = _predict(prepared, model, "validation", in_fp32=False)
            fitted = decisions.decided(validation, lambda: validation)
            outcome = decisions.decided(outcome, lambda: fitted)
    except TrainingStopped as error:
        return Check("predicted", DIFFERS, str(error))
    tolerance = TOLERANCES[torch.float32] if in_fp32 else rebuilt.tolerance
    return _compared(rebuilt, outcome, stored, tolerance.probability, FILES[name])


def _data_problem(rebuilt: RebuiltRun, stored: Outcome, split: str) -> str | None:
    """Return how labels or inputs in the predictions differ from the data; None if they do not."""
    task, path = rebuilt.task, rebuilt.folder / FILES["metrics"]
    if stored.split != split or stored.label_names != task.label_names:
        return f"{path.name} has another split or other labels"
    if not np.array_equal(stored.truth, task.labels[split]):
        return f"{path.name} has other labels than the data"
    expected = task.inputs.references(split, slice(0, len(task.data.splits[split])))
    for name, values in expected.items():
        column = f"input_{name}" if name in RESERVED_COLUMNS else name
        try:
            found = pq.read_table(path.absolute(), columns=[column])[column].to_pylist()
        except (OSError, LookupError, ValueError) as error:
            return f"{path.name} has no column {column} ({error})"
        if found != list(map(str, values)):
            return f"the inputs in {path.name} differ from the data in the column {column}"
    return None


def _predict(prepared: Prepared, model: nn.Module, split: str, *, in_fp32: bool) -> Outcome:
    accelerator, precision = prepared.accelerator, prepared.precision
    batch_size = prepared.args.per_device_eval_batch_size
    with numerics(precision):
        context: AbstractContextManager[Any] = nullcontext(model)
        if in_fp32:
            context = in_float32(accelerator, model, precision)
        with context as ready:
            return evaluate(accelerator, ready, prepared.task, split, batch_size=batch_size)


def _compared(
    rebuilt: RebuiltRun, outcome: Outcome, stored: Outcome, tolerance: float, file: str
) -> Check:
    ours, theirs = _probabilities(outcome), _probabilities(stored)
    if ours.shape != theirs.shape:
        return Check("predicted", DIFFERS, f"{file} has {len(stored)} of {len(outcome)} examples")
    worst = float(np.abs(ours - theirs).max())
    flipped = int((outcome.choices != stored.choices).reshape(len(stored), -1).any(axis=1).sum())
    examples = counted(len(stored), "example")
    if worst == 0 and flipped == 0:
        text = f"the saved model gives the {examples} of {file}, bit for bit"
        return Check("predicted", EQUAL, text)
    found = (
        f"the saved model predicts {flipped} of {examples} differently than {file}; probabilities "
        f"differ by at most {worst:.1e}"
    )
    if rebuilt.repeats_exactly:
        return Check("predicted", DIFFERS, f"{found}, although this is the machine of the run")
    status = WITHIN if worst <= tolerance else DIFFERS
    return Check("predicted", status, f"{found} (tolerance {tolerance:g})")


def _probabilities(outcome: Outcome) -> np.ndarray[Any, np.dtype[np.float64]]:
    columns = outcome.columns(slice(0, len(outcome)))
    # Of masks, the mean confidence of each is stored.
    column = (
        columns["probabilities"].flatten() if "probabilities" in columns else columns["confidence"]
    )
    return column.to_numpy(zero_copy_only=False).astype(np.float64)
