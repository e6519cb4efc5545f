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
from ampft.files import FileDigest, write
from ampft.ownership import file_identity
from ampft.runs.manifest import HISTORY_NAME
from ampft.text.json_io import Count, JSONValue, NotNegative, Positive, from_json, read_json_lines
from ampft.text.numbers import approximate_duration
from ampft.text.terminal import labelled, print_line, progress_bar

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ampft.data.step_batches import StepBatch
    from ampft.engine.step import StepOutcome

WARM_UP_STEPS = 5
SECONDS_BETWEEN_LINES = 60.0  # where no progress bar is shown
TIMED, LEAST_SAID = 2.0, 10.0  # seconds of the first steps, and of others whose duration is said
# 80 columns are too few for both a bar and the figures.
PROGRESS_FORMAT = "{desc} {percentage:.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


@dataclass(frozen=True)
class HistoryRow:
    """An optimizer step in `history.jsonl`; losses and norms can be NaN.

    `tokens` is the length of its effective batch: its tokens, or its examples if inputs have no
    tokens. `seconds` is its duration, including the wait for data, whose share is `waiting_share`.
    """

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

    def values(self) -> dict[str, Any]:
        """Return the columns of the step, with its rates."""
        values = dict(vars(self))
        waiting_share = values.pop("waiting_share")
        return {
            **values,
            "examples_per_second": self.examples / self.seconds,
            "tokens_per_second": self.tokens / self.seconds,
            "waiting_share": waiting_share,
        }


