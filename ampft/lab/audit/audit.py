"""Audits a run: every comparison in its order, and the predictions of the saved model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch
import transformers
from torch import nn

from ampft.data.step_batches import StepBatch, StepBatches, TensorExamples
from ampft.engine.first_step import FirstStepMonitor
from ampft.engine.step import StepOutcome, accumulate_gradient, apply_step, shared_autocast_cache
from ampft.errors import InputError, TrainingStopped
from ampft.evaluation.evaluate import evaluate, in_float32
from ampft.fast.packing.families import packing_support
from ampft.fast.packing.install import install_packing
from ampft.features.validations import all_metrics
from ampft.lab.audit.audit_result import (
    AMPLIFICATION,
    AMPLIFIED_REPLAYS,
    DIFFERS,
    EQUAL,
    LOSS_SCALE_FACTOR,
    MASK_DEVIATIONS,
    MASK_REPLAYS,
    NEIGHBOURS,
    NOT_COMPARED,
    TOLERANCES,
    WITHIN,
    Audit,
    Check,
    check_from_problems,
)
from ampft.lab.audit.rebuild import (
    RebuiltRun,
    check_configuration,
    check_data,
    check_initial_weights,
    rebuild,
)
from ampft.lab.audit.run_files import (
    check_card,
    check_chosen_metrics,
    check_history,
    check_ids,
    check_metrics,
    check_run_files,
    check_warnings,
    history_rows,
)
from ampft.machine import versions
from ampft.models.adapters import merge_adapters
from ampft.models.pretrained import load_saved
from ampft.models.weights import cast_in_place, gather_model_state, perturb_weights, tensors_hash
from ampft.precision.accelerator import numerics, separate_accelerators
from ampft.precision.determinism import deterministic_operators
from ampft.precision.executed import ExecutedDtypes
from ampft.runs.history import HistoryRow
from ampft.runs.manifest import RECORD_NAME
from ampft.runs.predictions import RESERVED_COLUMNS, read_predictions
from ampft.runs.prepared import Prepared
from ampft.runs.record import RunRecord, read_record
from ampft.runs.run_state import averaged_weights, fitted_decisions
from ampft.tasks.outcome import Outcome
from ampft.tasks.table import OWN_TASKS
from ampft.text.json_io import json_values
from ampft.text.numbers import counted

Values = npt.NDArray[np.float64]
"""(2, steps): the values in `MEASURED` of each step."""
MEASURED = ("loss", "gradient norm")
STORED = ("parameters", "gradients", "optimizer_state")
COMPARED_KINDS = ("projection", "convolution", "recurrent")
MUST_REPEAT = "although CPU, versions, threads and processes are the same"


def check_training(
    rebuilt: RebuiltRun, rows: Sequence[HistoryRow], first: ReplayedSteps
) -> Iterator[Check]:
    """Yield the comparisons of the first steps of a run, as recorded and as repeated."""
    yield check_loss(rebuilt, rows, first)
    yield check_loss_scale(rebuilt, rows, first.outcomes)
    yield check_executed(rebuilt, first.executed)
    parts = [part for part in rebuilt.record.validations if part.step in first.validations]
    if parts and not rebuilt.repeats_exactly:
        yield Check("validated", NOT_COMPARED, "metrics after training on another machine")
    elif parts:
        problems = [
            f"the validation after {counted(part.step, 'step')} gives other metrics"
            for part in parts
            if dict(part.metrics) != json_values(all_metrics(first.validations[part.step]))
        ]
        yield check_from_problems(
            "validated", problems, f"{counted(len(parts), 'validation')}, bit for bit"
        )


def check_loss(rebuilt: RebuiltRun, rows: Sequence[HistoryRow], first: ReplayedSteps) -> Check:
    """Compare loss and gradient norm of each step."""
    if first.stopped is not None:
        return Check("loss", DIFFERS, f"step {len(first.outcomes) + 1} stopped: {first.stopped}")
    actual, recorded = _measured(first.outcomes), _measured(rows)
    if np.array_equal(actual, recorded, equal_nan=True):
        steps = counted(len(rows), "step")
        return Check("loss", EQUAL, f"loss and gradient norm of {steps}, bit for bit")
    has_masks_of_run = first.random_state == rebuilt.record.random_state_sha256
    if not has_masks_of_run and not rebuilt.repeats_exactly:
        return _within_scatter(rebuilt, rows, first)
    relative = _relative(actual, recorded)
    kind, step = np.unravel_index(relative.argmax(), relative.shape)
    found = (
        f"the largest relative difference is {relative.max():.1e} ({MEASURED[kind]} of step "
        f"{step + 1})"
    )
    if rebuilt.repeats_exactly:
        return Check("loss", DIFFERS, f"{found}, {MUST_REPEAT}")
    limits = _limits(rebuilt, actual)
    if len(_exceeded(actual, recorded, limits)) and len(rows) > 1:
        limits += _amplification(rebuilt, rows, actual)
    exceeded = _exceeded(actual, recorded, limits)
    if len(exceeded):
        step, kind = exceeded[0]
        return Check(
            "loss",
            DIFFERS,
            f"the {MEASURED[kind]} of step {step + 1} is {actual[kind, step]:.7g}, and the record "
            f"states {recorded[kind, step]:.7g}; rounding explains a difference of "
            f"{limits[kind, step]:.1e}",
        )
    return Check("loss", WITHIN, f"{found}, which rounding explains")


def _measured(steps: Iterable[HistoryRow | StepOutcome]) -> Values:
    return np.array([(step.loss, step.grad_norm) for step in steps], dtype=np.float64).T


def _relative(actual: Values, expected: Values) -> Values:
    """Return relative differences; values that are equally infinite or NaN do not differ."""
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        difference = np.abs(actual - expected) / np.maximum(np.abs(actual), np.finfo(float).tiny)
    return np.where(same, 0.0, np.where(np.isfinite(difference), difference, np.inf))


def _limits(rebuilt: RebuiltRun, actual: Values) -> Values:
    """Return the largest absolute differences that rounding explains without amplification."""
    tolerance = rebuilt.tolerance
    return np.array([[tolerance.loss], [tolerance.grad_norm]]) * np.abs(actual)


def _exceeded(actual: Values, recorded: Values, limits: Values) -> npt.NDArray[np.intp]:
    """Return step and kind of the values beyond their limits; skipped steps have no norm."""
    both_overflow = ~np.isfinite(actual) & ~np.isfinite(recorded)
    with np.errstate(invalid="ignore"):
        is_within = np.abs(actual - recorded) <= limits
    return np.argwhere((~both_overflow & ~is_within).T)


def _amplification(rebuilt: RebuiltRun, rows: Sequence[HistoryRow], actual: Values) -> Values:
    """Return by how much a rounding of the initial weights changes the values of each step."""
    unit = torch.finfo(rebuilt.precision.compute_dtype).eps / 2
    grown = np.zeros_like(actual)
    for seed in range(AMPLIFIED_REPLAYS):
        other = replay_first_steps(
            rebuilt.prepare(), rebuilt.micro_batches(rows), rounding=(unit, seed)
        )
        if len(other.outcomes) < len(rows):
            return np.zeros_like(actual)
        with np.errstate(invalid="ignore"):
            difference = np.abs(_measured(other.outcomes) - actual)
        finite = np.where(np.isfinite(difference), difference, 0.0)
        grown = np.maximum(grown, np.maximum.accumulate(finite, axis=1))
    grown[:, 0] = 0  # the first step has its own rounding, but nothing that could be amplified
    return AMPLIFICATION * grown


def _within_scatter(rebuilt: RebuiltRun, rows: Sequence[HistoryRow], first: ReplayedSteps) -> Check:
    """Compare the record with replays that differ from each other only in their dropout masks."""
    cut = rebuilt.micro_batches(rows)
    seeds = range(1, MASK_REPLAYS + 1)
    replays = [
        first,
        *(replay_first_steps(rebuilt.prepare(), cut, mask_seed=seed) for seed in seeds),
    ]
    if any(len(other.outcomes) < len(rows) for other in replays):
        return Check("loss", DIFFERS, "a replay with other dropout masks stopped")
    stacked = np.stack([_measured(other.outcomes) for other in replays])
    stacked = np.where(np.isfinite(stacked), stacked, np.nan)
    variance = np.nanvar(stacked, axis=0, ddof=1)
    windows = (slice(max(0, i - NEIGHBOURS), i + NEIGHBOURS + 1) for i in range(len(rows)))
    smoothed = np.stack([np.nanmean(variance[:, window], axis=1) for window in windows], axis=1)
    rounding = _limits(rebuilt, _measured(first.outcomes)) / MASK_DEVIATIONS
    deviation = np.sqrt(smoothed * (1 + 1 / len(replays))) + rounding
    recorded = _measured(rows)
    distance = np.abs(recorded - np.nanmean(stacked, axis=0))
    distance = distance / np.maximum(deviation, np.finfo(float).tiny)
    largest = np.nanmax(np.where(np.isfinite(recorded), distance, np.nan), axis=1).tolist()
    worst = largest.index(max(largest))
    text = (
        f"dropout cannot draw the masks of the run here; of {len(replays)} replays with other "
        f"masks, the record is at most {largest[worst]:.1f} standard deviations away "
        f"({MEASURED[worst]}; limit {MASK_DEVIATIONS:g})"
    )
    return Check("loss", WITHIN if largest[worst] <= MASK_DEVIATIONS else DIFFERS, text)


def check_loss_scale(
    rebuilt: RebuiltRun, rows: Sequence[HistoryRow], outcomes: Sequence[StepOutcome]
) -> Check:
    """Compare the loss scale after each step, and which steps were skipped."""
    pairs = list(zip(rows, outcomes, strict=False))
    if all((r.loss_scale, r.skipped) == (o.loss_scale, o.skipped) for r, o in pairs):
        skipped = sum(row.skipped for row, _ in pairs)
        return Check(
            "scale", EQUAL, f"{counted(skipped, 'step')} skipped of {len(pairs)}, as recorded"
        )
    for row, outcome in pairs:
        ours, theirs = outcome.loss_scale, row.loss_scale
        if (ours is None) != (theirs is None):
            text = f"step {row.step} has the loss scale {ours}, not {theirs}"
            return Check("scale", DIFFERS, text)
        ratio = 1.0 if ours is None or theirs is None or not theirs else ours / theirs
        is_near = 1 / LOSS_SCALE_FACTOR <= ratio <= LOSS_SCALE_FACTOR
        if rebuilt.repeats_exactly or not is_near:
            text = f"step {row.step} has the loss scale {ours}, and the record states {theirs}"
            return Check("scale", DIFFERS, text)
    return Check("scale", WITHIN, "overflows in neighbouring steps, at scales one halving apart")


def check_executed(rebuilt: RebuiltRun, executed: ExecutedDtypes | None) -> Check:
    """Compare the dtypes that the first step multiplied and stored."""
    recorded = rebuilt.record.precision.executed
    if executed is None or recorded is None:
        return Check("dtypes", DIFFERS, "the dtypes of the first step are missing")
    actual = json_values(executed.as_dict())
    assert isinstance(actual, dict)
    if not rebuilt.repeats_exactly:
        return check_from_problems("dtypes", _dtype_problems(actual, recorded), executed.summary())
    names = [name for name in actual if actual[name] != recorded.get(name)]
    problems = [f"{name.replace('_', ' ')} of the first step differ" for name in names]
    return check_from_problems("dtypes", problems, executed.summary())


def _dtype_problems(actual: Mapping[str, Any], recorded: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs on another machine, where kernels fuse other products."""
    ours, theirs = _products(actual), _products(recorded)
    if ours != theirs:
        yield f"the products had operands of {sorted(ours)}, and the record states {sorted(theirs)}"
    for name in STORED:
        # A step that fp16 skips creates no optimizer state.
        if actual[name] and recorded.get(name) and set(actual[name]) != set(recorded[name]):
            found, stated = sorted(actual[name]), sorted(recorded[name])
            yield f"{name.replace('_', ' ')} had {found}, and the record states {stated}"


