"""How often a training writes a checkpoint, as `--checkpointing_steps` spells it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ampft.errors import InputError


@dataclass(frozen=True)
class Interval:
    """Interval between checkpoints; at most one of the three is set."""

    steps: int | None = None  # Number of optimizer steps.
    seconds: float | None = None  # Time in seconds.
    # Whether a checkpoint is written after every epoch and its validation.
    every_epoch: bool = False

    @property
    def is_set(self) -> bool:
        """Whether checkpoints are written."""
        return self.every_epoch or self.steps is not None or self.seconds is not None

    def most_at_once(self, total_steps: int, steps_per_epoch: int, limit: int | None) -> int:
        """Return how many checkpoints of a training are on the disk at once, at most.

        Args:
            total_steps: Optimizer steps of the training.
            limit: Number of checkpoints to keep, besides the one that is being written; None keeps
                all. The number of those that are written by time is unknown, and counts as one.
        """
        every = steps_per_epoch if self.every_epoch else self.steps
        planned = total_steps // every if every else int(self.seconds is not None)
        return planned if limit is None else min(planned, limit + 1)


def parse_interval(text: str | None) -> Interval:
    """Return the interval that `--checkpointing_steps` spells; None means never.

    Raises:
        InputError: The text is neither a positive number of steps, nor `epoch`, nor minutes.
    """
    if text is None:
        return Interval()
    word = text.strip().lower()
    if word == "epoch":
        return Interval(every_epoch=True)
    if re.fullmatch(r"[0-9]{1,9}", word) and int(word) > 0:
        return Interval(steps=int(word))
    minutes = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?min", word)
    if minutes and float(minutes[1]) > 0:
        return Interval(seconds=60 * float(minutes[1]))
    raise InputError(
        f"--checkpointing_steps: received {text!r}. Use a number of optimizer steps such as 500, "
        "the word epoch, or minutes such as 10min."
    )
