"""Predicts with the saved model of a run, and compares with its predictions.parquet."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import transformers
from torch import nn

from ampft.errors import TrainingStopped
from ampft.evaluation.evaluate import evaluate, in_float32
from ampft.models.packing.families import packing_support
from ampft.models.packing.install import install_packing
from ampft.models.pretrained import load_saved
from ampft.models.weights import cast_in_place
from ampft.precision.accelerator import numerics
from ampft.runs.audit.findings import DIFFERS, EQUAL, TOLERANCES, WITHIN, Check
from ampft.runs.audit.rebuild import Rebuilt
from ampft.runs.features import fitted_decisions
from ampft.runs.predictions import RESERVED_COLUMNS, read_predictions
from ampft.runs.prepared import Prepared
from ampft.tasks.outcome import Outcome
from ampft.text.numbers import counted

FILES = {"metrics": "predictions.parquet", "metrics_fp32": "predictions_fp32.parquet"}


def read_outcomes(rebuilt: Rebuilt) -> dict[str, Outcome]:
    """Return the outcomes of a run, by the field of the record that holds their metrics.

    Raises:
        InputError: A file is missing or not the predictions of a run.
    """
    outcomes = {"metrics": read_predictions(rebuilt.folder / FILES["metrics"])}
    if rebuilt.record.metrics_fp32 is not None:
        path = rebuilt.folder / FILES["metrics_fp32"]
        # A run in fp32 predicts in fp32 only once.
        outcomes["metrics_fp32"] = read_predictions(path) if path.is_file() else outcomes["metrics"]
    return outcomes


def load_model(rebuilt: Rebuilt, *, padding_free: bool) -> nn.Module:
    """Return the saved model as the evaluation of the run used it.

    Args:
        rebuilt: The run on this machine.
        padding_free: Whether the run computed without padding.

    Raises:
        InputError: The model cannot be loaded.
    """
    model_class = getattr(transformers, rebuilt.task.row.model_class)
    model: nn.Module = load_saved(model_class, str(rebuilt.folder))
    cast_in_place(model, rebuilt.precision.storage_dtype)
    if padding_free and packing_support(model).supported:
        install_packing(model)
    return model


def check_predictions(
    rebuilt: Rebuilt, prepared: Prepared, model: nn.Module, name: str, stored: Outcome
) -> Check:
    """Predict the final split with the saved model, and compare with the stored predictions.

    Args:
        rebuilt: The run on this machine.
        prepared: Its training, whose accelerator runs the model.
        model: The saved model.
        name: Key of `FILES`: predictions in the mode of the run, or in fp32.
        stored: Stored predictions.
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


def _data_problem(rebuilt: Rebuilt, stored: Outcome, split: str) -> str | None:
    """Return how labels or inputs in the predictions differ from the data; None if they do not."""
    task, path = rebuilt.task, rebuilt.folder / FILES["metrics"]
    if stored.split != split or stored.label_names != task.label_names:
        return f"{path.name} is of another split or other labels"
    if not np.array_equal(stored.truth, task.labels[split]):
        return f"{path.name} has other labels than the data"
    expected = task.references(split, slice(0, len(task.data.splits[split])))
    for name, values in expected.items():
        column = f"input_{name}" if name in RESERVED_COLUMNS else name
        try:
            found = pq.read_table(path.absolute(), columns=[column])[column].to_pylist()
        except (OSError, LookupError, ValueError) as error:
            return f"{path.name} has no column {column} ({error})"
        if found != list(map(str, values)):
            return f"{path.name} has other inputs than the data in the column {column}"
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
    rebuilt: Rebuilt, outcome: Outcome, stored: Outcome, tolerance: float, file: str
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
