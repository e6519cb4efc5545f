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
    from accelerate.utils import set_seed as set_seed

    from ampft.arguments import ClassifyArguments as ClassifyArguments
    from ampft.arguments import CompareCommand as CompareCommand
    from ampft.arguments import parse_classify_arguments as parse_classify_arguments
    from ampft.arguments import parse_compare_arguments as parse_compare_arguments
    from ampft.comparing.begin import plan_comparison as plan_comparison
    from ampft.comparing.session import is_decided as is_decided
    from ampft.comparing.session import open_comparison as open_comparison
    from ampft.comparison.analysis import compare_folders as compare_folders
    from ampft.comparison.show import terminal_text as terminal_text
    from ampft.comparison.write import write_comparison as write_comparison
    from ampft.data.load import load_data as load_data
    from ampft.data.steps import FloatArray as FloatArray
    from ampft.data.steps import IntArray as IntArray
    from ampft.data.steps import MicroBatch as MicroBatch
    from ampft.data.steps import StepBatch as StepBatch
    from ampft.data.steps import StepBatches as StepBatches
    from ampft.data.tensors import TensorExamples as TensorExamples
    from ampft.errors import InputError as InputError
    from ampft.errors import TrainingStopped as TrainingStopped
    from ampft.errors import run_door as run_door
    from ampft.evaluation.evaluate import evaluate as evaluate
    from ampft.executed import ProductRecorder as ProductRecorder
    from ampft.precision import MODES as MODES
    from ampft.precision import Precision as Precision
    from ampft.precision import requested_mode as requested_mode
    from ampft.precision import resolve as resolve
    from ampft.report.classification import Report as Report
    from ampft.report.classification import classification_report as classification_report
    from ampft.report.predictions import Predictions as Predictions
    from ampft.run import Run as Run
    from ampft.run import open_run as open_run
    from ampft.setup import Setup as Setup
    from ampft.setup import begin as begin
    from ampft.setup import choose_folder as choose_folder
    from ampft.tasks import make_task as make_task
    from ampft.tasks.loss import summed_cross_entropy as summed_cross_entropy
    from ampft.terminal import tell as tell
    from ampft.training.accelerator import check_world_size as check_world_size
    from ampft.training.accelerator import make_accelerator as make_accelerator
    from ampft.training.accelerator import numerics as numerics
    from ampft.training.accelerator import training_device as training_device
    from ampft.training.optimizer import make_optimizer as make_optimizer
    from ampft.training.optimizer import make_schedule as make_schedule
    from ampft.training.step import StepOutcome as StepOutcome
    from ampft.training.step import apply_step as apply_step
    from ampft.training.step import backward as backward
    from ampft.training.step import casts_kept as casts_kept
    from ampft.training.step import synchronized_last as synchronized_last
    from ampft.training.storage import cast_weights as cast_weights
    from ampft.training.threads import restore_cpu_threads as restore_cpu_threads
    from ampft.training.trackers import installed_trackers as installed_trackers

# torch takes seconds to import; `ampft --help` should not wait for it.
_HOMES = {
    "set_seed": "accelerate.utils",
    "ClassifyArguments": "ampft.arguments",
    "CompareCommand": "ampft.arguments",
    "parse_classify_arguments": "ampft.arguments",
    "parse_compare_arguments": "ampft.arguments",
    "plan_comparison": "ampft.comparing.begin",
    "is_decided": "ampft.comparing.session",
    "open_comparison": "ampft.comparing.session",
    "compare_folders": "ampft.comparison.analysis",
    "terminal_text": "ampft.comparison.show",
    "write_comparison": "ampft.comparison.write",
    "load_data": "ampft.data.load",
    "FloatArray": "ampft.data.steps",
    "IntArray": "ampft.data.steps",
    "MicroBatch": "ampft.data.steps",
    "StepBatch": "ampft.data.steps",
    "StepBatches": "ampft.data.steps",
    "TensorExamples": "ampft.data.tensors",
    "InputError": "ampft.errors",
    "TrainingStopped": "ampft.errors",
    "run_door": "ampft.errors",
    "evaluate": "ampft.evaluation.evaluate",
    "ProductRecorder": "ampft.executed",
    "MODES": "ampft.precision",
    "Precision": "ampft.precision",
    "requested_mode": "ampft.precision",
    "resolve": "ampft.precision",
    "Report": "ampft.report.classification",
    "classification_report": "ampft.report.classification",
    "Predictions": "ampft.report.predictions",
    "Run": "ampft.run",
    "Setup": "ampft.setup",
    "begin": "ampft.setup",
    "choose_folder": "ampft.setup",
    "open_run": "ampft.run",
    "make_task": "ampft.tasks",
    "summed_cross_entropy": "ampft.tasks.loss",
    "tell": "ampft.terminal",
    "check_world_size": "ampft.training.accelerator",
    "make_accelerator": "ampft.training.accelerator",
    "numerics": "ampft.training.accelerator",
    "training_device": "ampft.training.accelerator",
    "make_optimizer": "ampft.training.optimizer",
    "make_schedule": "ampft.training.optimizer",
    "StepOutcome": "ampft.training.step",
    "apply_step": "ampft.training.step",
    "backward": "ampft.training.step",
    "casts_kept": "ampft.training.step",
    "synchronized_last": "ampft.training.step",
    "cast_weights": "ampft.training.storage",
    "restore_cpu_threads": "ampft.training.threads",
    "installed_trackers": "ampft.training.trackers",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ampft' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
