"""One run: everything around the loop, so that a recipe can show the loop and nothing else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampft.data.steps import StepBatch
from ampft.errors import InputError, PrecisionContradicted, TrainingStopped
from ampft.evaluation.baseline import baseline_sentence
from ampft.evaluation.evaluate import evaluate
from ampft.evaluation.float32 import in_float32
from ampft.files import is_disk_error
from ampft.precision.executed import ExecutedDtypes, contradiction
from ampft.precision.modes import is_fp32
from ampft.runs.card import model_card
from ampft.runs.folder import RunFolder, claim_folder
from ampft.runs.history import History, write_csv
from ampft.runs.memory import PeakMemory, device_memory, process_memory
from ampft.runs.predictions import References, write_predictions
from ampft.runs.prepare import Prepared, plan_lines, with_fitting_micro_batches
from ampft.runs.record import (
    BestPart,
    RunRecord,
    StepIdsHash,
    ValidationPart,
    first_record,
    precision_part,
    write_record,
)
from ampft.runs.show import headed_report, result_line
from ampft.tasks.outcome import Outcome, Report
from ampft.text.terminal import labelled, print_line
from ampft.training.best import BestModel
from ampft.training.first_step import FirstStep
from ampft.training.out_of_memory import OutOfMemoryRetries, explain_out_of_memory
from ampft.training.signals import raise_on_sigterm
from ampft.training.step import StepOutcome, StepStopped, shared_autocast_cache
from ampft.training.trackers import tracked_settings
from ampft.training.utilisation import Utilisation, measure_utilisation


@dataclass
class Run:
    """A training with its evaluation; open it with `open_run`."""

    prepared: Prepared
    folder: RunFolder | None
    history: History
    best: BestModel
    record_so_far: RunRecord
    first_step: FirstStep
    retries: OutOfMemoryRetries
    finished: bool = False
    validations: list[ValidationPart] = field(default_factory=list)
    ids: StepIdsHash = field(default_factory=StepIdsHash)
    current: StepBatch | None = None

    @property
    def steps(self) -> int:
        """Optimizer steps so far, skipped ones included."""
        return self.history.steps

    @property
    def epochs(self) -> range:
        """The epochs of the training, from 0; the last one may stop in the middle."""
        return range(-(-self.prepared.total_steps // len(self.retries.step_batches)))

    def step_batches(self, epoch: int) -> Iterator[StepBatch]:
        """Yield the step batches of an epoch, as far as the training goes."""
        left = self.prepared.total_steps - self.steps
        for step_batch in self.retries.step_batches.epoch(epoch, stop=left):
            self.current = step_batch
            yield step_batch

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the first optimizer step, and record the one that stops the run.

        Raises:
            StepStopped: The step cannot be applied.
            PrecisionContradicted: Its dtypes are not those of the mode that was asked for.
        """
        is_first = self.first_step.executed is None
        try:
            with self.first_step.measured(self.prepared.model, self.prepared.optimizer):
                yield
        except StepStopped as error:
            self.record(error.outcome)
            raise
        if is_first and self.first_step.executed is not None:
            self._print_executed(self.first_step.executed)

    def gradient(
        self, compute: Callable[[StepBatch], list[Tensor]], step_batch: StepBatch
    ) -> list[Tensor]:
        """Compute the gradient of a step, again in smaller micro-batches when memory runs out.

        Args:
            compute: Adds up the gradient of a step batch over its micro-batches, and returns what
                `ampft.backward` returned for each.
            step_batch: Of this process.

        Raises:
            OutOfMemory: The step does not fit, and cannot be repeated in smaller micro-batches.
        """

        def with_casts_kept(step_batch: StepBatch) -> list[Tensor]:
            with shared_autocast_cache(self.prepared.accelerator, self.prepared.model, step_batch):
                losses = compute(step_batch)
                torch.clear_autocast_cache()  # the weights are about to change
                return losses

        self.current, losses = self.retries.gradient(with_casts_kept, step_batch)
        return losses

    def record(self, outcome: StepOutcome) -> None:
        """Add the current optimizer step to the history."""
        assert self.current is not None
        self.ids.update(self.current.effective_ids)
        peak = peak_memory(self.prepared).peak
        self.history.record(self.current, outcome, None if peak is None else peak / 2**20)

    def validate(self, model: nn.Module, epoch: int) -> bool:
        """Evaluate on the validation split after an epoch; return whether to stop early."""
        if not self.prepared.selects_epoch:
            return False
        metrics = all_metrics(self._predict(model, "validation"))
        problem = self.prepared.task.problem
        printed = {name: metrics[name] for name in problem.printed}
        self.validations.append(ValidationPart(epoch=epoch + 1, step=self.steps, metrics=metrics))
        value = metrics[self.best.metric.name]
        better = self.best.update(value, epoch, self.prepared.accelerator, model)
        words = ", ".join(
            f"{problem.metrics[name].title} {'undefined' if v is None else f'{v:.3f}'}"
            for name, v in printed.items()
        )
        self.history.write(f"epoch {epoch + 1:<4} validation {words}{'  (best)' if better else ''}")
        self.history.resume_clock()
        return self.best.should_stop

    def finish(self, model: nn.Module) -> None:
        """Evaluate the best model on the final split; write and print the results."""
        prepared = self.prepared
        if self.best.epoch is not None:
            self.best.restore(prepared.accelerator, model)
        split = prepared.final_split
        outcome = self._predict(model, split)
        memory = self._memory()  # before anything that only a comparison asks for
        outcome_fp32 = self._predict_fp32(model, split)
        prepared.accelerator.end_training()
        if self.folder is None:
            return
        self._save(model)
        baseline = None
        if prepared.args.baseline:
            baseline = baseline_sentence(prepared.task, split)
        report = outcome.report()
        metrics = self._metrics(outcome)
        metrics_fp32 = metrics if prepared.args.evaluate_fp32 else None
        if outcome_fp32 is not None:
            metrics_fp32 = self._metrics(outcome_fp32)
        record = replace(
            self._record("finished"),
            timings={
                **self._timings(model),
                "total_seconds": time.perf_counter() - prepared.started.seconds,
            },
            memory=memory,
            metrics=metrics,
            metrics_fp32=metrics_fp32,
        )
        references = partial(prepared.task.references, split)
        write_results(self.folder, record, report, outcome, references, outcome_fp32=outcome_fp32)
        self.finished = True
        self.history.close()
        print_line(f"\n{headed_report(report, selected=self._is_selected(split))}")
        if baseline:
            print_line(labelled("baseline", baseline))
        print_line(
            labelled("wrote", f"{self.folder.path}: model, report, predictions, history, record")
        )
        print_line(result_line(record))

    def stopped(self, status: str, reason: str) -> None:
        """Record how the run ended before its end; what is in its folder stays."""
        if self.folder is None or self.finished:
            return
        self.best.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk has its own message
            write_record(self.folder, replace(self._record(status), reason=reason))

    def _print_executed(self, executed: ExecutedDtypes) -> None:
        wrong = contradiction(self.prepared.precision, executed)
        if wrong is not None:
            raise PrecisionContradicted(wrong)
        self.history.write(labelled("ran", executed.summary()))

    def _is_selected(self, split: str) -> bool:
        """Whether the split of the final report was used to choose the epoch."""
        return self.prepared.selects_epoch and split == "validation"

    def _save(self, model: nn.Module) -> None:
        assert self.folder is not None
        accelerator = self.prepared.accelerator
        unwrapped: Any = accelerator.unwrap_model(model, keep_torch_compile=False)
        unwrapped.save_pretrained(self.folder.path)
        self.prepared.task.save_processor(self.folder.path)
        if self.prepared.args.history_csv:
            write_csv(self.folder / "history.jsonl", self.folder / "history.csv")

    def _predict(self, model: nn.Module, split: str) -> Outcome:
        return evaluate(
            self.prepared.accelerator,
            model,
            self.prepared.task,
            split,
            batch_size=self.prepared.args.per_device_eval_batch_size,
            first_batch=self.first_step.checked(f"the evaluation on {split}"),
        )

    def _predict_fp32(self, model: nn.Module, split: str) -> Outcome | None:
        """Predict again in fp32 if that is asked for and is not what just happened."""
        prepared = self.prepared
        if not prepared.args.evaluate_fp32 or is_fp32(prepared.precision.mode):
            return None
        with in_float32(prepared.accelerator, model, prepared.precision) as plain:
            return self._predict(plain, split)

    def _metrics(self, outcome: Outcome) -> dict[str, Any]:
        selected = self._is_selected(outcome.split)
        return {**all_metrics(outcome), "split": outcome.split, "selected": selected}

    def _timings(self, model: nn.Module) -> dict[str, Any]:
        """Return the speed of the training, and what the machine can do."""
        timings = self.history.timings()
        return timings | asdict(utilisation(self.prepared, model, timings["tokens_per_second"]))

    def _memory(self) -> PeakMemory:
        memory, parts = peak_memory(self.prepared), self.first_step.memory
        return memory if parts is None else memory.split(**parts)

    def _record(self, status: str) -> RunRecord:
        executed, best = self.first_step.executed, self.best
        return replace(
            self.record_so_far,
            status=status,
            precision=precision_part(
                self.prepared.precision.mode,
                self.prepared.precision,
                executed=None if executed is None else executed.as_dict(),
                summary=None if executed is None else executed.summary(),
                lost_updates=self.history.lost_updates(),
            ),
            steps=replace(
                self.record_so_far.steps,
                applied=self.steps - self.history.skipped,
                skipped=self.history.skipped,
                micro_batches=self.retries.step_batches.micro_batches,
            ),
            example_ids_sha256=self.ids.hexdigest(),
            random_state_sha256=self.first_step.random_state,
            timings=self.history.timings() if self.steps else {},
            memory=self._memory(),
            validations=tuple(self.validations),
            best=None
            if best.epoch is None or best.value is None
            else BestPart(metric=best.metric.name, epoch=best.epoch + 1, value=best.value),
        )


