"""Runs the recipe several times, each time until one process receives SIGTERM.

torchrun preempted_run.py MOMENT,... RESULTS FLAG ...

The last process receives the signal. Each process writes how its runs ended into RESULTS.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

from global_state import fresh_global_state
from torch import distributed

import ampft
from ampft.errors import Preempted
from ampft.runs import run as runs_run
from ampft.runs.loop import Checkpointing
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
    "validation": (runs_run, "predict", lambda state, model, split: split == "validation"),
    "saving": (Checkpointing, "_write", lambda *_: True),
    "final evaluation": (runs_run, "predict", lambda state, model, split: split == "test"),
}


def interrupted_at(moment, number):
    """Return a context in which the process receives a signal at a moment."""
    owner, name, when = MOMENTS[moment]
    return patch.object(owner, name, interrupting(getattr(owner, name), number, when))


def main(moments: str, results: str, *flags: str) -> None:
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    train = runpy.run_path(str(REPOSITORY / "recipes" / "classify.py"))["train"]
    endings = []
    # One group for all runs: a second one may find the addresses of the first, and wait forever.
    distributed.init_process_group("gloo")
    for moment in moments.split(","):
        receives = rank == processes - 1
        signalled = interrupted_at(moment, signal.SIGTERM) if receives else nullcontext()
        one_group = patch.object(distributed, "destroy_process_group")
        with fresh_global_state(), signalled, one_group:
            try:
                train(ampft.parse_classify_arguments(list(flags)))
            except Preempted as error:
                endings.append(f"{error.exit_code} {error}")
    Path(results, f"rank{rank}.json").write_text(json.dumps(endings))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
