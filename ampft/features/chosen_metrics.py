"""`--metric`: further metrics of the package `evaluate`, of each validation and the final split.

They have no interval and no place in comparisons: what a module computes is not known to be a
function of sums over cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ampft.errors import InputError
from ampft.evaluation.sanity import constant_outcome
from ampft.features.feature import Feature, Write
from ampft.files import describe_file
from ampft.hub import go_offline_if_unreachable
from ampft.text.terminal import labelled

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ampft.tasks.outcome import Outcome
    from ampft.tasks.task import Task

FLAG = "--metric"
MACRO = {"average": "macro"}  # argument of precision, recall and F1 in `evaluate`


@dataclass
class ChosenMetrics(Feature):
    """Computes the metrics of `--metric`; they are printed and tracked, and at the end recorded."""

    name = "chosen_metrics"

    names: tuple[str, ...]  # Names of the metrics, as the user wrote them.
    accelerator: Accelerator  # Accelerator whose trackers receive the values.
    write: Write  # Function that prints a line.
    values: dict[str, float] = field(default_factory=dict)  # Values by name and key.

    def at_validation(self, step: int, outcome: Outcome) -> None:
        """Compute the metrics of an evaluation, which trackers get under the Trainer's names."""
        self._compute(step, outcome, "eval")

    def end(self, step: int, outcome: Outcome) -> None:
        """Compute and keep the metrics of the final split."""
        self.values = self._compute(step, outcome, outcome.split)

    def _compute(self, step: int, outcome: Outcome, tracked: str) -> dict[str, float]:
        """Return, print and track the metrics. A failure costs its metric, not the run."""
        values: dict[str, float] = {}
        for name in self.names:
            try:
                values |= compute(name, outcome)
            except Exception as error:  # the module is somebody else's code
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                self.write(labelled("warning", f"{FLAG} {name} failed on the split: {reason}"))
        listed = ", ".join(f"{name} {value:z.4f}" for name, value in values.items())
        self.write(labelled("metrics", f"{outcome.split}, by evaluate: {listed or 'none'}"))
        numbers = {n: v for n, v in values.items() if math.isfinite(v)}
        if self.accelerator.trackers:
            named = {f"{tracked}/{name}": value for name, value in numbers.items()}
            self.accelerator.log(named, step=step)
        return values

    def record(self) -> Mapping[str, Any]:
        """Return the values by name."""
        return {"metrics_chosen": self.values}


def check_metrics(names: tuple[str, ...], task: Task, *, trust_remote_code: bool) -> None:
    """Load metrics, and try them on the prediction of the class frequencies.

    Args:
        names: Hub names, or files or folders of local modules.
        trust_remote_code: Whether code of users of the hub may run.

    Raises:
        InputError: A metric cannot be loaded, or cannot be computed for the task.
    """
    split = "validation" if "validation" in task.data.splits else "test"
    outcome = constant_outcome(task, split)
    for name in names:
        if name.endswith(".py") and not Path(name).is_file():
            raise InputError(f"{FLAG} {name}: no such file. Check the path.")
        if "/" in name and not Path(name).exists() and not trust_remote_code:
            raise InputError(
                f"{FLAG} {name}: it runs code of a user of the hub. Read that code, and add "
                "--trust_remote_code, or pass a file."
            )
        try:
            compute(name, outcome)
        except InputError:
            raise
        except Exception as error:  # the module is somebody else's code
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise InputError(
                f"{FLAG} {name}: it cannot be computed for the task {task.name} ({reason}). Remove "
                "it, or pass a module of your own that can."
            ) from error


def compute(name: str, outcome: Outcome) -> dict[str, float]:
    """Return the numbers that a metric gives for a split, as `NAME` or `NAME/KEY`.

    Raises:
        InputError: The metric cannot be loaded.
        TypeError: The task has no labels that a metric takes.
    """
    several = outcome.kind == "multi_label"
    module = _loaded(name, "multilabel" if several else None, _content(name))
    features = module.features[0] if isinstance(module.features, list) else module.features
    inputs = _inputs(outcome, features)
    # Precision, recall and F1 refuse several classes without `average`, unless only two of the
    # classes occur.
    average = signature(module._compute).parameters.get("average")
    is_macro = average is not None and average.default == "binary" and _lacks_classes(outcome)
    try:
        found = module.compute(**inputs, **MACRO if is_macro else {})
    except ValueError:
        if is_macro or several or "prediction_scores" in features:
            raise
        found, is_macro = module.compute(**inputs, **MACRO), True
    short = f"{Path(name).stem}_macro" if is_macro else Path(name).stem
    numbers = {
        key: float(value)
        for key, value in (found or {}).items()
        if isinstance(value, int | float | np.number)
    }
    return {
        short if len(numbers) == 1 else f"{short}/{key}": value for key, value in numbers.items()
    }


def _lacks_classes(outcome: Any) -> bool:
    """Return whether at most two of several classes occur as labels and predictions of examples."""
    if np.ndim(outcome.labels) > 1 or len(outcome.label_names) <= 2:
        return False
    return len(np.union1d(outcome.labels, outcome.predicted)) <= 2


def _inputs(outcome: Any, features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a metric whose inputs have these names and types."""
    if not hasattr(outcome, "probabilities"):
        raise TypeError("metrics of masks are the report's own")
    if "prediction_scores" in features:
        if outcome.probabilities.shape[1] != 2:
            raise TypeError("scores are passed for two classes only; the report has ROC AUC")
        return {"references": outcome.labels, "prediction_scores": outcome.probabilities[:, 1]}
    if getattr(features["predictions"], "dtype", None) is None and outcome.kind == "token_labels":
        ends = np.cumsum(outcome.counts)[:-1]
        tags = np.asarray(outcome.label_names, dtype=object)
        return {
            "references": [tags[part].tolist() for part in np.split(outcome.labels, ends)],
            "predictions": [tags[part].tolist() for part in np.split(outcome.predicted, ends)],
        }
    as_int = np.asarray(outcome.predicted).astype(int)
    return {"references": np.asarray(outcome.labels).astype(int), "predictions": as_int}


def _content(name: str) -> str:
    """Return the SHA-256 of a file of a local module, so that a changed one is loaded again."""
    return describe_file(Path(name)).sha256 if Path(name).is_file() else ""


@cache
def _loaded(name: str, configuration: str | None, content: str) -> Any:
    del content
    import evaluate

    problem = None if Path(name).exists() else go_offline_if_unreachable(needs_hub=True)
    try:
        return evaluate.load(name, configuration)
    except Exception as error:  # downloads and modules raise many kinds
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(
            f"{FLAG} {name}: evaluate cannot load it ({reason})."
            + (f" It is not in the cache, and {problem}" if problem else "")
            + " Pass a metric of the hub, or a file of a local module."
        ) from error
