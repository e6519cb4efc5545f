"""One run: everything around the training loop, so that a recipe shows only the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ampft.data.splits import Groups, dependent_groups
from ampft.data.step_batches import StepBatches
from ampft.decision import CONTRACT_NAME
from ampft.engine.ending import end_training
from ampft.engine.launch_bound import data_waiting_note, doubled_batch_timings, launch_bound_note
from ampft.errors import TrainingStopped
from ampft.evaluation.compared_methods import compared_methods
from ampft.evaluation.evaluate import in_float32
from ampft.evaluation.sanity import (
    EXPLODED,
    NOT_BETTER,
    chance_loss,
    constant_outcome,
    rare_class_warnings,
    result_warnings,
    stop_if_far_above_chance,
    validation_warnings,
)
from ampft.evaluation.simple_methods import FREQUENCIES, MEAN_LABEL, SimpleMethodResult
from ampft.features.feature import required_feature
from ampft.features.resources import TrainingClock
from ampft.features.validations import Validations, all_metrics
from ampft.files import check_disk_space, write_text
from ampft.models.adapters import save_model_or_adapters
from ampft.models.training_mode import batch_norm_note
from ampft.models.weights import gather_sharded_weights, weights_size
from ampft.precision.compilation import partial_compilation_warning
from ampft.precision.modes import is_fp32
from ampft.registry import found
from ampft.runs.folder import RunFolder
from ampft.runs.history import write_csv
from ampft.runs.loop import Loop
from ampft.runs.loop_state import entered_in_order
from ampft.runs.manifest import HISTORY_NAME, PICTURES_NAME
from ampft.runs.predictions import write_predictions
from ampft.runs.prepared import Prepared
from ampft.runs.publishing import model_card
from ampft.runs.record import RunRecord
from ampft.runs.results import write_results
from ampft.runs.run_state import RunState, predict
from ampft.runs.run_text import (
    decisions_text,
    report_with_heading,
    result_line,
    simple_methods_text,
)
from ampft.tasks.outcome import Outcome
from ampft.text.terminal import labelled, print_line


class Run(Loop[Prepared]):
    """A training with its evaluation; open it with `open_run`."""

    @property
    def epochs(self) -> Iterator[int]:
        """Epochs of the training, from 0, until it is over."""
        self.validate(self.prepared.model)  # if a stop prevented it
        yield from self.remaining_epochs()

    def validate(self, model: nn.Module) -> None:
        """Evaluate on the validation split after an epoch, or every `--eval_steps` steps.

        Raises:
            TrainingStopped: The loss is far above chance.
        """
        state, task = self.state, self.prepared.task
        validations = required_feature(state.features, Validations)
        if not (self.prepared.selects_best and validations.is_due(self.steps, self.is_over)):
            return
        with entered_in_order(feature.around_evaluation() for feature in state.features):
            outcome = predict(self.state, model, "validation", poll=self.stop.poll)
            for feature in state.features:
                feature.at_validation(self.steps, outcome)
        earlier = [part.metrics for part in validations.parts[:-1]]
        stop_if_far_above_chance(task, outcome, state.history.losses, earlier)
        state.history.resume_clock()

    def finish(self, model: nn.Module) -> None:
        """Evaluate the best model on the final split; write and print the results."""
        self.validate(model)  # if a stop prevented it
        self.checkpoints.wait()
        poll = self.stop.poll if self.choose_weights() else None
        lines = _write_final_results(self.state, self.folder, model, poll)
        if self.folder is None:
            return
        self.finished = True
        self.state.history.close()
        for line in lines:
            print_line(line)
        for feature in self.state.features:
            feature.published(self.folder.path)


_SERVING = found("serving back")
BATCH_NORM = "batch_norm"


def _write_final_results(
    state: RunState, folder: RunFolder | None, model: nn.Module, poll: Callable[[], None] | None
) -> Sequence[str]:
    """Evaluate the final split, save the model, and write the results. All processes call it.

    Returns:
        The lines to print about the results; empty without a folder.

    Raises:
        TrainingStopped: The training destroyed the model.
    """
    prepared = state.prepared
    args, task, split = prepared.args, prepared.task, prepared.final_split
    for other in prepared.evaluated[:-1]:
        evaluated = predict(state, model, other, poll=poll)
        required_feature(state.features, Validations).at_evaluation(evaluated)
    outcome = predict(state, model, split, poll=poll)
    memory = state.memory()  # before predicting in fp32, which only comparisons do
    outcome_fp32 = None
    if args.evaluate_fp32 and not is_fp32(prepared.precision.mode):
        with in_float32(prepared.accelerator, model, prepared.precision) as plain:
            outcome_fp32 = predict(state, plain, split, in_mode=False)
    constant, groups = constant_outcome(task, split), dependent_groups(task.data, split)
    warnings = _final_warnings(state, outcome, constant, groups)
    if EXPLODED in warnings and NOT_BETTER in warnings:
        raise TrainingStopped(warnings[EXPLODED])
    weights = gather_sharded_weights(model)  # gathered from all processes
    for feature in state.features:
        feature.end(state.history.steps, outcome)
    end_training(prepared.accelerator)
    if folder is None:
        return ()
    state.history.verify()
    _save(state, folder, model, weights)
    task.save_pictures(folder.stage() / PICTURES_NAME, outcome)
    required_feature(state.features, Validations).best.path.unlink(missing_ok=True)
    metrics, metrics_fp32 = _metrics(prepared, outcome), None
    if args.evaluate_fp32:
        metrics_fp32 = metrics if outcome_fp32 is None else _metrics(prepared, outcome_fp32)
    timings = _timings(state, model)
    record = replace(
        state.record("finished"),
        timings=timings,
        memory=memory,
        metrics=metrics,
        metrics_chance=constant.metrics(),
        metrics_fp32=metrics_fp32,
        simple_methods=_simple_methods(state, outcome, constant, timings),
        warnings=warnings,
    )
    write = partial(
        write_predictions,
        references=partial(task.inputs.references, split),
        origins=partial(_origins, prepared),
        groups=groups,
    )
    serve = None
    if _SERVING is not None and args.serve_back:
        serve = partial(_SERVING.serve_back, outcome=outcome, data=task.data)
    record = write_results(folder, record, outcome, write, outcome_fp32, model_card, serve)
    return _result_lines(folder.path, record, prepared, outcome)


def _origins(prepared: Prepared, rows: slice) -> dict[str, list[Any]]:
    """Return where rows of the final split come from; with --folds also their fold."""
    args, origins = prepared.args, prepared.task.origins(prepared.final_split, rows)
    if args.folds is None:
        return origins
    return {"fold": [args.fold] * (rows.stop - rows.start), **origins}


def _simple_methods(
    state: RunState, outcome: Outcome, constant: Outcome, timings: Mapping[str, Any]
) -> tuple[SimpleMethodResult, ...]:
    prepared = state.prepared
    limit, args = required_feature(state.features, TrainingClock).limit, prepared.args
    left = None if limit.seconds is None else limit.seconds - limit.elapsed
    name = MEAN_LABEL if prepared.task.row.number_labels else FREQUENCIES
    methods: dict[str, Callable[[], Outcome]] = {name: lambda: constant}
    simple = found("simple methods")
    if simple is not None and args.baseline is not False and not args.evaluated:
        training = timings.get("training_seconds") or 0.0
        seconds = None if args.baseline else max(simple.SHARE * training, simple.LEAST_SECONDS)
        if seconds is not None and left is not None:
            seconds = min(seconds, max(left, 0.0))
        device = prepared.accelerator.device
        probe = prepared.loaded.probe
        others = simple.baselines(prepared.task, outcome, device, args.seed, seconds, probe)
        methods = others | methods
    return compared_methods(prepared.task, outcome, methods)


def _final_warnings(
    state: RunState, outcome: Outcome, constant: Outcome, groups: Groups | None
) -> dict[str, str]:
    prepared, parts = state.prepared, required_feature(state.features, Validations).parts
    losses, chance = state.history.losses, chance_loss(prepared.task)
    of_batch_norm = batch_norm_warnings(prepared.loaded.model, state.retries.step_batches)
    if prepared.args.evaluated:  # they are about the gradient
        of_batch_norm = {}
    return {
        **result_warnings(losses, chance, outcome, constant, groups),
        **rare_class_warnings(prepared.task, outcome),
        **validation_warnings([part.metrics for part in parts]),
        **state.warnings(),
        **partial_compilation_warning(prepared.accelerator),
        **of_batch_norm,
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
    contract = prepared.task.contract
    if contract is not None:
        separator = prepared.args.label_separator
        if prepared.args.evaluated:  # the model's own contract stays
            separator = contract.rule.separator
        rule = replace(contract.rule, separator=separator)
        contract = replace(contract, rule=rule)
        write_text(stage / CONTRACT_NAME, contract.text())
    for feature in state.features:
        feature.save(stage, plain)
    save_model_or_adapters(plain, stage, prepared.loaded, weights)
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
    if not prepared.args.evaluated:
        timings |= doubled_batch_timings(
            prepared.accelerator, model, prepared.task.loss, batches, timings.get("cuda_graphs")
        )
    for feature in state.features:
        timings |= feature.timings(timings)
    return timings


def _result_lines(
    folder: Path, record: RunRecord, prepared: Prepared, outcome: Outcome
) -> list[str]:
    """Return the lines to print: report, simple methods, warnings, where the results are."""
    selected = bool(record.metrics["selected"])
    report = report_with_heading(outcome.report(), selected=selected)
    lines = []
    if (served := record.served_back) is not None:
        lines.append(("served back  ", served.text()))
        lines += [("note", note) for note in served.notes]
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
    if note_on_waiting := data_waiting_note(record.timings, workers, has_files=kind.has_files):
        lines.append(("waiting", note_on_waiting))
    lines.append(("wrote", f"{folder}: model, report, predictions, history, record"))
    labels = [labelled(name, text) for name, text in lines]
    simple = simple_methods_text(record)
    return [f"\n{report}{decisions_text(record)}", *simple, *labels, result_line(record)]
