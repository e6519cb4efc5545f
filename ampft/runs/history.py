"""The history of a run: one row per optimizer step in `history.jsonl`, and for trackers."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ampft.errors import InputError
from ampft.files import FilePart, write
from ampft.ownership import identity
from ampft.runs.manifest import HISTORY_NAME
from ampft.text.json_io import (
    Count,
    JSONValue,
    NotNegative,
    Positive,
    from_json,
    read_json_lines,
)
from ampft.text.numbers import approximate_duration
from ampft.text.terminal import labelled, print_line, progress_bar

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ampft.data.steps import StepBatch
    from ampft.training.step import StepOutcome

WARM_UP_STEPS = 5
SECONDS_BETWEEN_LINES = 60.0  # where no progress bar is shown
# 80 columns are too few for both a bar and the figures.
PROGRESS_FORMAT = "{desc} {percentage:.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


@dataclass
class History:
    """Context that records optimizer steps and shows a progress bar.

    Attributes:
        path: `history.jsonl`, on the main process; None writes nothing.
        accelerator: Accelerator whose trackers receive every row.
        total_steps: Optimizer steps of the whole training.
        step_seconds: Duration of each optimizer step so far, including the wait for data.
        waiting_seconds: Wait for data of each step.
        losses: Loss of each applied step, per unit of weight.
        lengths: Length of each step's effective batch: its tokens, or its examples if inputs have
            no tokens.
        examples: Number of examples so far.
        skipped: Number of skipped steps so far.
        lost_update_shares: Share of the weight updates that rounding lost, for each step where it
            was measured.
    """

    path: Path | None
    accelerator: Accelerator
    total_steps: int
    step_seconds: list[float] = field(default_factory=list)
    waiting_seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    examples: int = 0
    skipped: int = 0
    lost_update_shares: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._written = bytearray()

    def __enter__(self) -> History:
        self._file: IO[bytes] | None = None
        if self.path is not None:
            if not self.steps:
                self.path.open("xb").close()  # it never continues a file of another program
            self._file = self.path.open("ab")
        self._bar = progress_bar(
            shown=self.accelerator.is_main_process,
            total=self.total_steps,
            initial=self.steps,
            desc="training",
            unit="step",
            bar_format=PROGRESS_FORMAT,
        )
        self._started = self._reported = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the progress bar and the file. A second call has no effect."""
        self._bar.close()
        if self._file:
            self._file.close()

    @property
    def steps(self) -> int:
        """Optimizer steps so far, skipped ones included."""
        return len(self.step_seconds)

    def write(self, text: str) -> None:
        """Print a line above the progress bar, on the main process."""
        if self.accelerator.is_main_process:
            print_line(text)

    def resume_clock(self) -> None:
        """Restart the timing of the current step, for example after an evaluation."""
        self._started = time.perf_counter()

    def record(
        self,
        step_batch: StepBatch,
        outcome: StepOutcome,
        columns: Mapping[str, float | None],
    ) -> None:
        """Add an optimizer step.

        Args:
            step_batch: Step batch of this process.
            outcome: Outcome of the step. Copying its values from the device has synchronized it,
                so the measured time covers the whole step.
            columns: Further columns of the step, from features of the run.
        """
        now = time.perf_counter()
        duration = now - self._started
        self._started = now
        self.step_seconds.append(duration)
        self.waiting_seconds.append(min(step_batch.wait_seconds, duration))
        self.examples += len(step_batch.effective_ids)
        self.lengths.append(step_batch.effective_length)
        self.skipped += outcome.skipped
        if not outcome.skipped:
            self.losses.append(outcome.loss)
        if outcome.lost_updates is not None:
            self.lost_update_shares.append(outcome.lost_updates)
        row = {**self._row(step_batch, outcome, duration), **columns}
        if self._file:
            self._restore_lost()
            line = (json.dumps(_nonfinite_as_text(row)) + "\n").encode()
            write(self._file, line)
            self._file.flush()
            self._written += line
        if self.accelerator.trackers:
            numbers = {k: v for k, v in row.items() if v is not None and math.isfinite(v)}
            del numbers["step"]  # Trackio warns of a metric with this name
            self.accelerator.log(numbers, step=self.steps)
        self._update_bar(outcome, row)

    def position(self) -> FilePart:
        """Return hash and size of what has been written so far, on the main process."""
        digest = hashlib.sha256(self._written).hexdigest()
        return FilePart(sha256=digest, bytes=len(self._written))

    def verify(self) -> None:
        """Check that the file contains what was written, or restore its end if that is missing.

        Raises:
            InputError: Another program wrote into the file or replaced it.
        """
        if self.path is None:
            return
        self._restore_lost()
        if self.path.read_bytes() != self._written:
            raise self._changed()

    def _restore_lost(self) -> None:
        """Write steps again that another program cut off; cheap if it did not."""
        assert self.path is not None
        assert self._file is not None
        found = os.fstat(self._file.fileno())
        if identity(self.path) != (found.st_dev, found.st_ino):
            raise self._changed()
        if found.st_size == len(self._written):
            return
        present = self.path.read_bytes()
        if len(present) > len(self._written) or not self._written.startswith(present):
            raise self._changed()
        write(self._file, bytes(self._written[len(present) :]))
        self._file.flush()
        text = f"another program cut {self.path}; the missing steps were written again"
        self.write(labelled("history", text))

    def _changed(self) -> InputError:
        return InputError(
            f"{self.path}: another program changed or replaced this file during the run, so the "
            f"run stopped after step {self.steps}. Nothing was written into it since. Let nothing "
            "else write into the output folder, and repeat the run."
        )

    def restore(self, beginning: bytes) -> None:
        """Continue an earlier history, before entering the context.

        Args:
            beginning: What `history.jsonl` contains.
        """
        self._written += beginning
        for row in parse_rows(beginning, "history.jsonl"):
            self.step_seconds.append(row.seconds)
            self.waiting_seconds.append(row.waiting_share * row.seconds)
            self.lengths.append(row.tokens)
            self.examples += row.examples
            self.skipped += row.skipped
            if not row.skipped:
                self.losses.append(row.loss)
            if row.lost_updates is not None:
                self.lost_update_shares.append(row.lost_updates)

    def _row(self, step_batch: StepBatch, outcome: StepOutcome, duration: float) -> dict[str, Any]:
        return {
            "step": self.steps,
            "epoch": step_batch.epoch,
            "loss": outcome.loss,
            "learning_rate": outcome.learning_rate,
            "grad_norm": outcome.grad_norm,
            "loss_scale": outcome.loss_scale,
            "skipped": outcome.skipped,
            "lost_updates": outcome.lost_updates,
            "examples": len(step_batch.effective_ids),
            "tokens": step_batch.effective_length,
            "micro_batches": len(step_batch.micro_batches),
            "seconds": duration,
            "examples_per_second": len(step_batch.effective_ids) / duration,
            "tokens_per_second": step_batch.effective_length / duration,
            "waiting_share": self.waiting_seconds[-1] / duration,
        }

    def _update_bar(self, outcome: StepOutcome, row: dict[str, Any]) -> None:
        figures = {
            "loss": f"{outcome.loss:.3f}",
            "lr": f"{outcome.learning_rate:.1e}",
            "ex/s": f"{row['examples_per_second']:.0f}",
        }
        if outcome.loss_scale is not None:
            figures |= {"scale": f"{outcome.loss_scale:g}", "skipped": str(self.skipped)}
        self._bar.set_postfix(figures, refresh=False)
        self._bar.update()
        if self._bar.disable and self._started - self._reported >= SECONDS_BETWEEN_LINES:
            self._reported = self._started
            self.write(self._progress_line(figures))

    def _progress_line(self, figures: Mapping[str, str]) -> str:
        """Return a line for logs, which show no progress bar."""
        seconds = sum(self.step_seconds) / self.steps * (self.total_steps - self.steps)
        listed = ", ".join(f"{name} {value}" for name, value in figures.items())
        return (
            f"step {self.steps} of {self.total_steps}, {listed}, about "
            f"{approximate_duration(seconds)} left"
        )

    def lost_updates(self) -> float | None:
        """Return the median share of lost updates; None if it was never measured."""
        return float(np.median(self.lost_update_shares)) if self.lost_update_shares else None

    def timings(self) -> dict[str, Any]:
        """Return durations and rates after warm-up, and how they were measured.

        At least one step must have been recorded. If all steps are warm-up, all count.
        """
        first = WARM_UP_STEPS if self.steps > WARM_UP_STEPS else 0
        seconds = np.array(self.step_seconds[first:])
        low, median, high = np.percentile(seconds, [25, 50, 75]).tolist()
        total = sum(self.step_seconds)
        return {
            "protocol": f"optimizer steps after the first {WARM_UP_STEPS}, device synchronized by "
            "reading the loss; waiting for data is included, and also reported separately; tokens "
            "per second: median over these steps; examples per second: mean over all steps",
            "steps_timed": len(seconds),
            "step_seconds_median": median,
            "step_seconds_quartiles": [low, high],
            "training_seconds": total,
            "examples_per_second": self.examples / total,
            "tokens_per_second": float(np.median(np.array(self.lengths[first:]) / seconds)),
            "waiting_share": sum(self.waiting_seconds[first:]) / float(seconds.sum()),
        }