def _products(executed: Mapping[str, Any]) -> set[tuple[str, str]]:
    rows = executed.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return set()
    return {
        (str(row.get("kind")), str(dtype))
        for row in rows
        if row.get("kind") in COMPARED_KINDS
        for dtype in row.get("inputs") or ()
    }


class HashedTensor(NamedTuple):
    """The dtype and the SHA-256 of a tensor."""

    dtype: torch.dtype
    sha256: str


def check_kept_weights(
    rebuilt: RebuiltRun, weights: Mapping[str, HashedTensor], saved: nn.Module
) -> Check:
    """Compare the saved model with the weights that the repeated training has at its step."""
    if not rebuilt.repeats_exactly:
        return Check("model", NOT_COMPARED, "AdamW amplifies the rounding of another machine")
    stored: Mapping[str, torch.Tensor] = saved.state_dict()
    problems = [
        f"{name} of the saved model differs from the repeated training"
        for name, (dtype, digest) in weights.items()
        if name not in stored or tensors_hash({name: stored[name].to(dtype)}) != digest
    ]
    return check_from_problems(
        "model", problems, "the repeated training ends in the saved weights, bit for bit"
    )


@dataclass
class ReplayedSteps:
    """The repeated steps of a run."""

    outcomes: list[StepOutcome] = field(default_factory=list)  # Outcome of each step.
    executed: ExecutedDtypes | None = None  # Dtypes of the first step; None if none was completed.
    # Hash of the random states after the first step, as in the record.
    random_state: str | None = None
    # Outcome on the validation split by number of steps so far.
    validations: dict[int, Outcome] = field(default_factory=dict)
    # Weights after the step that was asked for; None if it was not reached. Their hashes take no
    # memory while the saved model is loaded.
    weights: Mapping[str, HashedTensor] | None = None
    stopped: str | None = None  # Why a step could not be applied; None if all could.


