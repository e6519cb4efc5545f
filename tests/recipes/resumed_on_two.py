"""Runs the recipe several times in each of two processes: straight, interrupted, continued.

torchrun resumed_on_two.py FOLDER FLAGS ...   FOLDER/one holds a run of one process to continue
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import torch.distributed
from global_state import fresh_global_state
from resumed_runs import LATEST, interrupted
from running import CLASSIFY


def train(folder: Path, flags: list[str], *more: str, stop: int | None = None) -> None:
    sys.argv = [CLASSIFY, *flags, "--output_dir", str(folder), *more]
    # A second process group in the same processes would not connect, so the first one is kept.
    kept = patch.object(torch.distributed, "destroy_process_group", lambda *_: None)
    # It also keeps the failure of an interrupted training, for which the next one would end.
    patient = patch("ampft.engine.ending.GRACE_SECONDS", 600)
    with fresh_global_state(), interrupted(stop), kept, patient:
        try:
            runpy.run_path(CLASSIFY, run_name="__main__")
        except SystemExit as end:
            code = end.code
    assert code == (130 if stop else 0), (folder, more, code)


def main(folder: Path, flags: list[str]) -> None:
    train(folder / "straight", flags)
    every = ("--checkpointing_steps", "2")
    train(folder / "interrupted", flags, *every, stop=4)
    for step in (6, 12, None):
        train(folder / "interrupted", flags, *every, *LATEST, stop=step)
    train(folder / "one", flags, *LATEST, "--allow_topology_change")
    train(folder / "one", flags, *LATEST)  # it has finished: both processes end


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
