"""The end of a run: its final evaluation, the saved model, and the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ampft.data.splits import dependent_groups
from ampft.data.steps import StepBatches
from ampft.evaluation.baseline import baseline_summaries
from ampft.evaluation.evaluate import in_float32
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
from ampft.files import check_disk_space, write_text
from ampft.models.adapters import save_trained
from ampft.models.training_mode import batch_norm_note
from ampft.models.weights import weights_size, whole_weights
from ampft.precision.compilation import compilation_warnings
from ampft.precision.modes import is_fp32
from ampft.runs.card import model_card
from ampft.runs.folder import RunFolder
from ampft.runs.history import write_csv
from ampft.runs.manifest import HISTORY_NAME, PICTURES_NAME, describe_files
from ampft.runs.predictions import write_predictions
from ampft.runs.prepared import Prepared
from ampft.runs.record import RunRecord, write_record
from ampft.runs.show import decisions_text, report_with_heading, result_line
from ampft.runs.state import RunState
from ampft.tasks.outcome import Outcome
from ampft.text.json_io import json_text
from ampft.text.terminal import labelled
from ampft.training.ending import end_training
from ampft.training.launch_bound import launch_bound_note, measure_growth, waiting_note

BATCH_NORM = "batch_norm"


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
    outcome_fp32 = None
    if args.evaluate_fp32 and not is_fp32(prepared.precision.mode):
        with in_float32(prepared.accelerator, model, prepared.precision) as plain:
            outcome_fp32 = state.predict(plain, split, in_mode=False)
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
        references=partial(task.inputs.references, split),
        origins=partial(task.origins, split),
        groups=dependent_groups(task.data, split),
    )
    write_results(folder, record, outcome, write, outcome_fp32)
    chance = constant_summary(task, constant)
    return _result_lines(folder.path, record, prepared, outcome, chance, baselines)


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


def batch_norm_warnings(model: nn.Module, batches: StepBatches) -> dict[str, str]:
    """Return the warning that batch normalisation makes the gradient depend on the split."""
    note = batch_norm_note(model, micro_batches=batches.micro_batches, processes=batches.world_size)
    return {} if note is None else {BATCH_NORM: f"{note}."}


def _save(
    state: RunState, folder: RunFolder, model: nn.Module, weights: dict[str, Tensor] | None
) -> None:
    prepared, stage = state.prepared, folder.stage()
    plain = prepared.accelerator.unwrap_model(model, keep_torch_compile=False)
    check_disk_space(folder.path, weights_size(plain), "saving the model")
    for feature in state.features:
        feature.save(stage, plain)
    save_trained(plain, stage, prepared.loaded, weights)
    prepared.task.inputs.save_processor(stage)
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


def _result_lines(
    folder: Path,
    record: RunRecord,
    prepared: Prepared,
    outcome: Outcome,
    chance: str,
    baselines: Iterable[str],
) -> list[str]:
    """Return the lines to print: report, what it compares with, warnings, where the results are."""
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
