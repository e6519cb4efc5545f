"""One run: everything around the training loop, so that a recipe shows only the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from torch import Tensor, nn

from ampft.data.splits import Groups, dependent_groups
from ampft.data.step_batches import StepBatches
from ampft.decision import CONTRACT_NAME
from ampft.engine.ending import AFTER_BATCH, end_training
from ampft.engine.launch_bound import data_waiting_note, doubled_batch_timings, launch_bound_note
from ampft.engine.out_of_memory import explain_out_of_memory
from ampft.errors import TrainingStopped
from ampft.evaluation.compared_methods import compared_methods, decided_as_model
from ampft.evaluation.evaluate import in_float32
from ampft.evaluation.sanity import (
    chance_loss,
    constant_outcome,
    is_destroyed,
    never_predicted_warnings,
    result_warnings,
    stop_if_far_above_chance,
    validation_warnings,
)
from ampft.evaluation.simple_methods import FREQUENCIES, MEAN_LABEL, SimpleMethodResult
from ampft.features.feature import required_feature
from ampft.features.resources import PeakMemory, TrainingClock
from ampft.features.validations import Validations, all_metrics
from ampft.files import check_disk_space, write_text
from ampft.models.adapters import save_model_or_adapters
from ampft.models.training_mode import batch_norm_note
from ampft.models.weights import gather_sharded_weights, weights_size
from ampft.precision.compilation import partial_compilation_warning
from ampft.precision.modes import is_fp32
from ampft.runs.client_answers import SERVED_BACK
from ampft.runs.extension_points import METHODS_TO_COMPARE, SERVE_BACK, MethodLimit
from ampft.runs.folder import RunFolder
from ampft.runs.history import write_csv
from ampft.runs.later_parts import (
    CARD,
    DONE,
    EVALUATION,
    PARTS,
    PICTURES,
    PREDICTIONS,
    RECORD,
    REPORT,
    SERVING_BACK,
    SIMPLE_METHODS,
    SPEED,
    TRACKERS,
    TRAINED,
    LaterParts,
    parts_text,
)
from ampft.runs.loop import Loop
from ampft.runs.loop_state import entered_in_order
from ampft.runs.manifest import HISTORY_NAME, PICTURES_NAME
from ampft.runs.predictions import write_predictions
from ampft.runs.prepared import Prepared
from ampft.runs.publishing import CARD_NAME, model_card
from ampft.runs.record import RunRecord
from ampft.runs.results import publish, save_predictions, save_report
from ampft.runs.run_state import RunState, predict
from ampft.runs.run_text import (
    decisions_text,
    report_with_heading,
    result_line,
    simple_methods_text,
)
from ampft.tasks.outcome import Outcome
from ampft.text.terminal import labelled, print_line
from ampft.text.warning_names import EXPLODED


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
        if self.is_over:
            self._save_end()
        validations = required_feature(state.features, Validations)
        if not (self.prepared.selects_best and validations.is_due(self.steps, self.is_over)):
            return
        around = (feature.around_evaluation() for feature in state.features)
        with self.stop.responding(AFTER_BATCH), entered_in_order(around):
            outcome = predict(self.state, model, "validation", poll=self.stop.poll)
            for feature in state.features:
                feature.at_validation(self.steps, outcome)
        earlier = [part.metrics for part in validations.parts[:-1]]
        stop_if_far_above_chance(task, outcome, state.history.losses, earlier)
        state.history.resume_clock()

    def finish(self, model: nn.Module) -> None:
        """Save the model; then evaluate it, and write and print the results.

        Raises:
            TrainingStopped: The training destroyed the model.
            PartsFailed: The model is saved, but something after the training failed.
        """
        self.validate(model)  # if a stop prevented it
        self._save_end()
        self.checkpoints.wait()
        poll = self.stop.poll if self.choose_weights() else None
        weights = gather_sharded_weights(model)  # gathered from all processes
        parts = LaterParts()
        if self.folder is not None:
            _save_model(self.state, self.folder, model, weights, parts)
        self.parts = parts
        response = self.stop.response if poll is None else AFTER_BATCH
        with parts.part(EVALUATION, ends=True), self.stop.responding(response):
            with explain_out_of_memory():
                evaluated = _evaluate(self.state, model, poll)
            if poll is not None:  # a signal during the last batch
                poll()
        for feature in self.state.features:
            with parts.part(feature.name if feature.name in PARTS else EVALUATION):
                feature.end(self.state.history.steps, evaluated.outcome)
        if self.prepared.accelerator.num_processes > 1:
            parts.add_failures(gather_object([parts.failed]))
        with parts.part(TRACKERS):
            end_training(self.prepared.accelerator)
        if self.folder is None:
            return
        lines = _write_results(self.state, self.folder, model, evaluated, parts)
        for line in lines:
            print_line(line)
        if parts.failed:
            raise parts.error(self.folder.path)
        self.finished = True
        with suppress(OSError):  # it is not needed, and costs only space
            self.checkpoints.remove_end()
        self.state.history.close()
        for feature in self.state.features:
            feature.published(self.folder.path)

    def _save_end(self) -> None:
        """Write the state after the last step; say so if that is impossible."""
        can_save = self.prepared.can_resume and self.steps > 0
        problem = self.checkpoints.save_end() if can_save else None
        if problem is not None:
            self.state.history.write(
                labelled("warning", f"the end of the training could not be saved ({problem})")
            )


BATCH_NORM = "batch_norm"


@dataclass(frozen=True)
class _Evaluated:
    """What the predictions of the final split amount to."""

    outcome: Outcome
    outcome_fp32: Outcome | None  # Outcome of the same model in float32; None if it is not another.
    constant: Outcome  # Outcome of predicting the class frequencies.
    groups: Groups | None  # Groups of the rows of the split.
    memory: (
        PeakMemory  # Peak memory before the predictions in float32, which only comparisons make.
    )
    warnings: dict[str, str]  # Reasons not to trust the result, by name.


def _evaluate(state: RunState, model: nn.Module, poll: Callable[[], None] | None) -> _Evaluated:
    """Predict the final split. All processes call it.

    Raises:
        TrainingStopped: The training destroyed the model.
    """
    prepared = state.prepared
    args, task, split = prepared.args, prepared.task, prepared.final_split
    for other in prepared.evaluated[:-1]:
        evaluated = predict(state, model, other, poll=poll)
        required_feature(state.features, Validations).at_evaluation(evaluated)
    outcome = predict(state, model, split, poll=poll)
    memory = state.memory()
    outcome_fp32 = None
    if args.evaluate_fp32 and not is_fp32(prepared.precision.mode):
        with in_float32(prepared.accelerator, model, prepared.precision) as plain:
            outcome_fp32 = predict(state, plain, split, in_mode=False)
    constant, groups = constant_outcome(task, split), dependent_groups(task.data, split)
    warnings = _final_warnings(state, outcome, constant, groups)
    if EXPLODED in warnings and is_destroyed(outcome, constant, groups):
        raise TrainingStopped(f"training destroyed the model: {warnings[EXPLODED]}")
    return _Evaluated(outcome, outcome_fp32, constant, groups, memory, warnings)


def _write_results(
    state: RunState, folder: RunFolder, model: nn.Module, evaluated: _Evaluated, parts: LaterParts
) -> Sequence[str]:
    """Write everything that follows from the evaluation, on the main process.

    Returns:
        The lines to print; empty if the report could not be made.
    """
    with parts.part(REPORT, ends=True):
        report = evaluated.outcome.report()
        record = _final_record(state, evaluated)
    record = _measured(state, model, evaluated, record, parts)
    task, outcome, stage = state.prepared.task, evaluated.outcome, folder.stage()
    with parts.part(PICTURES):
        task.save_pictures(stage / PICTURES_NAME, outcome)
    with parts.part(PREDICTIONS):
        _save_contract(state, stage)
        for feature in state.features:
            feature.save_results(stage)
        write = partial(
            write_predictions,
            references=partial(task.inputs.references, outcome.split),
            origins=partial(_origins, state.prepared),
            groups=evaluated.groups,
        )
        save_predictions(stage, outcome, evaluated.outcome_fp32, write)
        publish(folder, replace(record, status=TRAINED, parts=parts.status))
    record, stage = _served(state, folder, record, outcome, parts), folder.stage()
    with parts.part(REPORT):
        save_report(stage, record, report)
        if state.prepared.args.history_csv:
            write_csv(folder / HISTORY_NAME, stage / "history.csv")
    with parts.part(CARD):
        write_text(stage / CARD_NAME, model_card(record, report))
    with parts.part(RECORD):
        state.history.verify()
    with parts.part(RECORD, ends=True):
        publish(folder, _with_parts(record, folder.path, parts))
    return _result_lines(folder.path, record, state.prepared, outcome)


def _with_parts(record: RunRecord, folder: Path, parts: LaterParts) -> RunRecord:
    """Return the record of a run whose parts have ended: finished if none of them failed."""
    if not parts.failed:
        return replace(record, status="finished", parts={**parts.status, RECORD: DONE})
    reason = parts_text(folder, parts.status)
    return replace(record, status=TRAINED, reason=reason, parts=parts.status)


def _served(
    state: RunState, folder: RunFolder, record: RunRecord, outcome: Outcome, parts: LaterParts
) -> RunRecord:
    """Return the record with what plain clients answer from the folder."""
    serve_back = SERVE_BACK.get()
    if serve_back is None or not state.prepared.args.serve_back:
        parts.skip(SERVING_BACK)
        return record
    if PREDICTIONS in parts.failed:  # they are what the answers are compared with
        return record
    with parts.part(SERVING_BACK):
        served = serve_back(folder.path, record, outcome, state.prepared.task.data)
        warning = served.warning()
        warnings = {**record.warnings, **({} if warning is None else {SERVED_BACK: warning})}
        return replace(record, served_back=served, warnings=warnings)
    return record


def _final_record(state: RunState, evaluated: _Evaluated) -> RunRecord:
    """Return the record with what was evaluated."""
    prepared, other = state.prepared, evaluated.outcome_fp32
    metrics, metrics_fp32 = _metrics(prepared, evaluated.outcome), None
    if prepared.args.evaluate_fp32:
        metrics_fp32 = metrics if other is None else _metrics(prepared, other)
    return replace(
        state.record(TRAINED),
        timings=state.timings(),
        memory=evaluated.memory,
        metrics=metrics,
        metrics_chance=evaluated.constant.metrics(),
        metrics_fp32=metrics_fp32,
        warnings=evaluated.warnings,
    )


def _measured(
    state: RunState, model: nn.Module, evaluated: _Evaluated, record: RunRecord, parts: LaterParts
) -> RunRecord:
    """Return the record with the speed of the training, and what simple methods reach."""
    timings, methods = record.timings, record.simple_methods
    with parts.part(SPEED):
        timings = _timings(state, model)
    with parts.part(SIMPLE_METHODS):
        methods = _simple_methods(state, evaluated.outcome, timings)
    return replace(record, timings=timings, simple_methods=methods)


def _origins(prepared: Prepared, rows: slice) -> dict[str, list[Any]]:
    """Return where rows of the final split come from; with --folds also their fold."""
    args, origins = prepared.args, prepared.task.origins(prepared.final_split, rows)
    if args.folds is None:
        return origins
    return {"fold": [args.fold] * (rows.stop - rows.start), **origins}


def _simple_methods(
    state: RunState, outcome: Outcome, timings: Mapping[str, Any]
) -> tuple[SimpleMethodResult, ...]:
    prepared = state.prepared
    limit, args = required_feature(state.features, TrainingClock).limit, prepared.args
    left = None if limit.seconds is None else limit.seconds - limit.elapsed
    name = MEAN_LABEL if prepared.task.row.number_labels else FREQUENCIES
    task, split = prepared.task, outcome.split
    methods: dict[str, Callable[[], Outcome]] = {
        name: lambda: decided_as_model(task, split, partial(constant_outcome, task))
    }
    simple = METHODS_TO_COMPARE.get()
    if simple is not None and args.baseline is not False and not args.evaluated:
        training = timings.get("training_seconds") or 0.0
        method_limit = None
        if not args.baseline:
            method_limit = MethodLimit(max(simple.share * training, simple.least_seconds))
            if left is not None and left < method_limit.seconds:
                method_limit = MethodLimit(max(left, 0.0), is_left_of_max_time=True)
        device = prepared.accelerator.device
        probe = prepared.loaded.probe
        others = simple.baselines(prepared.task, outcome, device, args.seed, method_limit, probe)
        methods = others | methods
    return compared_methods(prepared.task, outcome, methods)


def _final_warnings(
    state: RunState, outcome: Outcome, constant: Outcome, groups: Groups | None
) -> dict[str, str]:
    prepared, parts = state.prepared, required_feature(state.features, Validations).parts
    losses, chance = state.history.losses, chance_loss(prepared.task)
    truncated = getattr(prepared.task.inputs.splits.get("train"), "truncated", 0)
    of_batch_norm = batch_norm_warnings(prepared.loaded.model, state.retries.step_batches)
    if prepared.args.evaluated:  # they are about the gradient
        of_batch_norm = {}
    return {
        **result_warnings(losses, chance, outcome, constant, groups, truncated=truncated),
        **never_predicted_warnings(prepared.task, outcome),
        **validation_warnings([part.metrics for part in parts]),
        **state.warnings(),
        **partial_compilation_warning(prepared.accelerator),
        **of_batch_norm,
    }


def batch_norm_warnings(model: nn.Module, batches: StepBatches) -> dict[str, str]:
    """Return the warning that batch normalisation makes the gradient depend on the split."""
    note = batch_norm_note(model, micro_batches=batches.micro_batches, processes=batches.world_size)
    return {} if note is None else {BATCH_NORM: f"{note}."}


def _save_model(
    state: RunState,
    folder: RunFolder,
    model: nn.Module,
    weights: dict[str, Tensor] | None,
    parts: LaterParts,
) -> None:
    """Save everything that the training made, before anything else can fail."""
    prepared, stage = state.prepared, folder.stage()
    plain = prepared.accelerator.unwrap_model(model, keep_torch_compile=False)
    check_disk_space(folder.path, weights_size(plain), "saving the model")
    for feature in state.features:
        feature.save(stage, plain)
    save_model_or_adapters(plain, stage, prepared.loaded, weights)
    prepared.task.inputs.save_processor(stage)
    publish(folder, replace(state.record(TRAINED), parts=parts.status))


def _save_contract(state: RunState, stage: Path) -> None:
    """Save everything between an input and its answer."""
    prepared = state.prepared
    contract = prepared.task.contract
    if contract is not None:
        separator = prepared.args.label_separator
        if prepared.args.evaluated:  # the model's own contract stays
            separator = contract.rule.separator
        rule = replace(contract.rule, separator=separator)
        contract = replace(contract, rule=rule)
        write_text(stage / CONTRACT_NAME, contract.text())


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
