"""What happens at each optimizer step: a line of `history.jsonl`, trackers, a progress bar."""

from __future__ import annotations

import csv
import json
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from ampft.errors import InputError
from ampft.text.json_io import JSONValue
from ampft.text.terminal import print_line

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ampft.data.steps import StepBatch
    from ampft.training.step import StepOutcome

WARM_UP_STEPS = 5
# Figures in place of a bar: at 80 columns there is room for one of the two.
BAR = "{desc} {percentage:.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


@dataclass
class History:
    """Records optimizer steps as they happen; use it as a context.

    Attributes:
        path: `history.jsonl`, on the main process; None writes nothing.
        accelerator: Its trackers get every row.
        total_steps: Of the whole training.
        seconds: Duration of each optimizer step so far, waiting for data included.
        waited: Seconds of each that were spent waiting for data.
        lost: Shares of weight updates that rounding lost, of the steps where it was measured.
        lengths: Length of each: its tokens, or its examples where all cost the same.
    """

    path: Path | None
    accelerator: Accelerator
    total_steps: int
    seconds: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    examples: int = 0
    skipped: int = 0
    lost: list[float] = field(default_factory=list)

    def __enter__(self) -> History:
        self._file: IO[str] | None = self.path.open("w", encoding="utf-8") if self.path else None
        self._bar = tqdm(
            total=self.total_steps,
            desc="training",
            unit="step",
            disable=None if self.accelerator.is_main_process else True,  # None: only a terminal
            file=sys.stderr,
            dynamic_ncols=True,
            bar_format=BAR,
        )
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the progress bar and the file; calling twice is allowed."""
        self._bar.close()
        if self._file:
            self._file.close()

    @property
    def steps(self) -> int:
        """Optimizer steps so far, skipped ones included."""
        return len(self.seconds)

    def write(self, text: str) -> None:
        """Print a line above the progress bar, on the main process."""
        if self.accelerator.is_main_process:
            print_line(text)

    def resume_clock(self) -> None:
        """Start timing anew, after an evaluation for example."""
        self._started = time.perf_counter()

    def record(self, step_batch: StepBatch, outcome: StepOutcome, memory: float | None) -> None:
        """Write one optimizer step; `memory` is the peak so far in MiB.

        The values of `outcome` were copied from the device, so it is done and the time is whole.
        """
        now = time.perf_counter()
        duration = now - self._started
        self._started = now
        self.seconds.append(duration)
        self.waited.append(min(step_batch.wait_seconds, duration))
        self.examples += len(step_batch.effective_ids)
        self.lengths.append(step_batch.effective_length)
        self.skipped += outcome.skipped
        self.lost += [] if outcome.lost_updates is None else [outcome.lost_updates]
        row = self._row(step_batch, outcome, duration, memory)
        if self._file:
            self._file.write(json.dumps(_without_nan(row)) + "\n")
            self._file.flush()
        if self.accelerator.trackers:
            numbers = {k: v for k, v in row.items() if v is not None and math.isfinite(v)}
            self.accelerator.log(numbers, step=self.steps)
        self._show(outcome, row)

    def _row(
        self, step_batch: StepBatch, outcome: StepOutcome, duration: float, memory: float | None
    ) -> dict[str, Any]:
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
            "waiting_share": self.waited[-1] / duration,
            "memory_mib": memory,
        }

    def _show(self, outcome: StepOutcome, row: dict[str, Any]) -> None:
        shown = {
            "loss": f"{outcome.loss:.3f}",
            "lr": f"{outcome.learning_rate:.1e}",
            "ex/s": f"{row['examples_per_second']:.0f}",
        }
        if outcome.loss_scale is not None:
            shown |= {"scale": f"{outcome.loss_scale:g}", "skipped": str(self.skipped)}
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def lost_updates(self) -> float | None:
        """Return the median share of lost updates; None where nothing was measured."""
        return float(np.median(self.lost)) if self.lost else None

    def timings(self) -> dict[str, Any]:
        """Return the steady-state durations: median, quartiles, rates, and how they were taken."""
        steady = np.array(self.seconds[WARM_UP_STEPS:] or self.seconds or [math.nan])
        waited = np.array(self.waited[WARM_UP_STEPS:] or self.waited or [math.nan])
        lengths = np.array(self.lengths[-len(steady) :], dtype=np.float64)
        rates = lengths / steady[: len(lengths)]
        low, median, high = np.percentile(steady, [25, 50, 75]).tolist()
        total = sum(self.seconds) or math.nan
        return _without_nan(
            {
                "protocol": f"optimizer steps after the first {WARM_UP_STEPS}, device synchronized "
                "by reading the loss, waiting for data included and counted apart; tokens per "
                "second: the median of the same steps; examples per second: of all steps together",
                "steps_timed": len(steady),
                "step_seconds_median": median,
                "step_seconds_quartiles": [low, high],
                "training_seconds": total,
                "examples_per_second": self.examples / total,
                "tokens_per_second": float(np.median(rates)) if self.lengths else math.nan,
                "waiting_share": float(waited.sum() / steady.sum()),
            }
        )


def read_history(path: Path) -> tuple[dict[str, JSONValue], ...]:
    """Return the rows of a history, in the order of the steps.

    A last line without its newline is what a killed run leaves: it is left out.

    Args:
        path: `history.jsonl`.

    Raises:
        InputError: When the file is missing or a whole line is no JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a run's history ({error})") from error
    whole, _, _ = text.rpartition("\n")
    return tuple(
        _row(path, number, line) for number, line in enumerate(whole.split("\n"), 1) if line
    )


def _row(path: Path, number: int, line: str) -> dict[str, JSONValue]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {number}: is no JSON ({error})") from error
    if not isinstance(row, dict):
        raise InputError(f"{path}, line {number}: must be a JSON object, got {line[:60]!r}")
    return row


def write_csv(history: Path, target: Path) -> None:
    """Write the rows of `history.jsonl` as CSV, one column per key."""
    lines = history.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["step"])
        writer.writeheader()
        writer.writerows(rows)


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    """Write what is not finite by its name, as a string: JSON has no word for it."""
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
