"""The features of a run, in the order in which it calls them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict

from ampft.features.decisions import FittedDecisions
from ampft.features.feature import Feature, Write
from ampft.features.label_errors import InspectedData
from ampft.features.resources import Clock, MeasuredUtilisation, MemoryUse
from ampft.features.trackers import Tracking
from ampft.features.validations import Validations
from ampft.features.value_ranges import NonfiniteSteps, RangeWatch
from ampft.features.weights import AveragedWeights, BestModel, MergedAdapters
from ampft.runs.manifest import NONFINITE_NAME
from ampft.runs.prepared import Prepared
from ampft.runs.push import Pushing
from ampft.runs.redaction import redact_secrets
from ampft.training.ending import TimeLimit


def make_features(prepared: Prepared, write: Write) -> tuple[Feature, ...]:
    """Return the features that the settings of a run ask for, before its first step.

    Args:
        prepared: Components of the training.
        write: Function that prints a line above the progress bar, on the main process.
    """
    args, accelerator = prepared.args, prepared.accelerator
    inspects = args.inspect_data and accelerator.is_main_process
    average = averaged_weights(prepared)
    metrics = prepared.task.problem.metrics
    metric = metrics[args.metric_for_best_model or next(iter(metrics))]
    best = BestModel(prepared.folder, metric, args.early_stopping_patience, average=average)
    features = (
        Tracking(accelerator, redact_secrets(asdict(args)) if accelerator.log_with else None),
        InspectedData(prepared.task, write) if inspects else None,
        MemoryUse(accelerator.device, prepared.started.memory),
        NonfiniteSteps(
            prepared.folder / NONFINITE_NAME,
            accelerator,
            prepared.model,
            mode=prepared.precision.mode,
            skips=args.on_nonfinite == "skip",
            write=write,
        ),
        None
        if args.watch is None
        else RangeWatch(args.watch, accelerator, prepared.loaded.model, prepared.precision, write),
        average,
        fitted_decisions(prepared),
        Validations(
            best,
            prepared.task.problem,
            accelerator,
            prepared.model,
            write,
            len(prepared.step_batches),
            args.eval_steps,
        ),
        MergedAdapters(prepared.plain_model) if args.merge_lora else None,
        MeasuredUtilisation(
            accelerator,
            prepared.plain_model,
            prepared.precision,
            has_tokens=prepared.task.row.kind.has_words,
        ),
        Clock(
            TimeLimit(args.max_seconds, prepared.started.seconds),
            args.max_time,
            prepared.total_steps,
        ),
        Pushing(args.hub_model_id, private=args.hub_private_repo) if args.push_to_hub else None,
    )
    return tuple(feature for feature in features if feature is not None)


def averaged_weights(prepared: Prepared) -> AveragedWeights | None:
    """Return the average of the weights before the first step; None without `--ema_decay`."""
    decay = prepared.args.ema_decay
    return None if decay is None else AveragedWeights(prepared.loaded.model, decay)


def fitted_decisions(prepared: Prepared) -> FittedDecisions | None:
    """Return what is fitted on the validation split; None if nothing is."""
    args = prepared.args
    return FittedDecisions(args, prepared.task) if args.fitted_flags else None


@contextmanager
def entered(contexts: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    """Enter contexts of features in their order."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
