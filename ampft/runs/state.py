"""The state of a run between two optimizer steps: what a checkpoint saves and a resume restores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from safetensors.torch import load_file
from torch import Tensor, nn

from ampft.features.averaged_weights import AveragedWeights
from ampft.features.best_weights import BestModel
from ampft.features.feature import Feature, tensors_of
from ampft.features.memory import PeakMemory, device_memory, process_memory
from ampft.features.trackers import continuing_trackers, tracker_run_ids
from ampft.files import link
from ampft.models.sharded import load_whole_weights, reshard, whole_weights
from ampft.precision.sharding import is_sharded
from ampft.runs.features import make_features
from ampft.runs.history import History
from ampft.runs.manifest import HISTORY_NAME
from ampft.runs.nonfinite import NonfiniteSteps
from ampft.runs.prepared import Prepared
from ampft.runs.record import (
    ResumePart,
    RunRecord,
    StepIdsHash,
    precision_part,
)
from ampft.runs.saved_state import BestValues, SavedState
from ampft.runs.validation import Validations
from ampft.training.checkpoints.manifest import (
    BEST_NAME,
    MODEL_NAME,
    OPTIMIZER_NAME,
    CursorPart,
    Manifest,
)
from ampft.training.checkpoints.optimizer_state import (
    load_optimizer,
    optimizer_tensors,
    optimizer_values,
)
from ampft.training.checkpoints.random_state import random_state, restore_random_state
from ampft.training.checkpoints.tensors import without_prefix
from ampft.training.first_step import FirstStep
from ampft.training.out_of_memory import OutOfMemoryRetries
from ampft.training.stopping import TimeLimit


@dataclass
class RunState:
    """References to everything that changes while a run trains.

    Attributes:
        prepared: Model, optimizer, schedule and scaler.
        history: History of the optimizer steps.
        validations: Evaluations on the validation split, and the best weights so far.
        first_step: Measurements of the first step.
        time_limit: Clock of the run over all its processes.
        nonfinite: Counts of steps that were not finite.
        retries: Step batches with the current number of micro-batches.
        features: Features of the run, in the order in which it calls them.
        step_ids: Hash of the example ids of each step.
        resumes: Continuations from checkpoints.
        started: Start of the run, ISO 8601 in UTC.
        earlier_memory: Peak memory up to the checkpoint that the run continued from.
        checkpoint_seconds: Time for which checkpoints stopped the training.
        tracker_arguments: Arguments with which trackers continue the run, by tracker.
    """

    prepared: Prepared
    history: History
    validations: Validations
    first_step: FirstStep
    time_limit: TimeLimit
    nonfinite: NonfiniteSteps
    retries: OutOfMemoryRetries
    features: tuple[Feature, ...] = ()
    step_ids: StepIdsHash = field(default_factory=StepIdsHash)
    resumes: list[ResumePart] = field(default_factory=list)
    started: str = ""
    earlier_memory: PeakMemory | None = None
    checkpoint_seconds: float = 0.0
    tracker_arguments: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def cursor(self) -> CursorPart:
        """Position in the training."""
        steps = self.history.steps
        epoch, step_in_epoch = divmod(steps, len(self.prepared.step_batches))
        return CursorPart(epoch=epoch, step_in_epoch=step_in_epoch, step=steps)

    @property
    def total_seconds(self) -> float:
        """Duration of the run, without work that was lost between a checkpoint and a kill."""
        return self.time_limit.elapsed

    @property
    def peak_memory(self) -> PeakMemory:
        """Peak memory so far on the training device: the largest over all parts of the run."""
        now, earlier = peak_memory(self.prepared), self.earlier_memory
        if earlier is None or (now.peak or 0) >= (earlier.peak or 0):
            return now
        return earlier

    @property
    def timing_note(self) -> str:
        """Return what the timings of the record cover."""
        if not self.resumes:
            return "the whole run, in one process"
        return (
            f"the whole run in {len(self.resumes) + 1} parts, each up to the checkpoint from which "
            "the next one continues; steps that were repeated after a checkpoint count once"
        )

    def model_tensors(self) -> dict[str, Tensor]:
        """Return weights and buffers by name. All processes must call it together."""
        whole = whole_weights(self.prepared.model)
        return dict(self.plain_model().state_dict()) if whole is None else whole

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the optimizer and of the features by name, on all processes."""
        tensors = optimizer_tensors(self.plain_model(), self.prepared.optimizer.optimizer)
        return {**tensors, **tensors_of(self.features)}

    def values(self) -> dict[str, Any]:
        """Return everything else as JSON values. All processes must call it together."""
        prepared, best = self.prepared, self.validations.best
        accelerator = prepared.accelerator
        scaler = accelerator.scaler
        return {
            "optimizer": optimizer_values(self.plain_model(), prepared.optimizer.optimizer),
            "features": {feature.name: feature.values() for feature in self.features},
            "schedule": prepared.schedule.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": gather_object([random_state(accelerator.device)]),
            "micro_batches": self.retries.step_batches.micro_batches,
            "step_ids": self.step_ids.hexdigest(),
            "best": {
                "step": best.step,
                "value": best.value,
                "without_improvement": best.without_improvement,
            },
            "validations": [asdict(part) for part in self.validations.parts],
            "nonfinite": asdict(self.nonfinite.watch),
            "first_step": self.first_step.state(),
            "resumes": [asdict(part) for part in self.resumes],
            "started": self.started,
            "total_seconds": self.total_seconds,
            "memory": asdict(self.peak_memory),
            "checkpoint_seconds": self.checkpoint_seconds,
            "trackers": tracker_run_ids(accelerator),
        }

    def restore(self, folder: Path, manifest: Manifest, values: SavedState, history: bytes) -> None:
        """Restore a verified checkpoint. The run has not made a step.

        Args:
            folder: Folder of the checkpoint.
            manifest: Its manifest.
            values: Contents of its state.json, which fit this run.
            history: The part of history.jsonl that belongs to it.
        """
        prepared, model = self.prepared, self.plain_model()
        if is_sharded(prepared.accelerator):
            load_whole_weights(model, load_file(folder / MODEL_NAME))
        else:
            model.load_state_dict(load_file(folder / MODEL_NAME))
        tensors = load_file(folder / OPTIMIZER_NAME)
        for feature in self.features:
            own = without_prefix(tensors, f"{feature.name}/")
            tensors = {n: t for n, t in tensors.items() if not n.startswith(f"{feature.name}/")}
            feature.restore(own, values.features[feature.name], history)
        load_optimizer(model, prepared.optimizer.optimizer, tensors, asdict(values.optimizer))
        prepared.schedule.load_state_dict(dict(values.schedule))
        if prepared.accelerator.scaler is not None:
            prepared.accelerator.scaler.load_state_dict(dict(values.scaler or {}))
        self.history.restore(history)
        self.step_ids.restore(values.step_ids)
        self.validations.parts.extend(values.validations)
        self.nonfinite.watch = values.nonfinite
        first = values.first_step
        memory = None if first.memory is None else asdict(first.memory)
        self.first_step.restore(first.executed, memory, first.random_state, first.draws)
        self._restore_best(folder, manifest, values.best)
        self.resumes += values.resumes
        self.started = values.started
        self.time_limit.earlier = values.total_seconds
        self.checkpoint_seconds = values.checkpoint_seconds
        self.tracker_arguments = continuing_trackers(values.trackers, manifest.cursor.step)
        self.earlier_memory = values.memory
        states = values.random
        # A process that did not exist before draws as the one whose number it has modulo theirs.
        own = states[prepared.accelerator.process_index % len(states)]
        restore_random_state(own, prepared.accelerator.device)  # last: nothing draws after it

    def memory_by_purpose(self) -> PeakMemory:
        """Return the peak memory so far, with its parts if the first step has measured them."""
        memory, parts = self.peak_memory, self.first_step.memory
        return memory if parts is None else memory.split(**parts)

    def record(self, initial: RunRecord, status: str) -> RunRecord:
        """Return the record of the run so far.

        Args:
            initial: Record before the first step.
            status: One of `STATUSES`.
        """
        executed, steps = self.first_step.executed, self.history.steps
        return replace(
            initial,
            status=status,
            precision=precision_part(
                self.prepared.precision,
                executed=None if executed is None else executed.as_dict(),
                summary=None if executed is None else executed.summary(),
                lost_updates=self.history.lost_updates(),
                fp32_modules=initial.precision.fp32_modules,
            ),
            steps=replace(
                initial.steps,
                applied=steps - self.history.skipped,
                skipped=self.history.skipped,
                micro_batches=self.retries.step_batches.micro_batches,
            ),
            example_ids_sha256=self.step_ids.hexdigest(),
            random_state_sha256=self.first_step.random_state,
            timings=self.history.timings() if steps else {},
            memory=self.memory_by_purpose(),
            validations=tuple(self.validations.parts),
            best=self.validations.best_part(),
            warnings=self.warnings(),
        )

    def warnings(self) -> dict[str, str]:
        """Return reasons not to trust the training so far, by name."""
        parts = (self.nonfinite.watch.warnings(), *(f.warnings() for f in self.features))
        return {name: text for part in parts for name, text in part.items()}

    @property
    def average(self) -> AveragedWeights | None:
        """The average of the weights; None without `--ema_decay`."""
        return next((f for f in self.features if isinstance(f, AveragedWeights)), None)

    def _restore_best(self, folder: Path, manifest: Manifest, values: BestValues) -> None:
        best = self.validations.best
        best.step, best.value = values.step, values.value
        best.without_improvement = values.without_improvement
        if not self.prepared.accelerator.is_main_process:
            return
        best.file = manifest.files.get(BEST_NAME)
        if best.file is not None:
            link(folder / BEST_NAME, best.path)

    def plain_model(self) -> nn.Module:
        """Return the model without what Accelerate added, with the optimizer's parameters."""
        accelerator = self.prepared.accelerator
        plain: nn.Module = accelerator.unwrap_model(self.prepared.model, keep_torch_compile=False)
        reshard(plain)  # the optimizer has the sharded parameters
        return plain


