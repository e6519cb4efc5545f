"""Runs the recipe, and lets something fail in one process after the training.

torchrun planted_run.py RANK PLACE FLAG ...
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys

import pytest
from running import CLASSIFY


def plant(monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException) -> None:
    """Let a function or a method raise, if it is not used before the training has ended.

    Args:
        place: Module and path, such as "ampft.tasks.task:Task.save_pictures".
    """
    module, _, path = place.partition(":")
    holder = importlib.import_module(module)
    *owner, name = path.split(".")
    for each in owner:
        holder = getattr(holder, each)
    original = getattr(holder, name)

    def fail(*args, **kwargs):
        if name == "predict" and "test" not in args:
            return original(*args, **kwargs)
        raise error

    monkeypatch.setattr(holder, name, fail)


def main(rank: str, place: str, *flags: str) -> None:
    if os.environ["RANK"] == rank:
        plant(pytest.MonkeyPatch(), place, ValueError("planted"))
    sys.argv = [str(CLASSIFY), *flags]
    runpy.run_path(str(CLASSIFY), run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
