"""Runs the recipe, and sends this process a signal at a chosen moment.

python preempted_run.py MOMENT SIGNAL RESULTS FLAG ...

With several processes, the last one receives the signal. Each writes how it ended into RESULTS.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from unittest.mock import patch

import ampft
from ampft.errors import Preempted
from ampft.runs.checkpointing import Checkpointing
from ampft.runs.run import Run

REPOSITORY = Path(__file__).parents[2]


def interrupting(function, number, when):
    """Return `function`, before whose first call with `when(*arguments)` the signal arrives."""
    sent = []

    def call(*arguments, **options):
        if not sent and when(*arguments):
            sent.append(True)
            signal.raise_signal(number)
        return function(*arguments, **options)

    return call


MOMENTS = {
    "training": (Run, "record", lambda run, outcome: run.steps == 4),
    "validation": (Run, "_predict", lambda run, model, split: split == "validation"),
    "saving": (Checkpointing, "_write", lambda *_: True),
    "final evaluation": (Run, "_predict", lambda run, model, split: split == "test"),
}


def interrupted_at(moment, number):
    """Return a context in which the process receives a signal at a moment."""
    owner, name, when = MOMENTS[moment]
    return patch.object(owner, name, interrupting(getattr(owner, name), number, when))


def main(moment: str, number: str, results: str, *flags: str) -> None:
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    train = runpy.run_path(str(REPOSITORY / "recipes" / "classify.py"))["train"]
    receiver = rank == processes - 1
    context = interrupted_at(moment, signal.Signals[number]) if receiver else patch.dict({}, {})
    ending = "finished"
    with context:
        try:
            train(ampft.parse_classify_arguments(list(flags)))
        except Preempted as error:
            ending = f"{error.exit_code} {error}"
    Path(results, f"rank{rank}.txt").write_text(ending)


if __name__ == "__main__":
    main(*sys.argv[1:])
