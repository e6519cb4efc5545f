"""The features of a run in their order, and what its validations and results add to `LoopState`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

import numpy as np
import torch
from torch import nn

from ampft.data.splits import Groups, dependent_groups
from ampft.engine.ending import TimeLimit
from ampft.engine.first_step import FirstStepMonitor
from ampft.engine.out_of_memory import MEMORY_ADVICE, OutOfMemoryRetries
from ampft.evaluation.evaluate import evaluate
from ampft.features.chosen_metrics import ChosenMetrics
from ampft.features.contention import ContentionMonitor
from ampft.features.decisions import FittedDecisions, validation_halves
from ampft.features.early_stopping import EarlyStopping
from ampft.features.feature import Feature, Write
from ampft.features.head_scale import ScaledHead
from ampft.features.nonfinite_steps import NonfiniteStepMonitor
from ampft.features.resources import PeakMemoryMonitor, TrainingClock, UtilisationMeasurement
from ampft.features.trackers import TrackerReporting
from ampft.features.validations import ERROR, LOSS, Validations
from ampft.features.weights import AdapterMerging, AveragedWeights, BestModel, Selector
from ampft.flag import split_names
from ampft.metrics.ranking import RANKING, selecting_metric
from ampft.metrics.sums import BALANCED_ACCURACY
from ampft.precision.accelerator import is_sharded
from ampft.runs.extension_points import GRAPHS, LABEL_INSPECTION, RANGE_MONITOR
from ampft.runs.history import History
from ampft.runs.loop_state import LoopState
from ampft.runs.manifest import HISTORY_NAME, NONFINITE_NAME
from ampft.runs.prepared import Prepared
from ampft.runs.publishing import PushToHub
from ampft.runs.record import StepIdsHash
from ampft.runs.redaction import redact_secrets
from ampft.tasks.outcome import Outcome
from ampft.text.escaping import without_credentials


def make_features(prepared: Prepared, write: Write) -> tuple[Feature, ...]:
    """Return the features that the settings of a run ask for, before its first step.

    Args:
        write: Function that prints a line above the progress bar, on the main process.
    """
    average = averaged_weights(prepared)
    features = (
        *_observing_features(prepared, write),
        average,
        fitted_decisions(prepared),
        _validations(prepared, write, average),
        scaled_head(prepared, write),
        *_ending_features(prepared),
    )
    return tuple(feature for feature in features if feature is not None)


def _observing_features(prepared: Prepared, write: Write) -> list[Feature]:
    """Return what observes the steps: trackers, inspected data, memory, cores, ranges of values."""
    args, accelerator, point = prepared.args, prepared.accelerator, prepared.resume_point
    features: list[Feature] = []
    if chosen := split_names(args.metric):
        features.append(ChosenMetrics(chosen, accelerator, write))
    features.append(
        TrackerReporting(
            accelerator,
            redact_secrets(asdict(args)) if accelerator.log_with else None,
            without_credentials(prepared.folder.name),
            prepared.folder,
            begins_again=point is not None and point.is_first,
            sent=0 if point is None else point.sent,
        )
    )
    if args.inspect_data and accelerator.is_main_process:
        inspect_labels = LABEL_INSPECTION.require()
        features.append(inspect_labels(prepared.task, write, accelerator.device, args.seed))
    features.append(PeakMemoryMonitor(accelerator.device, prepared.started.memory))
    if accelerator.device.type == "cpu":
        features.append(ContentionMonitor(torch.get_num_threads(), prepared.started.cpu, write))
    features.append(
        NonfiniteStepMonitor(
            prepared.folder / NONFINITE_NAME,
            accelerator,
            prepared.model,
            mode=prepared.precision.mode,
            skips=args.on_nonfinite == "skip",
            write=write,
        )
    )
    if args.watch is not None:
        watch_ranges, model = RANGE_MONITOR.require(), prepared.loaded.model
        features.append(watch_ranges(args.watch, accelerator, model, prepared.precision, write))
    return features


def _validations(prepared: Prepared, write: Write, average: AveragedWeights | None) -> Validations:
    """Return what validates the model, keeps its best weights and stops early."""
    args, metrics = prepared.args, prepared.task.problem.metrics
    selectors: Mapping[str, Selector] = {**RANKING, **metrics}
    named = args.metric_for_best_model
    weights = prepared.task.class_weights
    primary = next(iter(metrics))
    if weights is not None and BALANCED_ACCURACY.name in metrics:
        primary = BALANCED_ACCURACY.name  # a weighted training may lose accuracy
    metric = selectors[primary if named is None else selecting_metric(named, metrics)]
    loss = metrics.get(LOSS) or metrics.get(ERROR)
    by_loss = named is None and loss is not None and prepared.selects_best
    kept_by = loss if by_loss and loss is not None else metric
    stopping = EarlyStopping(args.early_stopping_patience)
    rows = len(prepared.task.data.splits["validation"]) if by_loss else 0
    return Validations(
        BestModel(prepared.folder, kept_by, stopping, average=average),
        {name: metrics[name].title for name in prepared.task.problem.printed},
        prepared.accelerator,
        prepared.model,
        write,
        len(prepared.step_batches),
        args.eval_steps,
        metric,
        torch.zeros(rows, dtype=torch.float64) if by_loss else None,
        epochs_between=prepared.validated_epochs,
        groups=_validation_groups(prepared) if by_loss else None,
        class_weights=weights if by_loss and prepared.task.row.decides_per_case else None,
    )


def _ending_features(prepared: Prepared) -> list[Feature]:
    """Return what follows the last step, and the clock that ends a training."""
    args, splits = prepared.args, prepared.task.data.splits
    features: list[Feature] = []
    if args.merges_lora:
        features.append(AdapterMerging(prepared.plain_model, prepared.loaded))
    if not args.evaluated:
        features.append(
            UtilisationMeasurement(
                prepared.accelerator,
                prepared.plain_model,
                prepared.precision,
                has_tokens=prepared.task.row.kind.has_words,
            )
        )
    features.append(
        TrainingClock(
            TimeLimit(args.max_seconds, prepared.started.seconds),
            args.max_time,
            prepared.total_steps,
            prepared.step_batches.effective_batch_size,
            validation_rows=len(splits["validation"]) if prepared.selects_best else 0,
            final_rows=len(splits[prepared.final_split]),
        )
    )
    if args.push_to_hub:
        features.append(PushToHub(args.hub_model_id, private=args.hub_private_repo))
    return features


def averaged_weights(prepared: Prepared) -> AveragedWeights | None:
    """Return the average of the weights before the first step; None without `--ema_decay`."""
    decay = prepared.args.ema_decay
    return None if decay is None else AveragedWeights(prepared.loaded.model, decay)


def scaled_head(prepared: Prepared, write: Write) -> ScaledHead | None:
    """Return what scales the head; None if the user chose the head or decisions, or it is sharded.

    Heads that began at random, of several columns or without validation rows are not scaled either.
    """
    args, loaded, accelerator = prepared.args, prepared.loaded, prepared.accelerator
    is_default = args.head_init is None and loaded.begins_at_probe and loaded.probe is not None
    is_free = not (args.fitted_flags or is_sharded(accelerator) or args.several_labels)
    if not (is_default and is_free and prepared.selects_best):
        return None
    batch = args.per_device_eval_batch_size
    return ScaledHead(accelerator, prepared.model, loaded.model, prepared.task, batch, write)


def _validation_groups(prepared: Prepared) -> Groups | None:
    """Return the groups of the rows that choose the epoch; None if all are independent."""
    groups = dependent_groups(prepared.task.data, "validation")
    if groups is None or prepared.args.abstain is None:
        return groups
    ids = groups.ids[validation_halves(prepared.task).fit]  # the other half proves the promise
    return Groups(np.unique(ids, return_inverse=True)[1], groups.column)


def fitted_decisions(prepared: Prepared) -> FittedDecisions | None:
    """Return what is fitted on the validation split; None if nothing is."""
    args = prepared.args
    return FittedDecisions(args, prepared.task) if args.fitted_flags else None


RunState = LoopState[Prepared]
"""State of a run of a task."""


def new_state(prepared: Prepared) -> RunState:
    """Return the state of a run before its first step."""
    accelerator = prepared.accelerator
    path = prepared.folder / HISTORY_NAME if accelerator.is_main_process else None
    history = History(path, accelerator, prepared.total_steps)
    graphs = GRAPHS.get()
    return RunState(
        prepared,
        history,
        make_features(prepared, history.write),
        FirstStepMonitor(prepared.precision),
        _retries(prepared, history),
        StepIdsHash(),
        prepared.record,
        None if graphs is None else graphs.graphs_of(prepared, history.write),
    )


def predict(
    state: RunState,
    model: nn.Module,
    split: str,
    *,
    poll: Callable[[], None] | None = None,
    in_mode: bool = True,
) -> Outcome:
    """Predict a split, with the decisions of the features.

    Args:
        model: Model, in the mode of the run or in another one.
        poll: Function that is called between batches, and raises if a signal stops the run.
        in_mode: Whether to check that the first batch has the dtypes of the mode.
    """
    checked = state.first_step.checked(f"the evaluation on {split}") if in_mode else None
    outcome = evaluate(
        state.prepared.accelerator,
        model,
        state.prepared.task,
        split,
        batch_size=state.prepared.args.per_device_eval_batch_size,
        first_batch=checked,
        poll=poll,
    )
    for feature in state.features:
        outcome = feature.decided(outcome, lambda: predict(state, model, "validation", poll=poll))
    return outcome


def _retries(prepared: Prepared, history: History) -> OutOfMemoryRetries:
    """Return the retries of steps that run out of memory, or the advice if there are none."""
    args = prepared.args
    smaller = (
        "raise --gradient_accumulation_steps and lower --per_device_train_batch_size by the same "
        "factor"
    )
    if args.per_device_train_batch_size == 1:
        advice = MEMORY_ADVICE
    elif args.auto_micro_batch:
        advice = (
            "Several processes communicate in the backward pass, so a step cannot be repeated in "
            f"smaller micro-batches. Start with smaller ones: {smaller}, and remove "
            "--auto_micro_batch."
        )
    elif is_sharded(prepared.accelerator):
        advice = f"Use smaller micro-batches for the same effective batch: {smaller}."
    else:
        advice = (
            "Add --auto_micro_batch, which uses smaller micro-batches for the same effective batch."
        )
    return OutOfMemoryRetries(
        prepared.loaded.model,
        prepared.step_batches,
        can_repeat=args.auto_micro_batch and prepared.accelerator.num_processes == 1,
        advice=advice,
        write=history.write,
    )