@dataclass
class History:
    """Context that records optimizer steps and shows a progress bar."""

    path: Path | None  # `history.jsonl`, on the main process; None writes nothing.
    accelerator: Accelerator  # Accelerator whose trackers receive every row.
    total_steps: int  # Optimizer steps of the whole training.
    rows: list[HistoryRow] = field(default_factory=list)  # Optimizer steps so far.
    skipped: int = 0  # Number of skipped steps among them.
    _written: bytearray = field(default_factory=bytearray, repr=False)
    _is_duration_said: bool = False

    def __enter__(self) -> History:
        self._file: IO[bytes] | None = None
        if self.path is not None:
            if not self.steps:
                self.path.open("xb").close()  # it never continues a file of another program
            try:
                self._file = self.path.open("ab")
            except IsADirectoryError as error:  # since the run wrote it
                raise self._changed() from error
        self._bar = progress_bar(
            shown=self.accelerator.is_main_process and self.total_steps > 0,
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
        return len(self.rows)

    @property
    def losses(self) -> list[float]:
        """Loss of each applied step, per unit of weight."""
        return [row.loss for row in self.rows if not row.skipped]

    def write(self, text: str) -> None:
        """Print a line above the progress bar, on the main process."""
        if self.accelerator.is_main_process:
            print_line(text)

    def resume_clock(self) -> None:
        """Restart the timing of the current step, for example after an evaluation."""
        self._started = time.perf_counter()

    def record(
        self, step_batch: StepBatch, outcome: StepOutcome, columns: Mapping[str, float | None]
    ) -> None:
        """Add an optimizer step.

        Args:
            outcome: Outcome of the step. Copying its values from the device has synchronized it,
                so the measured time covers the whole step.
            columns: Further columns of the step, from features of the run.
        """
        now = time.perf_counter()
        duration = now - self._started
        self._started = now
        row = HistoryRow(
            step=self.steps + 1,
            epoch=step_batch.epoch,
            loss=outcome.loss,
            learning_rate=outcome.learning_rate,
            grad_norm=outcome.grad_norm,
            loss_scale=outcome.loss_scale,
            skipped=outcome.skipped,
            lost_updates=outcome.lost_updates,
            examples=len(step_batch.effective_ids),
            tokens=step_batch.effective_length,
            micro_batches=len(step_batch.micro_batches),
            seconds=duration,
            waiting_share=min(step_batch.wait_seconds, duration) / duration,
        )
        self.rows.append(row)
        self.skipped += row.skipped
        values = {**row.values(), **columns}
        if self._file:
            self._restore_lost()
            # JSON has no number that is not finite.
            texts = {k: v if v is None or math.isfinite(v) else str(v) for k, v in values.items()}
            line = (json.dumps(texts) + "\n").encode()
            write(self._file, line)
            self._file.flush()
            self._written += line
        if self.accelerator.trackers:
            numbers = {k: v for k, v in values.items() if v is not None and math.isfinite(v)}
            del numbers["step"]  # Trackio warns of a metric with this name
            self.accelerator.log(numbers, step=self.steps)
        self._update_bar(row)

    def position(self) -> FileDigest:
        """Return hash and size of what has been written so far, on the main process."""
        digest = hashlib.sha256(self._written).hexdigest()
        return FileDigest(sha256=digest, bytes=len(self._written))

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
        if file_identity(self.path) != (found.st_dev, found.st_ino):
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
        self.rows += parse_rows(beginning, HISTORY_NAME)
        self.skipped = sum(row.skipped for row in self.rows)

    def _update_bar(self, row: HistoryRow) -> None:
        """Show the step in the progress bar, or now and then in a line for logs, without a bar."""
        rate = row.examples / row.seconds
        figures = {
            "loss": f"{row.loss:.3f}",
            "lr": f"{row.learning_rate:.1e}",
            "ex/s": f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}",
        }
        if row.loss_scale is not None:
            figures |= {"scale": f"{row.loss_scale:g}", "skipped": str(self.skipped)}
        self._bar.set_postfix(figures, refresh=False)
        self._bar.update()
        if not self._is_duration_said:
            self._say_duration()
        if self._bar.disable and self._started - self._reported >= SECONDS_BETWEEN_LINES:
            self._reported = self._started
            mean = sum(each.seconds for each in self.rows) / self.steps
            left = approximate_duration(mean * (self.total_steps - self.steps))
            listed = ", ".join(f"{name} {value}" for name, value in figures.items())
            self.write(f"step {self.steps} of {self.total_steps}, {listed}, about {left} left")

    def _say_duration(self) -> None:
        """Say once, after a few seconds, how long the training will take."""
        timed = [row.seconds for row in self.rows[1:]]  # the first step allocates
        if sum(timed) < TIMED:
            return
        self._is_duration_said = True
        steps = self.total_steps - self.steps
        left = sum(timed) / len(timed) * steps
        if left >= LEAST_SAID:
            duration = approximate_duration(left)
            self.write(labelled("time", f"about {duration} for the other {steps} training steps"))

    def lost_updates(self) -> float | None:
        """Return the median share of lost updates; None if it was never measured."""
        shares = [row.lost_updates for row in self.rows if row.lost_updates is not None]
        return float(np.median(shares)) if shares else None

    def timings(self) -> dict[str, Any]:
        """Return durations and rates after warm-up, and how they were measured.

        At least one step must have been recorded. If all steps are warm-up, all count.
        """
        first = WARM_UP_STEPS if self.steps > WARM_UP_STEPS else 0
        rows = self.rows[first:]
        seconds = np.array([row.seconds for row in rows])
        low, median, high = np.percentile(seconds, [25, 50, 75]).tolist()
        total = sum(row.seconds for row in self.rows)
        return {
            "protocol": f"optimizer steps after the first {WARM_UP_STEPS}, device synchronized by "
            "reading the loss; waiting for data is included, and also reported separately; tokens "
            "per second: median over these steps; examples per second: mean over all steps",
            "steps_timed": len(seconds),
            "step_seconds_median": median,
            "step_seconds_quartiles": [low, high],
            "training_seconds": total,
            "examples_per_second": sum(row.examples for row in self.rows) / total,
            "tokens_per_second": float(np.median(np.array([row.tokens for row in rows]) / seconds)),
            "waiting_share": sum(row.waiting_share * row.seconds for row in rows)
            / float(seconds.sum()),
        }


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
        values = {  # the history has numbers that are not finite as text
            key: float(value) if value in ("nan", "inf", "-inf") else value
            for key, value in row.items()
        }
        known = {key: value for key, value in values.items() if key in names}
        rows.append(from_json(HistoryRow, known, f"{name}, line {number}"))
        for key in values.keys() - known.keys() - {"alarm"}:
            if not isinstance(values[key], float | int | None):
                raise ValueError(f"{name}, line {number}.{key} is not a number")
    return tuple(rows)


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
