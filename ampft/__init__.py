"""Fine-tune classifiers in mixed precision, and say with evidence which precision to use.

The pieces for a loop of your own; see `recipes/plain_loop.py`:

    precision = ampft.resolve("fp16", device)
    accelerator = ampft.make_accelerator(precision)
    with ampft.numerics(precision):
        ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampft.data.steps import MicroBatch as MicroBatch
    from ampft.data.steps import StepBatch as StepBatch
    from ampft.data.steps import StepBatches as StepBatches
    from ampft.errors import InputError as InputError
    from ampft.errors import TrainingStopped as TrainingStopped
    from ampft.executed import ProductRecorder as ProductRecorder
    from ampft.precision import MODES as MODES
    from ampft.precision import Precision as Precision
    from ampft.precision import requested_mode as requested_mode
    from ampft.precision import resolve as resolve
    from ampft.report.classification import Report as Report
    from ampft.report.classification import classification_report as classification_report
    from ampft.report.predictions import Predictions as Predictions
    from ampft.tasks.loss import summed_cross_entropy as summed_cross_entropy
    from ampft.training.accelerator import make_accelerator as make_accelerator
    from ampft.training.accelerator import numerics as numerics
    from ampft.training.step import StepOutcome as StepOutcome
    from ampft.training.step import apply_step as apply_step
    from ampft.training.step import backward as backward
    from ampft.training.step import synchronized_last as synchronized_last

_HOMES = {
    "MicroBatch": "data.steps",
    "StepBatch": "data.steps",
    "StepBatches": "data.steps",
    "InputError": "errors",
    "TrainingStopped": "errors",
    "ProductRecorder": "executed",
    "MODES": "precision",
    "Precision": "precision",
    "requested_mode": "precision",
    "resolve": "precision",
    "Report": "report.classification",
    "classification_report": "report.classification",
    "Predictions": "report.predictions",
    "summed_cross_entropy": "tasks.loss",
    "make_accelerator": "training.accelerator",
    "numerics": "training.accelerator",
    "StepOutcome": "training.step",
    "apply_step": "training.step",
    "backward": "training.step",
    "synchronized_last": "training.step",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; `ampft --help` should not wait for it.
    if name not in _HOMES:
        raise AttributeError(f"module 'ampft' has no attribute {name!r}")
    return getattr(import_module(f"ampft.{_HOMES[name]}"), name)