def replay_first_steps(
    prepared: Prepared,
    micro_batches: Sequence[int],
    *,
    validated: frozenset[int] = frozenset(),
    kept: int | None = None,
    mask_seed: int | None = None,
    rounding: tuple[float, int] | None = None,
) -> ReplayedSteps:
    """Repeat the first optimizer steps of a run.

    Args:
        prepared: The run before its first step.
        micro_batches: Number of micro-batches of this process in each step to repeat.
        validated: Numbers of steps after which the validation split is evaluated.
        kept: Number of steps after which the weights are returned.
        mask_seed: Seed for dropout masks that differ from the run's; None repeats the run's masks.
        rounding: Relative size and seed of a random change of the initial weights; None for none.
    """
    result, first_step = ReplayedSteps(), FirstStepMonitor(prepared.precision)
    if prepared.args.perturb_initial_weights:
        perturb_weights(prepared.model, prepared.args.seed)
    if rounding is not None:
        _round_weights(prepared.model, *rounding)
    if mask_seed is not None:
        torch.manual_seed(mask_seed)
    average = averaged_weights(prepared)
    with numerics(prepared.precision), deterministic_operators(prepared.args.deterministic):
        prepared.model.train()
        try:
            for step, step_batch in enumerate(_step_batches(prepared, micro_batches), 1):
                result.outcomes.append(_train_step(prepared, step_batch, first_step))
                if average is not None and not result.outcomes[-1].skipped:
                    average.update()
                with nullcontext() if average is None else average.around_evaluation():
                    if step in validated:
                        result.validations[step] = _validation(prepared)
                    if step == kept:
                        result.weights = _weights(prepared)
        except TrainingStopped as error:
            result.stopped = str(error)
    result.executed, result.random_state = first_step.executed, first_step.random_state
    return result


