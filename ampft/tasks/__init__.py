"""Tasks: what is classified, and how predictions are evaluated.

A task combines inputs (texts, images) with a problem (one label per example, several labels). Each
has its own file; the table `TASKS` combines them.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampft.tasks.outcome import Problem


@dataclass(frozen=True)
class TaskKind:
    """A row of the table of tasks.

    Attributes:
        data_kind: Kind of its data, such as "text".
        inputs: Module of `ampft.kinds` with the function `prepare_inputs`.
        problem: Module of `ampft.tasks` and, after a colon, its `Problem`.
        model_class: Class in transformers that loads the model.
        pipeline_tag: Name of the task on the hub, and for `transformers.pipeline`.
        several_labels: Whether an example can have any number of labels; otherwise it has one.
        pipeline_arguments: Other arguments of a call of that pipeline, as Python source.
    """

    data_kind: str
    inputs: str
    problem: str
    model_class: str
    pipeline_tag: str
    several_labels: bool = False
    pipeline_arguments: str = ""

    def problem_type(self) -> type[Problem]:
        """Return the class of the problem, without importing torch."""
        module, name = self.problem.split(":")
        problem: type[Problem] = getattr(import_module(f"ampft.tasks.{module}"), name)
        return problem


# A new task adds a row. The first task for a kind of data is its default.
TASKS = {
    "text": TaskKind(
        "text", "text", "single_label:SingleLabel", "AutoModelForSequenceClassification",
        "text-classification",
    ),
    "multi-label": TaskKind(
        "text", "text", "multi_label:MultiLabel", "AutoModelForSequenceClassification",
        "text-classification", several_labels=True, pipeline_arguments="top_k=None",
    ),
    "tokens": TaskKind(
        "token", "words", "token_labels:TokenLabels", "AutoModelForTokenClassification",
        "token-classification", pipeline_arguments='aggregation_strategy="first"',
    ),
    "images": TaskKind(
        "image", "images", "single_label:SingleLabel", "AutoModelForImageClassification",
        "image-classification",
    ),
    "sounds": TaskKind(
        "sound", "sounds", "single_label:SingleLabel", "AutoModelForAudioClassification",
        "audio-classification",
    ),
    "pixels": TaskKind(
        "pixels", "pixels", "pixel_labels:PixelLabels", "AutoModelForSemanticSegmentation",
        "image-segmentation",
    ),
}  # fmt: skip


def problem_types() -> dict[str, type[Problem]]:
    """Return the classes of all problems by name."""
    types = [kind.problem_type() for kind in TASKS.values()]
    return {problem_type.name: problem_type for problem_type in types}


def default_task(data_kind: str) -> str:
    """Return the name of the default task for a kind of data."""
    return next(name for name, kind in TASKS.items() if kind.data_kind == data_kind)
