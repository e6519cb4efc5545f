"""One run: what happens around the loop, so that a recipe can show the loop alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ampft.runs.console import baseline_words, plan_lines, print_result, labelled
from ampft.data.steps import StepBatch, StepBatches
from ampft.errors import InputError, PrecisionContradicted, TrainingStopped
from ampft.evaluation.evaluate import evaluate
from ampft.evaluation.float32 import in_float32
from ampft.precision.executed import ExecutedDtypes, contradiction
from ampft.metrics.classification import Report, classification_report
from ampft.metrics.predictions import Predictions
from ampft.files import is_unwritable
from ampft.runs.folder import RunFolder
from ampft.runs.memory import PeakMemory
from ampft.runs.record import (
    BestPart,
    RunRecord,
    StepIdsHash,
    ValidationPart,
    precision_part,
    write_record,
)
from ampft.runs.write import write_results
from ampft.runs.setup import (
    Setup,
    check_setup,
    claim_folder,
    first_record,
    make_attempts,
    peak_memory,
    utilisation,
    with_fitting_micro_batches,
)
from ampft.text.terminal import print_line
from ampft.precision.accelerator import verify_prepared
from ampft.training.attempts import Attempt, Attempts, memory_explained
from ampft.training.best import BestModel
from ampft.training.first_step import FirstStep
from ampft.runs.history_writer import History, write_csv
from ampft.training.interrupt import sigterm_raised
from ampft.models.perturb import perturb_weights
from ampft.training.step import StepOutcome, StepStopped, casts_kept
from ampft.training.trackers import tracked_settings


@dataclass
class Run:
    """A training with its evaluation; open it with `open_run`."""

    setup: Setup
    folder: RunFolder | None
    history: History
    best: BestModel
    record_so_far: RunRecord
    first_step: FirstStep
    attempts: Attempts
    finished: bool = False
    validations: list[ValidationPart] = field(default_factory=list)
    ids: StepIdsHash = field(default_factory=StepIdsHash)

    @property
    def steps(self) -> int:
        """Optimizer steps so far, skipped ones included."""
        return self.history.steps

    @property
    def step_batches(self) -> StepBatches:
        """Of the training split, in the current number of micro-batches."""
        return self.attempts.step_batches

    @contextlib.contextmanager
    def watched(self, model: nn.Module, optimizer: Any, step_batch: StepBatch) -> Iterator[Attempt]:
        """Measure the first optimizer step, and record the one that stops the run.

        Raises:
            OutOfMemory: The step does not fit and cannot be repeated in smaller micro-batches.
            StepStopped: The step cannot be applied.
            PrecisionContradicted: Its dtypes are not those of the mode that was asked for.
        """
        is_first = self.first_step.executed is None
        attempt = self.attempts.of(step_batch)
        casts = casts_kept(self.setup.accelerator, model, attempt.step_batch)
        try:
            with self.first_step.measured(model, optimizer), casts:
                yield attempt
        except StepStopped as error:
            self.record(attempt.step_batch, error.outcome)
            raise
        if is_first and self.first_step.executed is not None:
            self._say_what_ran(self.first_step.executed)

    def _say_what_ran(self, executed: ExecutedDtypes) -> None:
        wrong = contradiction(self.setup.precision, executed)
        if wrong is not None:
            raise PrecisionContradicted(wrong)
        self.history.write(labelled("ran", executed.summary()))

    def record(self, step_batch: StepBatch, outcome: StepOutcome) -> None:
        """Add an optimizer step to the history."""
        self.ids.update(step_batch.effective_ids)
        peak = peak_memory(self.setup).peak
        self.history.record(step_batch, outcome, None if peak is None else peak / 2**20)

    def validate(self, model: nn.Module, epoch: int) -> bool:
        """Evaluate on the validation split after an epoch; return whether to stop early."""
        if not self._chooses:
            return False
        report = classification_report(self._predict(model, "validation"))
        self.validations.append(ValidationPart.of(report, epoch=epoch + 1, step=self.steps))
        value = float(getattr(report, self.best.metric))
        better = self.best.update(value, epoch, self.setup.accelerator, model)
        self.history.write(
            f"epoch {epoch + 1:<4} validation accuracy {report.accuracy:.3f}, macro F1 "
            f"{report.macro_f1:.3f}, log loss {report.log_loss:.3f}{'  (best)' if better else ''}"
        )
        self.history.resume_clock()
        return self.best.should_stop

    def finish(self, model: nn.Module) -> None:
        """Evaluate the best model on the final split; write and print the results."""
        if self.best.epoch is not None:
            self.best.restore(self.setup.accelerator, model)
        split = "test" if "test" in self.setup.task.data.splits else "validation"
        predictions = self._predict(model, split)
        memory = self._memory()  # before anything that only a comparison asks for
        predictions_fp32 = self._predict_fp32(model, split)
        self.setup.accelerator.end_training()
        if self.folder is None:
            return
        self._save(model)
        baseline = baseline_words(self.setup.task.data, split) if self.setup.args.baseline else None
        report = classification_report(predictions)
        metrics = self._metrics(report)
        metrics_fp32 = metrics if self.setup.args.evaluate_fp32 else None
        if predictions_fp32 is not None:
            metrics_fp32 = self._metrics(classification_report(predictions_fp32))
        record = replace(
            self._record("finished"),
            timings={
                **self._timings(model),
                "total_seconds": time.perf_counter() - self.setup.begun.seconds,
            },
            memory=memory,
            metrics=metrics,
            metrics_fp32=metrics_fp32,
        )
        write_results(
            self.folder,
            record,
            report,
            predictions,
            partial(self.setup.task.references, split),
            predictions_fp32=predictions_fp32,
        )
        self.finished = True
        self.history.close()
        selected = self._selected(report.split)
        print_result(record, report, self.folder.path, selected=selected, baseline=baseline)

    def stopped(self, status: str, reason: str) -> None:
        """Mark how the run ended before its end; what is in its folder stays."""
        if self.folder is None or self.finished:
            return
        self.best.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk has its own message
            write_record(self.folder, replace(self._record(status), reason=reason))

    @property
    def _chooses(self) -> bool:
        return (
            "validation" in self.setup.task.data.splits and self.setup.args.load_best_model_at_end
        )

    def _selected(self, split: str) -> bool:
        """Whether the split of the final report was used to choose the epoch."""
        return self._chooses and split == "validation"

    def _save(self, model: nn.Module) -> None:
        assert self.folder is not None
        unwrapped: Any = self.setup.accelerator.unwrap_model(model, keep_torch_compile=False)
        unwrapped.save_pretrained(self.folder.path)
        self.setup.task.save_processor(self.folder.path)
        if self.setup.args.history_csv:
            write_csv(self.folder / "history.jsonl", self.folder / "history.csv")

    def _predict(self, model: nn.Module, split: str) -> Predictions:
        return evaluate(
            self.setup.accelerator,
            model,
            self.setup.task,
            split,
            batch_size=self.setup.args.per_device_eval_batch_size,
        )

    def _predict_fp32(self, model: nn.Module, split: str) -> Predictions | None:
        """Predict again in fp32 where that is asked for and is not what just happened."""
        if not self.setup.args.evaluate_fp32 or self.setup.precision.mode == "fp32":
            return None
        with in_float32(self.setup.accelerator, model, self.setup.precision) as plain:
            return self._predict(plain, split)

    def _metrics(self, report: Report) -> dict[str, Any]:
        return {**report.metrics(), "split": report.split, "selected": self._selected(report.split)}

    def _timings(self, model: nn.Module) -> dict[str, Any]:
        """Return the speed of the training, beside what the machine can do."""
        timings = self.history.timings()
        return timings | asdict(utilisation(self.setup, model, timings["tokens_per_second"]))

    def _memory(self) -> PeakMemory:
        memory, parts = peak_memory(self.setup), self.first_step.memory
        return memory if parts is None else memory.split(**parts)

    def _record(self, status: str) -> RunRecord:
        executed, best = self.first_step.executed, self.best
        return replace(
            self.record_so_far,
            status=status,
            precision=precision_part(
                self.setup.precision.mode,
                self.setup.precision,
                executed=None if executed is None else executed.as_dict(),
                summary=None if executed is None else executed.summary(),
                lost_updates=self.history.lost_updates(),
            ),
            steps=replace(
                self.record_so_far.steps,
                applied=self.steps - self.history.skipped,
                skipped=self.history.skipped,
                micro_batches=self.step_batches.micro_batches,
            ),
            example_ids_sha256=self.ids.hexdigest(),
            random_state_sha256=self.first_step.random_state,
            timings=self.history.timings() if self.steps else {},
            memory=self._memory(),
            validations=tuple(self.validations),
            best=None
            if best.epoch is None or best.value is None
            else BestPart(metric=best.metric, epoch=best.epoch + 1, value=best.value),
        )


@contextlib.contextmanager
def open_run(setup: Setup, output_dir: Path) -> Iterator[Run]:
    """Print the plan, hold the output folder, and leave a truthful record however the run ends."""
    args, accelerator = setup.args, setup.accelerator
    check_setup(setup)
    verify_prepared(accelerator, setup.precision)
    setup = with_fitting_micro_batches(setup)
    main = accelerator.is_main_process
    if main:
        print_line("\n".join(plan_lines(setup)))
    output_dir = claim_folder(setup, output_dir)
    folder = RunFolder(output_dir, overwrite=args.overwrite_output_dir) if main else None
    history_path = None if folder is None else folder / "history.jsonl"
    with (
        folder or contextlib.nullcontext(),
        History(history_path, accelerator, setup.total_steps) as history,
    ):
        if args.with_tracking:
            accelerator.init_trackers("ampft", config=tracked_settings(asdict(args)))
        best = BestModel(
            output_dir / ".best.safetensors",
            args.metric_for_best_model,
            args.early_stopping_patience,
        )
        first_step, attempts = FirstStep(setup.precision), make_attempts(setup, history.write)
        run = Run(setup, folder, history, best, first_record(setup), first_step, attempts)
        if args.perturb_initial_weights:  # after the record, which holds the hash before it
            perturb_weights(setup.loaded.model, args.seed)
        if folder is not None:
            write_record(folder, run.record_so_far)
        with sigterm_raised():
            try:
                with memory_explained():
                    yield run
            except TrainingStopped as error:
                run.stopped(error.status, str(error))
                raise
            except BaseException as error:
                run.stopped("interrupted", f"{type(error).__name__}: {error}")
                if is_unwritable(error):
                    raise InputError(
                        f"--output_dir {output_dir}: cannot be written ({error}). Free space there "
                        "or name another folder; the run stopped."
                    ) from error
                raise
