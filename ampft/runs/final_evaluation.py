"""The end of a run: its final evaluation, the saved model, and the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from ampft.data.groups import dependent_groups
from ampft.evaluation.baseline import baseline_summaries
from ampft.evaluation.float32 import in_float32
from ampft.evaluation.sanity import (
    chance_loss,
    constant_outcome,
    constant_summary,
    loss_warnings,
    outcome_warnings,
    stop_if_destroyed,
    validation_warnings,
)
from ampft.features.feature import the_feature
from ampft.features.validations import Validations, all_metrics
from ampft.files import check_disk_space
from ampft.models.sharded import whole_weights
from ampft.models.trained_part import save_trained
from ampft.models.weights import weights_size
from ampft.precision.compilation import compilation_warnings
from ampft.precision.modes import is_fp32
from ampft.runs.folder import RunFolder
from ampft.runs.history import write_csv
from ampft.runs.manifest import HISTORY_NAME, PICTURES_NAME
from ampft.runs.plan import batch_norm_warnings
from ampft.runs.predictions import write_predictions
from ampft.runs.prepared import Prepared
from ampft.runs.results import result_lines, write_results
from ampft.runs.state import RunState
from ampft.tasks.outcome import Outcome
from ampft.training.ending import end_training
from ampft.training.launch_bound import measure_growth


def write_final_results(
    state: RunState,
    folder: RunFolder | None,
    model: nn.Module,
    poll: Callable[[], None] | None,
) -> Sequence[str]:
    """Evaluate the final split, save the model, and write the results. All processes call it.

    Args:
        state: State of the run, whose training is over.
        folder: Output folder, on the main process; None on the others.
        model: Prepared model with its final weights.
        poll: As for `RunState.predict`.

    Returns:
        The lines to print about the results; empty without a folder.

    Raises:
        TrainingStopped: The training destroyed the model.
    """
    prepared = state.prepared
    args, task, split = prepared.args, prepared.task, prepared.final_split
    outcome = state.predict(model, split, poll=poll)
    memory = state.memory()  # before predicting in fp32, which only comparisons do
    outcome_fp32 = _predict_fp32(state, model, split)
    constant = constant_outcome(task, split)
    warnings = _final_warnings(state, outcome, constant)
    stop_if_destroyed(warnings)
    weights = whole_weights(model)  # gathered from all processes
    for feature in state.features:
        feature.end(state.history.steps, outcome)
    end_training(prepared.accelerator)
    if folder is None:
        return ()
    state.history.verify()
    _save(state, folder, model, weights)
    task.save_pictures(folder.stage() / PICTURES_NAME, outcome)
    the_feature(state.features, Validations).best.path.unlink(missing_ok=True)
    device = prepared.accelerator.device
    baselines = baseline_summaries(task, split, device) if args.baseline else ()
    metrics, metrics_fp32 = _metrics(prepared, outcome), None
    if args.evaluate_fp32:
        metrics_fp32 = metrics if outcome_fp32 is None else _metrics(prepared, outcome_fp32)
    record = replace(
        state.record("finished"),
        timings=_timings(state, model),
        memory=memory,
        metrics=metrics,
        metrics_chance=constant.metrics(),
        metrics_fp32=metrics_fp32,
        warnings=warnings,
    )
    write = partial(
        write_predictions,
        references=partial(task.references, split),
        origins=partial(task.origins, split),
        groups=dependent_groups(task.data, split),
    )
    write_results(folder, record, outcome, write, outcome_fp32)
    chance = constant_summary(task, constant)
    return result_lines(folder.path, record, prepared, outcome, chance, baselines)


def _predict_fp32(state: RunState, model: nn.Module, split: str) -> Outcome | None:
    """Predict in fp32 if `--evaluate_fp32` is set and the run was not in fp32 already."""
    prepared = state.prepared
    if not prepared.args.evaluate_fp32 or is_fp32(prepared.precision.mode):
        return None
    with in_float32(prepared.accelerator, model, prepared.precision) as plain:
        return state.predict(plain, split, in_mode=False)


def _final_warnings(state: RunState, outcome: Outcome, constant: Outcome) -> dict[str, str]:
    prepared, parts = state.prepared, the_feature(state.features, Validations).parts
    return {
        **loss_warnings(state.history.losses, chance_loss(prepared.task)),
        **validation_warnings([part.metrics for part in parts]),
        **outcome_warnings(outcome, constant),
        **state.warnings(),
        **compilation_warnings(prepared.accelerator),
        **batch_norm_warnings(prepared.loaded.model, state.retries.step_batches),
    }


def _save(
    state: RunState, folder: RunFolder, model: nn.Module, weights: dict[str, Tensor] | None
) -> None:
    prepared, stage = state.prepared, folder.stage()
    plain = prepared.accelerator.unwrap_model(model, keep_torch_compile=False)
    check_disk_space(folder.path, weights_size(plain), "saving the model")
    for feature in state.features:
        feature.save(stage, plain)
    save_trained(plain, stage, prepared.loaded, weights)
    prepared.task.save_processor(stage)
    if prepared.args.history_csv:
        write_csv(folder / HISTORY_NAME, stage / "history.csv")


def _metrics(prepared: Prepared, outcome: Outcome) -> dict[str, Any]:
    """Return the metrics of the final split, and whether it also selected the epoch."""
    selected = prepared.selects_best and outcome.split == "validation"
    return {**all_metrics(outcome), "split": outcome.split, "selected": selected}


def _timings(state: RunState, model: nn.Module) -> dict[str, Any]:
    """Return the speed of the training, and what features measure of it."""
    prepared, timings, batches = state.prepared, state.timings(), state.retries.step_batches
    timings |= asdict(measure_growth(prepared.accelerator, model, prepared.task.loss, batches))
    for feature in state.features:
        timings |= feature.timings(timings)
    return timings