def _step_batches(prepared: Prepared, micro_batches: Sequence[int]) -> Iterator[StepBatch]:
    """Yield the first step batches of the training, cut into these numbers of micro-batches."""
    batches, step = prepared.step_batches, 0
    while step < len(micro_batches):
        epoch = step // len(batches)
        for step_batch in batches.epoch(epoch, stop=len(micro_batches) - step):
            if len(step_batch.micro_batches) != micro_batches[step]:
                # Memory ran out in the run, which cut this step into more micro-batches.
                recut = replace(batches, micro_batches=micro_batches[step])
                step_batch = recut.recut(step_batch)
            yield step_batch
            step += 1


def _train_step(
    prepared: Prepared, step_batch: StepBatch, first_step: FirstStepMonitor
) -> StepOutcome:
    accelerator, model, optimizer = prepared.accelerator, prepared.model, prepared.optimizer
    with first_step.measured(model, optimizer):
        with shared_autocast_cache(accelerator, model, step_batch):
            losses = accumulate_gradient(accelerator, model, prepared.task.loss, step_batch)
        outcome = apply_step(
            accelerator,
            model,
            optimizer,
            prepared.schedule,
            losses=losses,
            max_grad_norm=prepared.args.max_grad_norm or None,
            skip_nonfinite=prepared.args.on_nonfinite == "skip",
        )
    optimizer.zero_grad()
    return outcome


