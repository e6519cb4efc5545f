"""One of two processes that watch a step together; started by `test_range_watch.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

import ampft
from ampft.checks.value_ranges import ValueRangeMonitor
from ampft.engine.step import StepOutcome
from ampft.precision.resolve import resolve

OUTCOME = StepOutcome(1.0, 1.0, None, False, 0.1)


def main(folder: Path) -> None:
    """Watch one step, in which the second process has an input 8 times as large."""
    precision = resolve("fp16", torch.device("cpu"))
    accelerator = ampft.make_accelerator(precision)
    torch.manual_seed(0)
    loaded = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model = accelerator.prepare(loaded)
    accelerator.scaler.scale(torch.ones(()))  # creates the scale
    watch = ValueRangeMonitor(1, accelerator, loaded, precision, print)
    inputs = torch.ones(2, 4) * 8.0**accelerator.process_index
    with ampft.numerics(precision), watch.around_gradient(1):
        accelerator.backward(model(inputs).float().mean() * 1e-2)
    gradient = {name: float(part.weight.grad.norm()) for name, part in loaded.named_children()}
    result = {"figures": watch.after_step(OUTCOME), "gradient": gradient}
    (folder / f"rank{accelerator.process_index}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