def all_metrics(outcome: Outcome) -> dict[str, float | None]:
    """Return the metrics of an outcome by name: those that are compared, and those reported."""
    return {**outcome.metrics(), **outcome.report().metrics()}


@contextlib.contextmanager
def open_run(prepared: Prepared) -> Iterator[Run]:
    """Print the plan, hold the output folder, and leave a truthful record however the run ends.

    Raises:
        InputError: The output folder cannot be held or written.
    """
    assert prepared.output_dir is not None, "prepare() chooses a folder"
    chosen, prepared = prepared.output_dir, with_fitting_micro_batches(prepared)
    args, accelerator = prepared.args, prepared.accelerator
    main = accelerator.is_main_process
    if main:
        print_line("\n".join(plan_lines(prepared)))
    output_dir = claim_folder(args, prepared.precision.mode, accelerator, chosen)
    folder = RunFolder(output_dir, overwrite=args.overwrite_output_dir) if main else None
    history_path = None if folder is None else folder / "history.jsonl"
    with (
        folder or contextlib.nullcontext(),
        History(history_path, accelerator, prepared.total_steps) as history,
    ):
        if args.with_tracking:
            accelerator.init_trackers("ampft", config=tracked_settings(asdict(args)))
        best = BestModel(
            output_dir / ".best.safetensors", prepared.best_metric, args.early_stopping_patience
        )
        run = Run(
            prepared,
            folder,
            history,
            best,
            first_record(prepared),
            FirstStep(prepared.precision),
            _retries(prepared, history.write),
        )
        if folder is not None:
            write_record(folder, run.record_so_far)
        with _recorded_ending(run, output_dir):
            yield run


