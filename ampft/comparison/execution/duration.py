"""The command `ampft estimate`: how long a training will take, and what it needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ampft.arguments import ClassifyArguments
from ampft.arguments.flags import parse_duration
from ampft.files import nearest_existing
from ampft.precision.modes import BASELINE
from ampft.text.numbers import (
    approximate_duration,
    byte_size,
    byte_sizes,
    counted,
    duration,
    in_epochs,
    milliseconds,
)
from ampft.text.terminal import labelled

# Settings whose time a trial does not measure.
_NOT_TIMED = (
    *("baseline", "inspect_data", "check_precision", "checkpointing_steps", "watch"),
    *("with_tracking", "push_to_hub"),
)


@dataclass(frozen=True, kw_only=True)
class TrainingEstimate:
    """What a training will take, from a trial of a few steps."""

    mode: str  # Precision.
    execution: str  # "native", "emulated" or "unproven".
    device: str  # Description such as "CPU, 2 threads".
    steps: int  # Optimizer steps of the whole training.
    steps_per_epoch: int  # Optimizer steps of an epoch.
    train_examples: int  # Number of training examples.
    effective_batch_size: int  # Examples per optimizer step, over all processes.
    seconds: float  # Time from the launch of the process to its end.
    startup_seconds: float  # Time from the launch of the process to its first step.
    step_seconds: float  # Mean of an optimizer step.
    evaluation_seconds: float  # All validations and the final report.
    # Bytes on the training device after the longest step; None if not measured.
    peak_memory: int | None
    disk_bytes: int  # Weights and checkpoints on the disk at once, at most.
    free_disk_bytes: int  # Free space where the results will be.
    notes: tuple[str, ...] = ()  # What the estimate leaves out.


def estimate_duration(
    args: ClassifyArguments, flags: Sequence[str], config_file: str | None = None
) -> TrainingEstimate:
    """Time a few steps of a training, and return what the whole will take.

    Args:
        flags: The same as arguments of classify.py.

    Raises:
        InputError: The training would refuse its input, or the trial failed.
    """
    from ampft.comparison.execution.planning import run_trial
    from ampft.exit_codes import interruptible

    named = args.mixed_precision or os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    mode = BASELINE if named == "no" else named
    modes = list(dict.fromkeys([BASELINE, mode] if args.evaluate_fp32 else [mode]))
    with interruptible(lambda: "nothing has been written."):
        trial = run_trial(flags, modes, config_file)
    estimate = replace(trial.estimate, evaluates_fp32=args.evaluate_fp32)
    size, cost = estimate.size, estimate.modes[mode]
    steps, seconds = estimate.total_steps(size), estimate.run_seconds(mode, size)
    return TrainingEstimate(
        mode=mode,
        execution=estimate.executions[mode],
        device=estimate.device,
        steps=steps,
        steps_per_epoch=estimate.steps_per_epoch(size),
        train_examples=size.train_examples,
        effective_batch_size=estimate.effective_batch_size,
        seconds=seconds,
        startup_seconds=estimate.startup,
        step_seconds=cost.step,
        evaluation_seconds=seconds - estimate.startup - steps * cost.step,
        peak_memory=trial.peak_memory,
        disk_bytes=trial.disk_bytes,
        free_disk_bytes=shutil.disk_usage(nearest_existing(Path(args.output_dir or "runs"))).free,
        notes=tuple(_notes(args, seconds)),
    )


def _notes(args: ClassifyArguments, seconds: float) -> list[str]:
    """Return what can make the training shorter or longer than its steps."""
    notes = []
    if args.max_time is not None and parse_duration("max_time", args.max_time) < seconds:
        notes.append(f"--max_time {args.max_time} will end the training earlier.")
    if args.early_stopping_patience is not None:
        notes.append("--early_stopping_patience may end the training earlier.")
    extra = [name for name in _NOT_TIMED if getattr(args, name)]
    if extra:
        flags = ", ".join(f"--{name}" for name in extra)
        notes.append(f"Not included: {flags}.")
    return notes


def duration_text(found: TrainingEstimate) -> str:
    """Return the estimate in a few lines for the terminal."""
    evaluation, step = approximate_duration(found.evaluation_seconds), found.step_seconds
    step_text = duration(step) if step >= 1 else f"{milliseconds(step)} ms"
    lines = [
        ("mode", f"{found.mode} ({found.execution}) on {found.device}"),
        (
            "training",
            f"{counted(found.steps, 'step')} {in_epochs(found.steps, found.steps_per_epoch)}; "
            f"{counted(found.train_examples, 'training example')}; effective batch "
            f"{found.effective_batch_size}",
        ),
        (
            "time",
            f"about {approximate_duration(found.seconds)}: {step_text} "
            f"per step, {approximate_duration(found.startup_seconds)} to start, {evaluation} to "
            "evaluate",
        ),
    ]
    if found.peak_memory is not None:
        lines.append(("memory", f"{byte_size(found.peak_memory)} after the longest step"))
    needs, free = byte_sizes(found.disk_bytes, found.free_disk_bytes)
    short = " It will be refused." if found.free_disk_bytes < found.disk_bytes else ""
    lines.append(("disk", f"{needs} for weights and checkpoints, of {free} that are free.{short}"))
    lines += [("note", note) for note in found.notes]
    return "\n".join(labelled(*line) for line in lines)
