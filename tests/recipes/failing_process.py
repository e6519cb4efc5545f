"""Runs a recipe whose second process fails in its third step."""

import runpy
import sys

import accelerate

from ampft.engine import step

apply_step, calls = step.apply_step, []


def failing(accelerator: accelerate.Accelerator, *args: object, **options: object) -> object:
    """Apply the step, or fail."""
    calls.append(1)
    if accelerator.process_index == 1 and len(calls) == 3:
        raise ValueError("this process had enough")
    return apply_step(accelerator, *args, **options)


if __name__ == "__main__":
    import ampft

    ampft.apply_step = failing
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