def _validation(prepared: Prepared) -> Outcome:
    outcome = evaluate(
        prepared.accelerator,
        prepared.model,
        prepared.task,
        "validation",
        batch_size=prepared.args.per_device_eval_batch_size,
    )
    decisions = fitted_decisions(prepared)
    return outcome if decisions is None else decisions.decided(outcome, lambda: outcome)


def _weights(prepared: Prepared) -> dict[str, HashedTensor]:
    weights = gather_model_state(prepared.accelerator, prepared.model)
    if prepared.args.merges_lora:
        plain = prepared.accelerator.unwrap_model(prepared.model, keep_torch_compile=False)
        merged = copy.deepcopy(plain)
        merge_adapters(merged)
        weights = merged.state_dict()
    return {
        name: HashedTensor(tensor.dtype, tensors_hash({name: tensor}))
        for name, tensor in weights.items()
    }


@torch.no_grad()
def _round_weights(model: nn.Module, unit: float, seed: int) -> None:
    """Change each trainable weight by the relative amount `unit`, up or down at random."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            signs = torch.randint(2, parameter.shape, generator=generator) * 2 - 1
            parameter.mul_(1 + unit * signs.to(parameter.device, parameter.dtype))


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
    checks = [check_run_files(folder, record)]
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
    if record.metrics_chosen is not None:
        yield check_chosen_metrics(record, outcome)
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
    saved: Any = load_saved(model_class, str(rebuilt.folder))
    if rebuilt.record.arguments.get("channels_last"):
        saved.to(memory_format=torch.channels_last)
    model: nn.Module = saved
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
    if not outcome.class_names and "prediction" in columns:  # numbers
        scale = float(np.abs(outcome.choices).max()) or 1.0
        return columns["prediction"].to_numpy().astype(np.float64) / scale
    # Of masks, the mean confidence of each is stored.
    column = (
        columns["probabilities"].flatten() if "probabilities" in columns else columns["confidence"]
    )
    return column.to_numpy(zero_copy_only=False).astype(np.float64)


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
        shuffled=settings.get("shuffle") is not False,
        drops_last=settings.get("drop_last") is True,
    )
    yield check_ids(record, len(rows), batches)
    yield check_from_problems("history", list(_history_problems(record, batches, rows)),
                              f"{counted(len(rows), 'row')} agree with the record")  # fmt: skip
    yield Check("training", NOT_COMPARED, "only the code of the loop can repeat it")
    path = folder / "predictions.parquet"
    if not path.is_file():
        yield Check("metrics", NOT_COMPARED, "the loop gave no predictions")
        return
    found = {n: json_values(v) for n, v in read_predictions(path).metrics().items()}  # NaN is None
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
