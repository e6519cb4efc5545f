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
    from ampft.comparison.analysis.compare import compare_folders as compare_folders
    from ampft.comparison.execution.planning import plan_comparison as plan_comparison
    from ampft.comparison.execution.session import is_decided as is_decided
    from ampft.comparison.execution.session import open_comparison as open_comparison
    from ampft.comparison.report.terminal import terminal_text as terminal_text
    from ampft.comparison.report.write import write_comparison as write_comparison
    from ampft.data.load import load_data as load_data
    from ampft.data.steps import FloatArray as FloatArray
    from ampft.data.steps import IntArray as IntArray
    from ampft.data.steps import MicroBatch as MicroBatch
    from ampft.data.steps import StepBatch as StepBatch
    from ampft.data.steps import StepBatches as StepBatches
    from ampft.data.tensors import TensorExamples as TensorExamples
    from ampft.errors import InputError as InputError
    from ampft.errors import TrainingStopped as TrainingStopped
    from ampft.errors import run_main as run_main
    from ampft.evaluation.evaluate import evaluate as evaluate
    from ampft.metrics.classification import Report as Report
    from ampft.metrics.classification import classification_report as classification_report
    from ampft.metrics.predictions import Predictions as Predictions
    from ampft.models.weights import cast_weights as cast_weights
    from ampft.precision.accelerator import check_world_size as check_world_size
    from ampft.precision.accelerator import make_accelerator as make_accelerator
    from ampft.precision.accelerator import numerics as numerics
    from ampft.precision.accelerator import training_device as training_device
    from ampft.precision.executed import ProductRecorder as ProductRecorder
    from ampft.precision.resolve import MODES as MODES
    from ampft.precision.resolve import Precision as Precision
    from ampft.precision.resolve import requested_mode as requested_mode
    from ampft.precision.resolve import resolve as resolve
    from ampft.runs.run import Run as Run
    from ampft.runs.run import open_run as open_run
    from ampft.runs.setup import Setup as Setup
    from ampft.runs.setup import begin as begin
    from ampft.runs.setup import choose_folder as choose_folder
    from ampft.tasks import make_task as make_task
    from ampft.tasks.loss import summed_cross_entropy as summed_cross_entropy
    from ampft.text.terminal import print_line as print_line
    from ampft.training.optimizer import make_optimizer as make_optimizer
    from ampft.training.optimizer import make_schedule as make_schedule
    from ampft.training.step import StepOutcome as StepOutcome
    from ampft.training.step import apply_step as apply_step
    from ampft.training.step import backward as backward
    from ampft.training.step import casts_kept as casts_kept
    from ampft.training.step import synchronized_last as synchronized_last
    from ampft.training.threads import restore_cpu_threads as restore_cpu_threads
    from ampft.training.trackers import installed_trackers as installed_trackers

# torch takes seconds to import; `ampft --help` should not wait for it.
_HOMES = {
    "set_seed": "accelerate.utils",
    "ClassifyArguments": "ampft.arguments",
    "CompareCommand": "ampft.arguments",
    "parse_classify_arguments": "ampft.arguments",
    "parse_compare_arguments": "ampft.arguments",
    "plan_comparison": "ampft.comparison.execution.planning",
    "is_decided": "ampft.comparison.execution.session",
    "open_comparison": "ampft.comparison.execution.session",
    "compare_folders": "ampft.comparison.analysis.compare",
    "terminal_text": "ampft.comparison.report.terminal",
    "write_comparison": "ampft.comparison.report.write",
    "load_data": "ampft.data.load",
    "FloatArray": "ampft.data.steps",
    "IntArray": "ampft.data.steps",
    "MicroBatch": "ampft.data.steps",
    "StepBatch": "ampft.data.steps",
    "StepBatches": "ampft.data.steps",
    "TensorExamples": "ampft.data.tensors",
    "InputError": "ampft.errors",
    "TrainingStopped": "ampft.errors",
    "run_main": "ampft.errors",
    "evaluate": "ampft.evaluation.evaluate",
    "ProductRecorder": "ampft.precision.executed",
    "MODES": "ampft.precision.resolve",
    "Precision": "ampft.precision.resolve",
    "requested_mode": "ampft.precision.resolve",
    "resolve": "ampft.precision.resolve",
    "Report": "ampft.metrics.classification",
    "classification_report": "ampft.metrics.classification",
    "Predictions": "ampft.metrics.predictions",
    "Run": "ampft.runs.run",
    "Setup": "ampft.runs.setup",
    "begin": "ampft.runs.setup",
    "choose_folder": "ampft.runs.setup",
    "open_run": "ampft.runs.run",
    "make_task": "ampft.tasks",
    "summed_cross_entropy": "ampft.tasks.loss",
    "print_line": "ampft.text.terminal",
    "check_world_size": "ampft.precision.accelerator",
    "make_accelerator": "ampft.precision.accelerator",
    "numerics": "ampft.precision.accelerator",
    "training_device": "ampft.precision.accelerator",
    "make_optimizer": "ampft.training.optimizer",
    "make_schedule": "ampft.training.optimizer",
    "StepOutcome": "ampft.training.step",
    "apply_step": "ampft.training.step",
    "backward": "ampft.training.step",
    "casts_kept": "ampft.training.step",
    "synchronized_last": "ampft.training.step",
    "cast_weights": "ampft.models.weights",
    "restore_cpu_threads": "ampft.training.threads",
    "installed_trackers": "ampft.training.trackers",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ampft' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