@contextlib.contextmanager
def _recorded_ending(run: Run, output_dir: Path) -> Iterator[None]:
    """Record how the run ends if it does not finish."""
    with raise_on_sigterm():
        try:
            with explain_out_of_memory():
                yield
        except TrainingStopped as error:
            run.stopped(error.status, str(error))
            raise
        except BaseException as error:
            run.stopped("interrupted", f"{type(error).__name__}: {error}")
            if is_disk_error(error):
                raise InputError(
                    f"--output_dir {output_dir}: cannot be written ({error}). Free space there "
                    "or name another folder; the run stopped."
                ) from error
            raise


def write_results(
    folder: RunFolder,
    record: RunRecord,
    report: Report,
    outcome: Outcome,
    references: References,
    *,
    outcome_fp32: Outcome | None = None,
) -> RunRecord:
    """Write report, predictions, model card and, last, the record of a finished run.

    Args:
        folder: Already holds the history, and the model as `save_pretrained` wrote it.
        record: Its `files` are filled in here.
        report: Report of the final evaluation.
        outcome: Outcome of the final evaluation.
        references: What `write_predictions` shows of the examples.
        outcome_fp32: Outcome of the same model in fp32; None writes no file of it.

    Returns:
        The record as it was written.
    """
    selected = bool(record.metrics.get("selected"))
    folder.write_text("report.txt", headed_report(report, selected=selected))
    folder.write_json("report.json", {**report.as_dict(), "selected": selected})
    write_predictions(folder / "predictions.parquet", outcome, references)
    if outcome_fp32 is not None:
        write_predictions(folder / "predictions_fp32.parquet", outcome_fp32, references)
    folder.write_text("README.md", model_card(record, report))
    names = {path.name for path in folder.path.iterdir() if not path.name.startswith(".")}
    record = replace(record, files=sorted(names | {"run.json"}))
    write_record(folder, record)
    return record