@dataclass(frozen=True)
class HistoryRow:
    """A row of `history.jsonl`, without rates and ranges; losses and norms can be NaN."""

    step: Positive
    epoch: Count
    loss: float
    learning_rate: float
    grad_norm: float
    loss_scale: float | None
    skipped: bool
    lost_updates: float | None
    examples: Count
    tokens: Count
    micro_batches: Positive
    seconds: NotNegative
    waiting_share: NotNegative


def parse_rows(content: bytes, name: str) -> tuple[HistoryRow, ...]:
    """Return the rows of a complete history.

    Args:
        content: Contents of `history.jsonl`.
        name: Name of the file, for the error message.

    Raises:
        ValueError: A line is not a row; the message names it.
    """
    names = HistoryRow.__dataclass_fields__
    rows = []
    for number, row in enumerate(read_json_lines(content, name), 1):
        values = {key: _as_number(value) for key, value in row.items()}
        known = {key: value for key, value in values.items() if key in names}
        rows.append(from_json(HistoryRow, known, f"{name}, line {number}"))
        for key in values.keys() - known.keys() - {"alarm"}:
            if not isinstance(values[key], float | int | None):
                raise ValueError(f"{name}, line {number}.{key} is not a number")
    return tuple(rows)


def _as_number(value: object) -> object:
    """Return a number that is not finite, which the history holds as text."""
    return float(value) if value in ("nan", "inf", "-inf") else value


def read_history(path: Path) -> tuple[dict[str, JSONValue], ...]:
    """Return the rows of `history.jsonl`, in the order of the steps.

    A last line without a newline is ignored, because a run that is killed can leave one.

    Raises:
        InputError: The file cannot be read, or a line is not a JSON object.
    """
    try:
        complete_lines, _, _ = path.read_bytes().rpartition(b"\n")
        return tuple(read_json_lines(complete_lines, HISTORY_NAME))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the history cannot be read ({error}).") from error


def write_csv(history: Path, target: Path) -> None:
    """Write the rows of `history.jsonl` as CSV, one column per key of any row."""
    rows = read_history(history)
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(chain(*rows))) or ["step"])
        writer.writeheader()
        writer.writerows(rows)


def _nonfinite_as_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with NaN and infinities as strings, because JSON has no such numbers."""
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
