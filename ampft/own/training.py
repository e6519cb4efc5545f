"""`ampft.Training`: precision, exact gradient, resume and record for your own training loop."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ampft.arguments.flags import parse_duration
from ampft.arguments.parsing import with_keyword_names
from ampft.data.step_batches import MicroBatch, StepBatch, StepBatches
from ampft.engine.checkpoints.writing import write_tensors
from ampft.engine.ending import TimeLimit, end_training
from ampft.engine.first_step import FirstStepMonitor
from ampft.engine.optimizer import has_known_state
from ampft.engine.out_of_memory import OutOfMemoryRetries
from ampft.engine.step import StepOutcome, apply_step
from ampft.engine.trained_parameters import check_optimizer_updates_parameters
from ampft.errors import InputError, Preempted, TrainingStopped, quoted
from ampft.features.early_stopping import EarlyStopping
from ampft.features.feature import Feature, required_feature
from ampft.features.nonfinite_steps import NonfiniteStepMonitor
from ampft.features.resources import PeakMemoryMonitor, TrainingClock
from ampft.features.trackers import TrackerReporting, installed_trackers
from ampft.features.validations import Validations
from ampft.features.weights import AveragedWeights, BestModel
from ampft.files import check_disk_space
from ampft.machine import resident_peak
from ampft.models.training_mode import batch_norm_note
from ampft.models.weights import cast_in_place, weights_size
from ampft.own.examples import own_examples
from ampft.own.gradient import OwnLoss, check_is_sum, only_trained, own_gradient, share_state
from ampft.own.loop_changes import LoopChanges, check_objects
from ampft.own.parts import (
    LOWER_IS_BETTER,
    ONLY,
    OwnParts,
    OwnSettings,
    check_parameters,
    check_types,
)
from ampft.own.schedules import METRIC, ScheduleSource, make_schedules, rates_of
from ampft.precision.accelerator import (
    check_world_size,
    forget_accelerator,
    is_sharded,
    make_accelerator,
    numerics,
    resolved,
)
from ampft.precision.executed import dtype_name
from ampft.precision.resolve import FLAG, Precision, requested_mode
from ampft.runs.folder import check_creatable, check_output_folder, on_main_process
from ampft.runs.history import History
from ampft.runs.loop import Loop, as_checkpointed, open_loop
from ampft.runs.loop_state import LoopState, entered_in_order
from ampft.runs.manifest import HISTORY_NAME, NONFINITE_NAME
from ampft.runs.predictions import write_predictions
from ampft.runs.record import RunRecord, StepIdsHash, read_record
from ampft.runs.redaction import redact_secrets
from ampft.runs.results import publish, write_results
from ampft.runs.resume import find_resume_point, refuse_finished
from ampft.signals import StopRequested
from ampft.tasks.outcome import Outcome
from ampft.tasks.table import own_loop_task
from ampft.text.numbers import counted, in_epochs
from ampft.text.terminal import labelled, print_line

MODEL_NAME = "model.safetensors"
SPLIT_DEPENDENT = "split_dependent_loss"


class Training:
    """A training of any model with any loss, optimizer and examples.

        training = ampft.Training(model, optimizer, examples, precision="fp16", output_dir="runs/a")
        with training:
            for step_batch in training:
                training.step(lambda batch: summed_loss(model, batch))

    The loop continues where a run that stopped in `output_dir` was: the same call, repeated, gives
    the weights that an uninterrupted run gives, bit for bit, if what is random in it is drawn from
    the global generators of torch, numpy and Python.

    Inside the context, float32 products are exact and those of an emulated mode are emulated. The
    loss is computed in the precision. The model is moved to the device, and not wrapped: call it as
    you do without this class, also in several processes.
    """

    def __init__(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Optimizer | Mapping[str, Optimizer],
        examples: Any,
        *,
        precision: Precision | str | None = None,
        schedule: ScheduleSource | Mapping[str, ScheduleSource] = None,
        collate: Callable[[list[Any]], Any] | None = None,
        weights: Any = None,
        checkpointed: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        """Prepare a training; nothing is written before the context is entered.

        Args:
            model: The model, or several by name.
            optimizer: Its optimizer, or several by name, whose parameters differ.
            examples: Training examples: a list, a map-style data set, a `datasets.Dataset`, tensors
                by name or in a tuple, or a `DataLoader` of one.
            precision: A mode such as "fp16", or the result of `ampft.resolve`; None for the one of
                accelerate launch, or fp32.
            schedule: Schedule of the learning rate, made for the optimizer, or a function that
                makes it; by name for several optimizers. Applied steps, epochs or validations
                advance it, see `schedule_every`. None if the loop sets the rate, which is then only
                read.
            collate: Function that makes a batch of a list of examples; None for the loader's or
                torch's.
            weights: Weights of the examples; None for 1. The loss multiplies by them, and a step is
                divided by their sum. A loss that knows its weight only when it is computed returns
                it with its sum.
            checkpointed: Objects of the loop by name, such as a schedule that it advances itself,
                whose states are saved in checkpoints and restored.
            settings: Fields of `OwnSettings`; `output_dir` is required.

        Raises:
            InputError: A setting is invalid, the examples have no length or index, the precision is
                not available, replaces layers or is not the launcher's, or a parameter is not
                trained by one optimizer.
        """
        self._started, baseline = time.perf_counter(), resident_peak()
        args = OwnSettings.of(settings)
        size = getattr(examples, "batch_size", None) if isinstance(examples, DataLoader) else None
        if "batch_size" not in settings and size not in (None, args.batch_size):
            raise InputError(
                f"batch_size: the DataLoader has batches of {size}, and steps are of "
                f"{args.batch_size} examples by default. Pass batch_size={size}, or what one step "
                "has over all micro-batches and processes."
            )
        forget_accelerator()
        self.precision = _requested(precision)  # The precision, resolved for the device.
        check_output_folder(args.output_dir, overwrite=True)
        accelerator = make_accelerator(
            self.precision,
            log_with=None if args.report_to is None else list(installed_trackers(args.report_to)),
            project_dir=args.output_dir,
        )
        check_world_size(accelerator)
        if is_sharded(accelerator):
            raise InputError(
                "ampft.Training does not shard the model over the processes. Launch without FSDP, "
                "or unset ACCELERATE_USE_FSDP."
            )
        optimizers = optimizer if isinstance(optimizer, Mapping) else {ONLY: optimizer}
        check_types(model, optimizers)
        root = nn.ModuleDict(dict(model)) if isinstance(model, Mapping) else model
        _check_precision(self.precision, optimizers)
        check_parameters(root, optimizers)
        root.to(accelerator.device)
        cast_in_place(root, self.precision.storage_dtype)
        if accelerator.num_processes > 1:
            share_state(root)
        own = own_examples(examples, collate=collate, weights=weights, seed=args.seed)
        args = args.in_order_of(examples)
        batches = _step_batches(own, args, accelerator)
        steps = args.max_train_steps or args.epochs * len(batches)
        schedules = make_schedules(
            *(optimizers, schedule),
            every=args.schedule_every,
            epochs=-(-steps // len(batches)),
            steps=steps,
        )
        check_objects(checkpointed or {})
        self._parts = OwnParts(
            args=args,
            accelerator=accelerator,
            precision=self.precision,
            model=root,
            optimizers={n: accelerator.prepare_optimizer(o) for n, o in optimizers.items()},
            schedules=schedules,
            step_batches=batches,
        )
        if len(optimizers) == 1 and has_known_state(optimizers[next(iter(optimizers))]):
            check_optimizer_updates_parameters(root, self._parts.optimizer)
        self._changes = LoopChanges(accelerator, root, [*optimizers.values()], checkpointed or {})
        self._groups = sum(len(each.param_groups) for each in optimizers.values())
        self._rates: dict[str, tuple[float, ...]] = {}
        self._memory_before = baseline
        self._warnings: dict[str, str] = {}
        self._outcomes: dict[str, StepOutcome] = {}
        self._checked: set[str] = set()
        self._request: StopRequested | None = None
        self._is_evaluating = self._has_chosen = False

    # The loop ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Lock the folder, continue from its last checkpoint, and begin.

        Raises:
            AlreadyFinished: The run in the folder has finished.
            InputError: The folder holds another run, or cannot be written.
        """
        with ExitStack() as stack:
            stack.enter_context(_with_keywords())
            stack.enter_context(numerics(self.precision))
            parts, point = self._parts, find_resume_point(self._parts.args)
            if point is not None and point.is_finished:
                finished = read_record(point.output_dir)
                record = replace(parts.record, label_names=finished.label_names)
                refuse_finished(point, record)
            is_continued = point is not None
            on_main_process(partial(_check_folder, parts.args, is_continued=is_continued))
            if point is not None and point.checkpoint is not None:
                parts = self._parts = as_checkpointed(parts, point.checkpoint)
            if parts.accelerator.is_main_process:
                print_line("\n".join(plan_lines(parts)))
                if point is not None and point.checkpoint is not None:
                    cursor = point.checkpoint.manifest.cursor
                    text = f"{point.checkpoint.folder}: {counted(cursor.step, 'step')} done"
                    print_line(labelled("resume", text))
            self._loop: Loop[OwnParts] = stack.enter_context(
                open_loop(Loop, parts, self._new_state, point)
            )
            if self.precision.properties.stores_16_bits:
                for module in parts.models.values():
                    hook = module.register_forward_pre_hook(self._cast_inputs, with_kwargs=True)
                    stack.callback(hook.remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish a training whose loop has ended; record why another one stopped."""
        if error is None and not self._loop.finished:
            with self._stack:
                self.finish()
        else:
            self._stack.__exit__(kind, error, traceback)

    def __iter__(self) -> Iterator[StepBatch]:
        """Yield the step batches that are not done yet, epoch by epoch."""
        for epoch in self.epochs:
            yield from self.step_batches(epoch)

    @property
    def _entered(self) -> Loop[OwnParts]:
        """The loop.

        Raises:
            InputError: The context was not entered.
        """
        if not hasattr(self, "_loop"):
            raise InputError(
                "the training has not begun. Put the loop inside `with training:`, which locks the "
                "folder and continues a run that stopped."
            )
        return self._loop

    @property
    def epochs(self) -> Iterator[int]:
        """Epochs of the training, from 0, until it is over. The model then has its final weights.

        These are the weights of the best validation if there was one, or their average.
        """
        state, size = self._entered.state, len(self._parts.step_batches)
        done, rest = divmod(self._loop.steps, size)
        # The checkpoint of an epoch's last step is older than the code of the loop after it.
        unfinished = [done - 1] if state.restore_again is not None and done and not rest else []
        for epoch in chain(unfinished, self._loop.remaining_epochs()):
            self._train_again()
            if state.restore_again is not None:
                self._changes.rewind()
            self._changes.begin_epoch()
            yield epoch
        self._choose_weights()

    def step_batches(self, epoch: int) -> Iterator[StepBatch]:
        """Yield the step batches of an epoch that are not done yet, until the training is over."""
        state = self._entered.state
        if state.restore_again is not None:  # code of the loop ran since the checkpoint was loaded
            state.restore_again()
            state.restore_again = None
            self._changes.restore_changes()
        for step_batch in self._loop.step_batches(epoch):
            steps = self._loop.steps
            yield step_batch
            self._complete_step()
            if self._loop.steps == steps:
                raise InputError(
                    f"the loop went on from step {steps + 1} without training.step, which every "
                    "step needs. For a batch that should not count, return a loss of 0 for it."
                )
            if self._request is not None:
                raise self._request

    def step(self, loss: OwnLoss, update: str | None = None) -> StepOutcome:
        """Compute the exact gradient of the current step batch, and update the weights.

        Args:
            loss: Function that returns the loss of a batch: its sum over the examples, or this sum
                and its weight. The batch is what the collate function returns, on the device.
            update: Name of the optimizer that steps, if there are several. Only its parameters
                get gradients.

        Returns:
            The outcome: loss per unit of weight, norm of the gradient, loss scale, ...

        Raises:
            InputError: The loss is a mean or not one float32 number, or `update` is unknown.
            StepStopped: The loss or the gradient is not finite.
            PrecisionContradicted: The products were not in the precision.
        """
        parts, loop, batch = self._parts, self._entered, self._entered.current_batch
        names = list(parts.optimizers)
        name = names[0] if update is None and len(names) == 1 else update
        if name not in names:
            several = f"Pass one of {', '.join(names)}." if len(names) > 1 else "Leave it out."
            raise InputError(f"update: received {update!r}. {several}")
        if batch is None:
            raise InputError(
                "step: no batch is being trained. Call it in a loop such as `for step_batch in "
                "training:`."
            )
        if not callable(loss):
            raise InputError(
                f"loss: received {type(loss).__name__}. Pass a function that takes a batch, such as"
                " `lambda batch: summed_loss(model, batch)`."
            )
        optimizer, schedule = parts.optimizers[name], parts.schedules[name]
        self._check_groups()
        self._rates[name] = rates_of(optimizer.optimizer)
        trained = [
            p for group in optimizer.param_groups for p in group["params"] if p.requires_grad
        ]
        for parameter in trained:
            parameter.grad = None  # of passes outside of the training
        with only_trained(parts.model, trained) if len(names) > 1 else ExitStack():
            self._check_loss(name, loss, batch)
            with loop.measured():
                losses = loop.gradient(
                    lambda cut: own_gradient(
                        parts.accelerator, parts.precision, loss, cut, trained
                    ),
                    batch,
                )
                outcome = apply_step(
                    parts.accelerator,
                    nn.ParameterList(trained) if len(names) > 1 else parts.model,
                    optimizer,
                    schedule,
                    losses=losses,
                    max_grad_norm=parts.args.max_grad_norm or None,
                    skip_nonfinite=loop.may_skip_nonfinite,
                    votes=loop.votes,
                )
        optimizer.zero_grad()
        if parts.accelerator.num_processes > 1:  # an evaluation of each process reads them
            share_state(parts.model, buffers_only=True)
        earlier = self._outcomes.get(name)
        was_skipped = earlier is not None and earlier.skipped
        self._outcomes[name] = replace(outcome, skipped=True) if was_skipped else outcome
        return outcome

    # Validation and results ------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self._parts.accelerator.device

    @property
    def steps(self) -> int:
        """Optimizer steps so far, skipped ones included."""
        self._complete_step()
        return self._loop.steps

    @property
    def validation_is_due(self) -> bool:
        """Whether to validate now: after an epoch, every `eval_steps`, and after the last step."""
        self._complete_step()
        validations = required_feature(self._loop.state.features, Validations)
        return validations.is_due(self._loop.steps, self._loop.is_over)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Return a context for an evaluation, in which the models predict as they will be saved.

        They are in evaluation mode, without gradients, in the precision, and during the training
        with the averaged weights if there is an average.
        """
        self._complete_step()
        state, modes = self._loop.state, [m.training for m in self._parts.model.modules()]
        contexts: list[AbstractContextManager[None]] = []
        if not self._has_chosen:
            contexts = [feature.around_evaluation() for feature in state.features]
        self._parts.model.eval()
        self._is_evaluating = True
        try:
            with entered_in_order(contexts), torch.no_grad(), self.precision.autocast():
                yield
        finally:
            self._is_evaluating = False
            for module, mode in zip(self._parts.model.modules(), modes, strict=True):
                module.training = mode
            state.history.resume_clock()

    def validated(self, **metrics: float) -> None:
        """Record a validation; keep the weights if it is the best so far; stop early if asked to.

        All processes call it, and the metrics of the main process count.

        Args:
            metrics: Metrics of the validation by name.

        Raises:
            InputError: The weights are averaged, and it is not called inside `evaluation`.
        """
        self._complete_step()
        state, args = self._loop.state, self._parts.args
        if args.ema_decay is not None and not self._is_evaluating:
            raise InputError(
                "validated: with ema_decay, the averaged weights are validated and saved. Compute "
                "the metrics and call it inside `with training.evaluation():`."
            )
        shared = [{name: _metric("validated", name, value) for name, value in metrics.items()}]
        if not metrics:
            raise InputError("validated: no metric was passed. Pass one, such as accuracy=0.9.")
        if self._parts.accelerator.num_processes > 1:
            broadcast_object_list(shared)
        name = args.metric_for_best_model or next(iter(shared[0]), "")
        for needed in (name, args.schedule_metric or name):
            if needed not in shared[0]:
                raise InputError(f"validated: the metric {needed!r} is missing. Pass {needed}=...")
        validations = required_feature(state.features, Validations)
        higher = args.greater_is_better
        if higher is None:
            last = re.split(r"[\W_]", name.casefold())[-1]
            higher = not (last.endswith(("loss", "error")) or last in LOWER_IS_BETTER)
        validations.best.metric = _Selected(name, higher)
        self._follow(shared[0], name, higher)
        finite = {n: v if math.isfinite(v) else None for n, v in shared[0].items()}
        validations.add(self._loop.steps, finite)
        state.history.resume_clock()

    def finish(self, predictions: Any = None, **metrics: float) -> None:
        """Save the model, and write the results and the record. Leaving the context does it too.

        Args:
            predictions: Predictions of the final split, such as `ampft.Predictions.from_logits`;
                with them, `ampft report` and `ampft compare` read the run like any other.
            metrics: Other metrics of the final split, by name.

        Raises:
            InputError: The predictions have one of these metrics.
        """
        if predictions is not None and not hasattr(predictions, "metrics"):
            raise InputError(
                f"finish: received {type(predictions).__name__} as predictions. Pass "
                "ampft.Predictions.from_logits(logits, labels, label_names), or metrics by name."
            )
        computed = {} if predictions is None else predictions.metrics()
        metrics = {n: _metric("finish", n, value) for n, value in metrics.items()}
        if both := sorted(computed.keys() & metrics.keys()):
            raise InputError(
                f"finish: {', '.join(both)} is computed from the predictions. Leave it out, or "
                "give yours another name."
            )
        self._complete_step()
        self._choose_weights()
        loop, parts = self._loop, self._parts
        state, folder = loop.state, loop.folder
        loop.checkpoints.wait()
        values = {**computed, **metrics}
        numbers = {n: v for n, v in values.items() if v is not None and math.isfinite(v)}
        if parts.accelerator.trackers:
            parts.accelerator.log(numbers, step=loop.steps)
        record = self._final_record(predictions, values)
        end_training(parts.accelerator)
        if folder is None:
            loop.finished = True
            return
        state.history.verify()
        stage = folder.stage()
        check_disk_space(folder.path, weights_size(parts.model), "saving the model")
        for feature in state.features:
            feature.save(stage, parts.model)
        write_tensors(stage / MODEL_NAME, parts.model.state_dict())
        required_feature(state.features, Validations).best.path.unlink(missing_ok=True)
        if predictions is None:
            publish(folder, record)
        else:
            write_results(folder, record, predictions, _write_predictions)
        loop.finished = True
        state.history.close()
        figures = ", ".join(f"{name} {value:z.4f}" for name, value in numbers.items())
        lines = [("warning", text) for text in record.warnings.values()]
        lines += [("stopped", record.reason)] if record.reason else []
        lines.append(("wrote", f"{folder.path}: model, history, record"))
        lines += [("result", figures)] if figures else []
        for name, text in lines:
            print_line(labelled(name, text))

    # Parts of it -----------------------------------------------------------------------------

    def _train_again(self) -> None:
        """Put models in evaluation mode into training mode, but none that is not trained.

        Parts that the loop has put into evaluation mode stay in it.
        """
        for model in self._parts.models.values():
            if not model.training and any(p.requires_grad for p in model.parameters()):
                model.train()

    def _check_groups(self) -> None:
        """Check the parameters again if the loop has added a group to an optimizer."""
        optimizers = {name: each.optimizer for name, each in self._parts.optimizers.items()}
        number = sum(len(each.param_groups) for each in optimizers.values())
        if number == self._groups:
            return
        if len(optimizers) > 1 or number < self._groups:
            raise InputError(
                f"optimizer: its number of groups of parameters went from {self._groups} to "
                f"{number}. A group can be added to a single optimizer. Otherwise, give the "
                "optimizers all parameters at the start, those that train later with "
                "requires_grad_(False)."
            )
        check_parameters(self._parts.model, optimizers)
        self._groups = number

    def _follow(self, metrics: Mapping[str, float], name: str, higher: bool) -> None:
        """Advance the schedules that follow a metric."""
        chosen = self._parts.args.schedule_metric
        for each in self._parts.schedules.values():
            if each.every != METRIC:
                continue
            mode = getattr(each.schedule, "mode", None)
            if chosen is None and mode != ("max" if higher else "min"):
                raise InputError(
                    f"schedule: ReduceLROnPlateau(mode={mode!r}) would follow {name!r}, where "
                    f"{'higher' if higher else 'lower'} is better. Pass the other mode, or the "
                    "metric that it follows as schedule_metric=..., and another output_dir or "
                    "overwrite_output_dir=True, because this run has begun."
                )
            each.follow(metrics[chosen or name])

    def _complete_step(self) -> None:
        """Add the current step to the history, after its updates; a repeated call does nothing."""
        if not self._outcomes:
            return
        outcomes, self._outcomes = self._outcomes, {}
        last = [*outcomes.values()][-1]
        joint = replace(
            last,
            loss=sum(each.loss for each in outcomes.values()),
            grad_norm=math.hypot(*(each.grad_norm for each in outcomes.values())),
            skipped=any(each.skipped for each in outcomes.values()),
            learning_rate=max(each.learning_rate for each in outcomes.values()),
        )
        columns: dict[str, float] = {}
        if len(self._parts.optimizers) > 1:
            columns = {f"loss/{name}": each.loss for name, each in outcomes.items()}
        rates = [rate for name in outcomes for rate in self._rates[name]]
        if len(set(rates)) > 1:
            columns |= {f"learning_rate/{index}": rate for index, rate in enumerate(rates)}
        try:
            self._loop.record(joint, columns)
        except StopRequested as request:  # after the validation that may be due now
            self._request = request
        batch = self._loop.current_batch
        if batch is not None and batch.step + 1 == len(self._parts.step_batches):
            for each in self._parts.schedules.values():
                each.end_epoch()

    def _choose_weights(self) -> None:
        if not self._has_chosen:
            self._has_chosen = True
            self._loop.choose_weights()
            self._parts.model.eval()

    def _check_loss(self, name: str, loss: OwnLoss, batch: StepBatch) -> None:
        """Check on the first step that a loss is a sum."""
        examples, ids = self._parts.step_batches.examples, batch.effective_ids[:8]
        if name in self._checked or not self._parts.args.check_loss or len(ids) < 2:
            return
        self._checked.add(name)
        if self._loop.steps:  # it was checked before the run was continued
            return

        def cut(part: Any) -> MicroBatch:
            return MicroBatch(part, examples.collate(part), counted=True, is_last=True)

        half = len(ids) // 2
        warning = check_is_sum(
            self._parts.accelerator,
            self.precision,
            self._parts.model,
            loss,
            [cut(ids[:half]), cut(ids[half:])],
            cut(ids),
        )
        if warning is not None:
            self._warnings[SPLIT_DEPENDENT] = warning
            self._loop.state.history.write(labelled("warning", warning))

    def _new_state(self) -> LoopState[OwnParts]:
        parts, args = self._parts, self._parts.args
        accelerator = parts.accelerator
        path = parts.folder / HISTORY_NAME if accelerator.is_main_process else None
        history = History(path, accelerator, parts.total_steps)
        return LoopState(
            parts,
            history,
            self._features(history),
            FirstStepMonitor(parts.precision),
            OutOfMemoryRetries(
                parts.model,
                parts.step_batches,
                can_repeat=args.auto_micro_batch and accelerator.num_processes == 1,
                advice="Raise micro_batches, which keeps the batch and its gradient.",
                write=history.write,
            ),
            StepIdsHash(),
            parts.record,
        )

    def _features(self, history: History) -> tuple[Feature, ...]:
        parts, args, accelerator = self._parts, self._parts.args, self._parts.accelerator
        average = None
        if args.ema_decay is not None:
            average = AveragedWeights(parts.model, args.ema_decay)
        name = args.metric_for_best_model or "loss"
        stopping = EarlyStopping(args.early_stopping_patience)
        best = BestModel(parts.folder, _Selected(name, False), stopping, average=average)
        seconds = None if args.max_time is None else parse_duration("max_time", args.max_time)
        features = (
            TrackerReporting(
                accelerator, redact_secrets(args.recorded()) if accelerator.log_with else None
            ),
            PeakMemoryMonitor(accelerator.device, self._memory_before),
            NonfiniteStepMonitor(
                parts.folder / NONFINITE_NAME,
                accelerator,
                parts.model,
                mode=parts.precision.mode,
                skips=args.on_nonfinite == "skip",
                write=history.write,
                saves=False,
            ),
            average,
            self._changes,
            Validations(
                best,
                {},
                accelerator,
                parts.model,
                history.write,
                len(parts.step_batches),
                args.eval_steps,
                loads_best=args.load_best_model_at_end,
            ),
            TrainingClock(TimeLimit(seconds, self._started), args.max_time, parts.total_steps),
        )
        return tuple(feature for feature in features if feature is not None)

    def _final_record(self, predictions: Any, metrics: Mapping[str, Any]) -> RunRecord:
        loop, parts = self._loop, self._parts
        state, batches = loop.state, loop.state.retries.step_batches
        record = state.record("finished")
        if not loop.is_over:
            reason = f"the loop was left after step {loop.steps} of {parts.total_steps}"
            record = replace(record, reason=reason)
        note = batch_norm_note(
            parts.model, micro_batches=batches.micro_batches, processes=batches.world_size
        )
        warnings = {**record.warnings, **self._warnings}
        if any(s.every == METRIC and not s.has_moved for s in parts.schedules.values()):
            warnings["schedule"] = (
                "ReduceLROnPlateau was never advanced, because training.validated(...) was not "
                "called."
            )
        timings = state.timings() if loop.steps else {}
        for feature in state.features:
            timings |= feature.timings(timings)
        record = replace(
            record,
            timings=timings,
            warnings=warnings if note is None else {**warnings, "batch_norm": f"{note}."},
            metrics=metrics,
        )
        if predictions is None:
            return record
        examples = {**record.data.examples, predictions.split: len(predictions)}
        return replace(
            record,
            task=own_loop_task(predictions.kind),
            label_names=predictions.label_names,
            data=replace(record.data, examples=examples),
            metrics={**metrics, "split": predictions.split, "selected": False},
        )

    def _cast_inputs(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give a model that stores 16 bits its floating-point inputs in their dtype."""
        del module
        dtype = self.precision.storage_dtype

        def cast(value: Any) -> Any:
            is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.to(dtype) if is_float else value

        return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}


class _Selected:
    """The metric that selects the best weights."""

    def __init__(self, name: str, higher_is_better: bool) -> None:
        self.name, self.higher_is_better = name, higher_is_better


def _write_predictions(path: Path, predictions: Outcome) -> None:
    write_predictions(path, predictions, lambda rows: {})


def _step_batches(own: Any, args: OwnSettings, accelerator: Accelerator) -> StepBatches:
    """Return the step batches of this process.

    Raises:
        InputError: There are none.
    """
    batches = StepBatches(
        own,
        effective_batch_size=args.batch_size,
        micro_batches=args.micro_batches,
        seed=args.seed,
        rank=accelerator.process_index,
        world_size=accelerator.num_processes,
        num_workers=args.dataloader_num_workers,
        pinned=accelerator.device.type == "cuda" and getattr(own, "is_static", False),
        shuffled=bool(args.shuffle),
        drops_last=bool(args.drop_last),
    )
    if not len(batches):
        raise InputError(
            f"drop_last: it leaves out all of the {len(own.weights)} examples, which are fewer "
            f"than a batch of {args.batch_size}. Pass drop_last=False, or a smaller batch_size."
        )
    return batches


def _metric(where: str, name: str, value: Any) -> float:
    """Return a metric as a number.

    Raises:
        InputError: It is not one.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several numbers
        raise InputError(f"{where}: received {quoted(value)} as {name}. Pass a number.") from None


@contextmanager
def _with_keywords() -> Iterator[None]:
    """Let messages name keyword arguments in place of flags."""
    try:
        yield
    except (InputError, TrainingStopped, Preempted) as error:
        error.args = (with_keyword_names(str(error)), *error.args[1:])
        raise


def _requested(precision: Precision | str | None) -> Precision:
    """Return the precision that was asked for, in the program or of accelerate launch.

    Raises:
        InputError: The two differ.
    """
    mode = precision.mode if isinstance(precision, Precision) else precision
    try:
        mode = requested_mode(mode, os.environ)
    except InputError as error:
        raise InputError(str(error).replace(FLAG, "precision")) from None
    return precision if isinstance(precision, Precision) else resolved(mode)


def _check_precision(precision: Precision, optimizers: Mapping[str, Optimizer]) -> None:
    """Check that an own loop can train in a precision.

    Raises:
        InputError: It replaces layers, or rounds updates as these optimizers do not.
    """
    if precision.properties.replaces_layers:
        raise InputError(
            f"precision {precision.mode}: it replaces layers of the model, which ampft.Training "
            "does not do. Use bf16 or fp16."
        )
    wanted = precision.rounding
    if wanted not in (None, "nearest") and any(
        getattr(each, "rounding", None) != wanted for each in optimizers.values()
    ):
        raise InputError(
            f"precision {precision.mode}: its optimizer rounds updates as torch's do not. Use "
            f"bf16-true, or an optimizer of ampft.make_optimizer for this precision."
        )


def _check_folder(args: OwnSettings, *, is_continued: bool) -> None:
    overwrite = args.overwrite_output_dir or is_continued
    check_output_folder(args.output_dir, overwrite=overwrite)
    check_creatable(Path(args.output_dir))


def plan_lines(parts: OwnParts) -> list[str]:
    """Return the lines that an own loop prints before its first step."""
    batches, steps, precision = parts.step_batches, parts.total_steps, parts.precision
    device = parts.accelerator.device
    weights = parts.record.model.parameters
    shown = f"{weights / 1e6:.3g} M" if weights >= 100_000 else f"{weights:,}"
    return [
        labelled("device", f"{device.type}, {counted(batches.world_size, 'process')}"),
        labelled("precision", f"{precision.mode}, {precision.execution}: {precision.reason}"),
        labelled(
            "model",
            f"{parts.record.model.name}, {shown} {dtype_name(precision.storage_dtype)} weights",
        ),
        labelled("data", f"{counted(len(batches.examples.weights), 'example')}, {_order(parts)}"),
        labelled(
            "steps",
            f"{steps} {in_epochs(steps, len(batches))}; batch {batches.effective_batch_size} in "
            f"{counted(batches.world_size, 'process')} x "
            f"{counted(batches.micro_batches, 'micro-batch')}",
        ),
        labelled("update", *_updates(parts)),
    ]


def _order(parts: OwnParts) -> str:
    """Return in which order examples are read, and what becomes of a smaller last batch."""
    args, batches = parts.args, parts.step_batches
    order = f"shuffled by seed {args.seed} in each epoch" if args.shuffle else "in their order"
    rest = len(batches.examples.weights) % batches.effective_batch_size
    if not rest:
        return order
    return f"{order}; the last batch of {rest} is {'left out' if args.drop_last else 'kept'}"


def _updates(parts: OwnParts) -> list[str]:
    """Return what happens to gradients, rates and weights besides what the loop does."""
    args = parts.args
    norm = args.max_grad_norm
    clipping = f"gradient clipped to norm {norm:g}" if norm else "gradient not clipped"
    lines = [
        f"{'' if name == ONLY else f'{name}: '}learning rate {each}"
        for name, each in parts.schedules.items()
    ]
    lines[0] = f"{clipping}; {lines[0]}"
    if args.ema_decay is not None:
        lines.append(
            f"weights averaged with decay {args.ema_decay:g}, or (1 + t) / (10 + t) in step t if "
            "that is less"
        )
    kept = "best validation, if there is one" if args.load_best_model_at_end else "last step"
    lines.append(f"the final weights are from the {kept}")
    return lines
