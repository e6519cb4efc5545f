"""Runs a recipe whose second process fails, or is killed, in its third step.

failing_process.py raises|killed RECIPE FLAGS...
"""

import os
import runpy
import signal
import sys

import accelerate

from ampft.engine import step

apply_step, calls = step.apply_step, []


def failing(accelerator: accelerate.Accelerator, *args: object, **options: object) -> object:
    """Apply the step, or fail."""
    calls.append(1)
    if accelerator.process_index == 1 and len(calls) == 3:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("this process had enough")
    return apply_step(accelerator, *args, **options)


if __name__ == "__main__":
    import ampft

    ampft.apply_step = failing
    how, *sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
