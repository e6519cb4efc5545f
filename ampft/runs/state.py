"""The features of a run in their order, its state between two steps, and its record so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from ampft.engine.checkpoints.store import CursorPart
from ampft.engine.ending import TimeLimit
from ampft.engine.first_step import FirstStepMonitor
from ampft.engine.graphed_update import GraphedUpdate
from ampft.engine.graphs import GraphedGradient
from ampft.engine.out_of_memory import MEMORY_ADVICE, OutOfMemoryRetries
from ampft.evaluation.evaluate import evaluate
from ampft.features.decisions import FittedDecisions
from ampft.features.feature import Feature, Write, required_feature
from ampft.features.label_errors import LabelErrorInspection
from ampft.features.resources import (
    PeakMemory,
    PeakMemoryMonitor,
    TrainingClock,
    UtilisationMeasurement,
)
from ampft.features.trackers import TrackerReporting
from ampft.features.validations import Validations
from ampft.features.value_ranges import NonfiniteStepMonitor, ValueRangeMonitor
from ampft.features.weights import AdapterMerging, AveragedWeights, BestModel
from ampft.models.weights import reshard
from ampft.precision.accelerator import is_sharded
from ampft.runs.graphs import graphs_of
from ampft.runs.history import History
from ampft.runs.manifest import HISTORY_NAME, NONFINITE_NAME
from ampft.runs.prepared import Prepared
from ampft.runs.publishing import PushToHub
from ampft.runs.record import RunRecord, StepIdsHash
from ampft.runs.redaction import redact_secrets
from ampft.tasks.outcome import Outcome


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
        TrackerReporting(
            accelerator, redact_secrets(asdict(args)) if accelerator.log_with else None
        ),
        LabelErrorInspection(prepared.task, write) if inspects else None,
        PeakMemoryMonitor(accelerator.device, prepared.started.memory),
        NonfiniteStepMonitor(
            prepared.folder / NONFINITE_NAME,
            accelerator,
            prepared.model,
            mode=prepared.precision.mode,
            skips=args.on_nonfinite == "skip",
            write=write,
        ),
        None
        if args.watch is None
        else ValueRangeMonitor(
            args.watch, accelerator, prepared.loaded.model, prepared.precision, write
        ),
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
        AdapterMerging(prepared.plain_model) if args.merge_lora else None,
        UtilisationMeasurement(
            accelerator,
            prepared.plain_model,
            prepared.precision,
            has_tokens=prepared.task.row.kind.has_words,
        ),
        TrainingClock(
            TimeLimit(args.max_seconds, prepared.started.seconds),
            args.max_time,
            prepared.total_steps,
        ),
        PushToHub(args.hub_model_id, private=args.hub_private_repo) if args.push_to_hub else None,
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
def entered_in_order(contexts: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    """Enter contexts of features in their order."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@dataclass
class RunState:
    """References to everything that changes while a run trains, and that a checkpoint saves."""

    prepared: Prepared  # Model, optimizer, schedule and scaler.
    history: History  # History of the optimizer steps.
    features: tuple[Feature, ...]  # Features of the run, in the order in which it calls them.
    first_step: FirstStepMonitor  # Measurements of the first step.
    retries: OutOfMemoryRetries  # Step batches with the current number of micro-batches.
    step_ids: StepIdsHash  # Hash of the example ids of each step.
    initial: RunRecord  # Record of the run at its start, with its continuations from checkpoints.
    # What computes gradients and updates by CUDA graphs; None if nothing does.
    graphs: tuple[GraphedGradient, GraphedUpdate] | None = None

    @classmethod
    def new(cls, prepared: Prepared) -> RunState:
        """Return the state of a run before its first step."""
        accelerator = prepared.accelerator
        path = prepared.folder / HISTORY_NAME if accelerator.is_main_process else None
        history = History(path, accelerator, prepared.total_steps)
        return cls(
            prepared,
            history,
            make_features(prepared, history.write),
            FirstStepMonitor(prepared.precision),
            _retries(prepared, history),
            StepIdsHash(),
            prepared.record,
            graphs_of(prepared, history.write),
        )

    @property
    def cursor(self) -> CursorPart:
        """Position in the training."""
        steps = self.history.steps
        epoch, step_in_epoch = divmod(steps, len(self.prepared.step_batches))
        return CursorPart(epoch=epoch, step_in_epoch=step_in_epoch, step=steps)

    def plain_model(self) -> nn.Module:
        """Return the model without what Accelerate added, with the optimizer's parameters."""
        plain: nn.Module = self.prepared.plain_model
        reshard(plain)  # the optimizer has the sharded parameters
        return plain

    def predict(
        self,
        model: nn.Module,
        split: str,
        *,
        poll: Callable[[], None] | None = None,
        in_mode: bool = True,
    ) -> Outcome:
        """Predict a split, with the decisions of the features.

        Args:
            model: Model, in the mode of the run or in another one.
            split: Name of the split.
            poll: Function that is called between batches, and raises if a signal stops the run.
            in_mode: Whether to check that the first batch has the dtypes of the mode.
        """
        checked = self.first_step.checked(f"the evaluation on {split}") if in_mode else None
        outcome = evaluate(
            self.prepared.accelerator,
            model,
            self.prepared.task,
            split,
            batch_size=self.prepared.args.per_device_eval_batch_size,
            first_batch=checked,
            poll=poll,
        )
        for feature in self.features:
            outcome = feature.decided(outcome, lambda: self.predict(model, "validation", poll=poll))
        return outcome

    def memory(self) -> PeakMemory:
        """Return the peak memory so far, with its parts if the first step has measured them."""
        memory, parts = (
            required_feature(self.features, PeakMemoryMonitor).peak,
            self.first_step.memory,
        )
        return memory if parts is None else memory.split(**parts)

    def warnings(self) -> dict[str, str]:
        """Return reasons not to trust the training so far, by name."""
        return {name: text for f in self.features for name, text in f.warnings().items()}

    def timings(self) -> dict[str, Any]:
        """Return the timings of the steps so far, and what they cover."""
        parts = len(self.initial.resumes) + 1
        covers = (
            "the whole run, in one process"
            if parts == 1
            else f"the whole run in {parts} parts, each up to the checkpoint from which the next "
            "one continues; steps that were repeated after a checkpoint count once"
        )
        graphs = {
            name: value for part in self.graphs or () for name, value in part.as_dict().items()
        }
        used = {"cuda_graphs": graphs} if graphs else {}
        return {**self.history.timings(), "covers": covers, **used}

    def record(self, status: str) -> RunRecord:
        """Return the record of the run so far.

        Args:
            status: One of `STATUSES`.
        """
        executed, steps = self.first_step.executed, self.history.steps
        known = {name: value for f in self.features for name, value in f.record().items()}
        return replace(
            self.initial,
            status=status,
            precision=replace(
                self.initial.precision,
                executed=None if executed is None else executed.as_dict(),
                summary=None if executed is None else executed.summary(),
                lost_updates=self.history.lost_updates(),
            ),
            steps=replace(
                self.initial.steps,
                applied=steps - self.history.skipped,
                skipped=self.history.skipped,
                micro_batches=self.retries.step_batches.micro_batches,
            ),
            example_ids_sha256=self.step_ids.hexdigest(),
            random_state_sha256=self.first_step.random_state,
            timings=self.history.timings() if steps else {},
            memory=self.memory(),
            warnings=self.warnings(),
            **known,
        )


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
