"""One run: everything around the training loop, so that a recipe shows only the loop."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampft.data.groups import dependent_groups
from ampft.data.steps import StepBatch
from ampft.errors import InputError, PrecisionContradicted, Preempted
from ampft.evaluation.baseline import baseline_summaries
from ampft.evaluation.evaluate import evaluate
from ampft.evaluation.float32 import in_float32
from ampft.evaluation.sanity import (
    chance_loss,
    constant_outcome,
    constant_summary,
    loss_warnings,
    outcome_warnings,
    stop_if_destroyed,
    stop_if_far_above_chance,
    validation_warnings,
)
from ampft.features.trackers import track_results
from ampft.features.utilisation import flops_per_token, measure_utilisation
from ampft.files import check_disk_space
from ampft.models.adapters import merge_adapters
from ampft.models.sharded import whole_weights
from ampft.models.trained_part import save_trained
from ampft.models.weights import weights_size
from ampft.precision.compilation import compilation_warnings
from ampft.precision.executed import ExecutedDtypes, contradiction
from ampft.precision.float32_modules import never_called
from ampft.precision.modes import is_fp32
from ampft.precision.sharding import is_sharded
from ampft.runs.checkpointing import Checkpointing
from ampft.runs.features import entered
from ampft.runs.folder import RunFolder
from ampft.runs.history import write_csv
from ampft.runs.manifest import HISTORY_NAME, PICTURES_NAME
from ampft.runs.plan import batch_norm_warnings
from ampft.runs.prepared import Prepared
from ampft.runs.push import push_run
from ampft.runs.record import (
    RunRecord,
    write_record,
)
from ampft.runs.results import write_results
from ampft.runs.show import report_with_heading, result_line
from ampft.runs.state import RunState
from ampft.tasks.outcome import Outcome, TunableOutcome
from ampft.text.terminal import labelled, print_line
from ampft.training.checkpoints.tensors import copied_to_cpu
from ampft.training.ending import end_training
from ampft.training.launch_bound import launch_bound_note, measure_growth
from ampft.training.step import StepOutcome, StepStopped, shared_autocast_cache
from ampft.training.stopping import StopRequest, StopRequested
from ampft.training.waiting import waiting_note


@dataclass
class Run:
    """A training with its evaluation; open it with `open_run`.

    Attributes:
        prepared: Everything built before the first step.
        folder: Output folder, on the main process; None on the others.
        initial_record: Record of the run at its start.
        finished: Whether the results are written.
        state: Everything that changes while the run trains, and that a checkpoint saves.
        checkpoints: Writes the checkpoints.
        stop: Request of a signal to stop.
        last_weights: Weights after the last step, while the best ones are evaluated in their place.
        current_batch: Step batch of the current step.
        tuned: Predictions of the validation split with the thresholds of the final report.
    """

    prepared: Prepared
    folder: RunFolder | None
    initial_record: RunRecord
    state: RunState
    checkpoints: Checkpointing
    stop: StopRequest
    last_weights: dict[str, Tensor] | None = None
    finished: bool = False
    current_batch: StepBatch | None = None
    tuned: TunableOutcome | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps so far, skipped ones included."""
        return self.state.history.steps

    @property
    def is_over(self) -> bool:
        """Whether the training has ended: all steps are done, or it stops early."""
        is_complete = self.steps >= self.prepared.total_steps
        return (
            is_complete
            or self.state.validations.best.should_stop
            or self.state.time_limit.is_reached
        )

    @property
    def epochs(self) -> Iterator[int]:
        """Epochs of the training, from 0, until it is over."""
        self.validate(self.prepared.model)  # if a stop prevented it
        for epoch in itertools.count(self.steps // len(self.state.retries.step_batches)):
            if self.is_over:
                return
            yield epoch

    def step_batches(self, epoch: int) -> Iterator[StepBatch]:
        """Yield the step batches of an epoch that are not done yet, until the training is over."""
        first = epoch * len(self.state.retries.step_batches)
        steps = self.state.retries.step_batches.epoch(
            epoch, start=self.steps - first, stop=self.prepared.total_steps - first
        )
        for step_batch in steps:
            self.current_batch = step_batch
            yield step_batch
            if self.checkpoints.after_step():
                self.stop.poll()
            if self.is_over:
                return

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the first optimizer step; record a step that stops the run.

        Raises:
            StepStopped: The step cannot be applied.
            PrecisionContradicted: Its dtypes do not match the requested mode.
        """
        is_first = self.state.first_step.executed is None
        try:
            with self.state.first_step.measured(self.prepared.model, self.prepared.optimizer):
                yield
        except StepStopped as error:
            self._add(error.outcome, ends_run=True)
            raise
        if is_first and self.state.first_step.executed is not None:
            self._check_executed(self.state.first_step.executed)

    def gradient(
        self, compute: Callable[[StepBatch], list[Tensor]], step_batch: StepBatch
    ) -> list[Tensor]:
        """Compute the gradient of a step; if memory runs out, again in smaller micro-batches.

        Args:
            compute: Function that accumulates the gradient of a step batch over its micro-batches
                and returns the result of `ampft.backward` for each.
            step_batch: Step batch of this process.

        Raises:
            OutOfMemory: The step does not fit and cannot be repeated in smaller micro-batches.
        """

        def compute_with_shared_cache(step_batch: StepBatch) -> list[Tensor]:
            with shared_autocast_cache(self.prepared.accelerator, self.prepared.model, step_batch):
                losses = compute(step_batch)
                torch.clear_autocast_cache()  # because the weights will change
                return losses

        self.state.nonfinite.begin_step()
        with entered(f.around_gradient(self.steps + 1) for f in self.state.features):
            self.current_batch, losses = self.state.retries.gradient(
                compute_with_shared_cache, step_batch
            )
        self.state.nonfinite.losses = losses
        return losses

    @property
    def may_skip_nonfinite(self) -> bool:
        """Whether to skip a step that is not finite, without a scaler, instead of stopping."""
        return self.state.nonfinite.may_skip

    def record(self, outcome: StepOutcome) -> None:
        """Add the current optimizer step to the history."""
        self._add(outcome, ends_run=False)
        self.stop.poll(self.state.time_limit)

    def _add(self, outcome: StepOutcome, *, ends_run: bool) -> None:
        step_batch = self.current_batch
        assert step_batch is not None
        self.state.step_ids.update(step_batch.effective_ids)
        alarm = self.state.nonfinite.add(self.steps + 1, step_batch, outcome, ends_run=ends_run)
        peak = self.state.peak_memory.peak
        memory = None if peak is None else peak / 2**20
        columns: dict[str, float] = {}
        for feature in self.state.features:
            columns |= feature.after_step(outcome)
        self.state.history.record(step_batch, outcome, memory, alarm=alarm, columns=columns)

    def validate(self, model: nn.Module) -> None:
        """Evaluate on the validation split after an epoch, or every `--eval_steps` steps.

        Raises:
            TrainingStopped: The loss is far above chance.
        """
        prepared = self.prepared
        if not prepared.selects_best or not self.state.validations.is_due(self.steps, self.is_over):
            return
        with entered(feature.around_evaluation() for feature in self.state.features):
            outcome = self._predict(model, "validation")
            line = self.state.validations.add(
                all_metrics(outcome), self.steps, prepared.task.problem, prepared.accelerator, model
            )
        self.state.history.write(line)
        earlier = [part.metrics for part in self.state.validations.parts[:-1]]
        stop_if_far_above_chance(prepared.task, outcome, self.state.history.losses, earlier)
        self.state.history.resume_clock()

    def finish(self, model: nn.Module) -> None:
        """Evaluate the best model on the final split; write and print the results."""
        prepared = self.prepared
        self.validate(model)  # if a stop prevented it
        self.checkpoints.wait()
        flops = flops_per_token(self._plain(model))  # before adapters are merged
        may_stop = self._restore_best(model)
        split = prepared.final_split
        outcome = self._predict(model, split, may_stop=may_stop)
        memory = (
            self.state.memory_by_purpose()
        )  # before predicting in fp32, which only comparisons do
        outcome_fp32 = self._predict_fp32(model, split)
        constant = constant_outcome(prepared.task, split)
        warnings = {
            **loss_warnings(self.state.history.losses, chance_loss(prepared.task)),
            **validation_warnings([part.metrics for part in self.state.validations.parts]),
            **outcome_warnings(outcome, constant),
            **self.state.warnings(),
            **compilation_warnings(prepared.accelerator),
            **batch_norm_warnings(prepared.loaded.model, self.state.retries.step_batches),
        }
        stop_if_destroyed(warnings)
        weights = whole_weights(model)  # gathered from all processes
        track_results(prepared.accelerator, outcome, self.steps)
        end_training(prepared.accelerator)
        if self.folder is None:
            return
        self.state.history.verify()
        self._save(model, weights)
        prepared.task.save_pictures(self.folder.stage() / PICTURES_NAME, outcome)
        self.state.validations.best.path.unlink(missing_ok=True)
        device = prepared.accelerator.device
        baselines = (
            baseline_summaries(prepared.task, split, device) if prepared.args.baseline else ()
        )
        report = outcome.report()
        metrics = self._metrics(outcome)
        metrics_fp32 = metrics if prepared.args.evaluate_fp32 else None
        if outcome_fp32 is not None:
            metrics_fp32 = self._metrics(outcome_fp32)
        record = replace(
            self.state.record(self.initial_record, "finished"),
            timings={
                **self._timings(model, flops),
                "total_seconds": self.state.total_seconds,
                "checkpoint_seconds": self.state.checkpoint_seconds,
                "covers": self.state.timing_note,
            },
            memory=memory,
            metrics=metrics,
            metrics_chance=constant.metrics(),
            metrics_fp32=metrics_fp32,
            warnings=warnings,
            reason=self._early_end(),
        )
        write_results(
            self.folder,
            record,
            report,
            outcome,
            partial(prepared.task.references, split),
            outcome_fp32=outcome_fp32,
            origins=partial(prepared.task.origins, split),
            groups=dependent_groups(prepared.task.data, split),
        )
        self.finished = True
        self.state.history.close()
        print_line(f"\n{report_with_heading(report, selected=metrics['selected'])}")
        print_line(labelled("chance", constant_summary(prepared.task, constant)))
        for line in baselines:
            print_line(labelled("baseline", line))
        self._print_end(self.folder.path, record)

    def _print_end(self, folder: Path, record: RunRecord) -> None:
        """Print warnings, where the results are, and the last line; push them if asked to."""
        for warning in record.warnings.values():
            print_line(labelled("warning", warning))
        if record.reason:
            print_line(labelled("stopped", record.reason))
        if self.prepared.loaded.is_random:
            print_line(
                labelled(
                    "note",
                    "the model began with random weights, which bounds the result: with little "
                    "data, a pretrained one (--model_name_or_path) is usually far better",
                )
            )
        if note := launch_bound_note(record.timings):
            print_line(labelled("speed", note))
        workers, kind = self.prepared.args.dataloader_num_workers, self.prepared.task.row.kind
        if note := waiting_note(record.timings, workers, has_files=kind.has_files):
            print_line(labelled("waiting", note))
        print_line(labelled("wrote", f"{folder}: model, report, predictions, history, record"))
        print_line(result_line(record))
        args = self.prepared.args
        if args.push_to_hub:
            url = push_run(
                folder,
                hub_model_id=args.hub_model_id,
                private=args.hub_private_repo,
                flag="--push_to_hub",
            )
            print_line(labelled("pushed", url))

    def _early_end(self) -> str | None:
        """Return why a run ended before its last step; None if it did not."""
        total = self.prepared.total_steps
        if not self.state.time_limit.is_reached or self.steps >= total:
            return None
        return (
            f"--max_time {self.prepared.args.max_time} was reached after step {self.steps} of "
            f"{total}. The learning rate schedule was planned for {total} steps."
        )

    def _restore_best(self, model: nn.Module) -> bool:
        """Load the best weights; return whether the last ones are kept for a stop by a signal.

        With `--merge_lora` the adapters are merged here, so that the saved model is evaluated.
        """
        best, accelerator = self.state.validations.best, self.prepared.accelerator
        average, has_last = self.state.average, best.step in (None, self.steps)
        keeps = has_last or not is_sharded(accelerator)
        if keeps and not (has_last and average is None):
            self.last_weights = copied_to_cpu(self.state.model_tensors())
        if best.step is not None:
            best.restore(accelerator, model)
        elif average is not None:
            average.apply()
        if self.prepared.args.merge_lora:
            merge_adapters(accelerator.unwrap_model(model, keep_torch_compile=False))
            keeps = False
        return keeps

    def preempt(self, request: StopRequested) -> Preempted:
        """Write a checkpoint, and return how the run continues. All processes call it together.

        Raises:
            SystemExit: Runs in this precision cannot continue.
        """
        accelerator = self.prepared.accelerator
        if not self.prepared.can_resume:
            raise SystemExit(128 + request.signal)
        if self.last_weights is not None:
            model = accelerator.unwrap_model(self.prepared.model, keep_torch_compile=False)
            model.load_state_dict(self.last_weights)
        self.checkpoints.save(str(request), wait=True)
        reason = f"{request} after step {self.steps} of {self.prepared.total_steps}"
        self.record_stop("preempted", reason)
        accelerator.wait_for_everyone()  # launchers end the others when one process has ended
        end_training(accelerator)
        output_dir = self.state.validations.best.output_dir
        return Preempted(
            f"{labelled('stopped', f'{reason}; a checkpoint is in {output_dir}')}\n"
            f"continue   repeat the command with --output_dir {output_dir} "
            "--resume_from_checkpoint latest"
        )

    def record_stop(self, status: str, reason: str) -> None:
        """Record why the run stopped early; the other files in its folder remain."""
        if self.folder is None or self.finished:
            return
        if not self.folder.staged:
            self.folder.discard()
        with contextlib.suppress(OSError, InputError):  # the first error is reported
            self.folder.check_record()
            files = self.folder.files()
            if files.get(HISTORY_NAME) != self.state.history.position():  # it is not this run's own
                files.pop(HISTORY_NAME, None)
            record = replace(
                self.state.record(self.initial_record, status), reason=reason, files=files
            )
            write_record(self.folder, record)

    def _check_executed(self, executed: ExecutedDtypes) -> None:
        prepared = self.prepared
        message = contradiction(prepared.precision, executed) or never_called(prepared.model)
        if message is not None:
            raise PrecisionContradicted(message)
        self.state.history.write(labelled("ran", executed.summary()))

    def _save(self, model: nn.Module, weights: dict[str, Tensor] | None) -> None:
        assert self.folder is not None
        accelerator = self.prepared.accelerator
        unwrapped: Any = accelerator.unwrap_model(model, keep_torch_compile=False)
        stage = self.folder.stage()
        check_disk_space(self.folder.path, weights_size(unwrapped), "saving the model")
        if self.tuned is not None:
            unwrapped.config.update(self.tuned.decision_settings())
        save_trained(unwrapped, stage, self.prepared.loaded, weights)
        for feature in self.state.features:
            feature.save(stage)
        self.prepared.task.save_processor(stage)
        if self.prepared.args.history_csv:
            write_csv(self.folder / HISTORY_NAME, stage / "history.csv")

    def _predict(
        self, model: nn.Module, split: str, *, in_mode: bool = True, may_stop: bool = True
    ) -> Outcome:
        """Predict a split; in the mode of the run, the dtypes of the first batch are checked."""
        checked = self.state.first_step.checked(f"the evaluation on {split}") if in_mode else None
        outcome = evaluate(
            self.prepared.accelerator,
            model,
            self.prepared.task,
            split,
            batch_size=self.prepared.args.per_device_eval_batch_size,
            first_batch=checked,
            poll=self.stop.poll if may_stop else None,
        )
        if not self.prepared.args.tune_thresholds:
            return outcome
        assert isinstance(outcome, TunableOutcome), "checked with the other arguments"
        if split == "validation":
            return outcome.tuned()
        if self.tuned is None:  # once, by the weights that are saved
            tuned = self._predict(model, "validation", may_stop=may_stop)
            assert isinstance(tuned, TunableOutcome)
            self.tuned = tuned
        return outcome.decided_like(self.tuned)

    def _predict_fp32(self, model: nn.Module, split: str) -> Outcome | None:
        """Predict in fp32 if `--evaluate_fp32` is set and the run was not in fp32 already."""
        prepared = self.prepared
        if not prepared.args.evaluate_fp32 or is_fp32(prepared.precision.mode):
            return None
        with in_float32(prepared.accelerator, model, prepared.precision) as plain:
            return self._predict(plain, split, in_mode=False, may_stop=False)

    def _metrics(self, outcome: Outcome) -> dict[str, Any]:
        """Return the metrics of the final split, and whether it also selected the epoch."""
        selected = self.prepared.selects_best and outcome.split == "validation"
        return {**all_metrics(outcome), "split": outcome.split, "selected": selected}

    def _plain(self, model: nn.Module) -> Any:
        return self.prepared.accelerator.unwrap_model(model, keep_torch_compile=False)

    def _timings(self, model: nn.Module, flops: int) -> dict[str, Any]:
        """Return the speed of the training, and its share of the matrix product rate."""
        prepared, timings = self.prepared, self.state.history.timings()
        utilisation = measure_utilisation(
            flops,
            prepared.precision,
            prepared.accelerator.device,
            tokens_per_second=timings["tokens_per_second"]
            if prepared.task.row.kind.has_words
            else None,
            num_processes=prepared.accelerator.num_processes,
        )
        growth = measure_growth(
            prepared.accelerator, model, prepared.task.loss, self.state.retries.step_batches
        )
        return timings | asdict(utilisation) | asdict(growth)


def all_metrics(outcome: Outcome) -> dict[str, float | None]:
    """Return the metrics of an outcome by name, both those for comparisons and those reported."""
    return {**outcome.metrics(), **outcome.report().metrics()}