def peak_memory(prepared: Prepared) -> PeakMemory:
    """Return the peak memory of this process so far on the training device."""
    device = prepared.accelerator.device
    if device.type == "cuda":
        return device_memory(torch.cuda.memory_stats(device))
    return process_memory(prepared.started.memory)


def new_state(prepared: Prepared, output_dir: Path) -> RunState:
    """Return the state of a run before its first step."""
    args = prepared.args
    history_path = output_dir / HISTORY_NAME if prepared.accelerator.is_main_process else None
    history = History(history_path, prepared.accelerator, prepared.total_steps)
    best = BestModel(output_dir, prepared.best_metric, args.early_stopping_patience)
    state = RunState(
        prepared,
        history,
        Validations(best, len(prepared.step_batches), args.eval_steps),
        FirstStep(prepared.precision),
        TimeLimit(args.max_seconds, prepared.started.seconds),
        NonfiniteSteps(prepared, output_dir, history.write),
        _retries(prepared, history.write),
        make_features(prepared, history.write),
    )
    best.average = state.average
    return state


def _retries(prepared: Prepared, write: Callable[[str], None]) -> OutOfMemoryRetries:
    """Return the retries of steps that run out of memory, or the advice if there are none."""
    if not prepared.args.auto_micro_batch:
        advice = (
            "Add --auto_micro_batch, which uses smaller micro-batches for the same effective batch."
        )
    else:
        advice = (
            "Several processes communicate in the backward pass, so a step cannot be repeated in "
            "smaller micro-batches. Start with smaller ones: raise --gradient_accumulation_steps, "
            "lower --per_device_train_batch_size by the same factor, and remove "
            "--auto_micro_batch."
        )
    return OutOfMemoryRetries(
        prepared.loaded.model,
        prepared.step_batches,
        can_repeat=prepared.args.auto_micro_batch and prepared.accelerator.num_processes == 1,
        advice=advice,
        write=write,
    )