def peak_memory(prepared: Prepared) -> PeakMemory:
    """Return the peak so far, of the device that trains."""
    device = prepared.accelerator.device
    if device.type == "cuda":
        return device_memory(
            allocated=torch.cuda.max_memory_allocated(device),
            reserved=torch.cuda.max_memory_reserved(device),
        )
    return process_memory(prepared.started.memory)


def utilisation(prepared: Prepared, model: nn.Module, tokens_per_second: float) -> Utilisation:
    """Measure the rate of matrix products, and what share of it the training reached."""
    # The length of an image is one, however many patches it has.
    has_tokens = prepared.task.data.kind == "text"
    return measure_utilisation(
        prepared.accelerator.unwrap_model(model, keep_torch_compile=False),
        prepared.precision,
        prepared.accelerator.device,
        tokens_per_second=tokens_per_second if has_tokens else None,
        num_processes=prepared.accelerator.num_processes,
    )


def _retries(prepared: Prepared, write: Callable[[str], None]) -> OutOfMemoryRetries:
    """Return what repeats the steps of a run that run out of memory, or explains why it cannot."""
    if not prepared.args.auto_micro_batch:
        advice = "Add --auto_micro_batch: smaller micro-batches, the same effective batch."
    else:
        advice = (
            "Several processes communicate in the backward pass, so a step cannot be repeated in "
            "smaller micro-batches. Start with smaller ones: raise --gradient_accumulation_steps, "
            "lower --per_device_train_batch_size by as much, and remove --auto_micro_batch."
        )
    return OutOfMemoryRetries(
        prepared.loaded.model,
        prepared.step_batches,
        can_repeat=prepared.args.auto_micro_batch and prepared.accelerator.num_processes == 1,
        advice=advice,
        write=write,
    )
