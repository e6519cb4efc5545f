"""Tasks: what is classified, and how predictions are evaluated.

A task combines a kind of data (texts, images) with a problem (one label per example, several
labels). Each has its own file; the table `TASKS` combines them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampft.kinds import IMAGES, OWN, PIXELS, SOUNDS, TEXT, WORDS, Kind, import_object

if TYPE_CHECKING:
    from ampft.tasks.outcome import Problem


@dataclass(frozen=True)
class TaskRow:
    """A row of the table of tasks."""

    kind: Kind  # Kind of its data.
    problem: str  # Module and, after a colon, its `Problem`.
    model_class: str  # Class in transformers that loads the model.
    pipeline_tag: str  # Name of the task on the hub, and for `transformers.pipeline`.
    # Whether an example can have any number of labels; otherwise it has one.
    several_labels: bool = False
    number_labels: bool = False  # Whether labels are numbers, as in regression.
    ordered_labels: bool = False  # Whether classes have an order.
    # Other arguments of a call of that pipeline.
    pipeline_arguments: Mapping[str, Any] = field(default_factory=dict)
    # Whether each case has probabilities and a prediction of its own; otherwise its units do, such
    # as words.
    decides_per_case: bool = True

    def problem_type(self) -> type[Problem]:
        """Return the class of the problem, without importing torch."""
        return import_object(self.problem)


# A new task adds a row. The first task for a kind of data is its default.
TASKS = {
    "text": TaskRow(
        TEXT, "ampft.tasks.single_label:SingleLabel", "AutoModelForSequenceClassification",
        "text-classification",
    ),
    "multi-label": TaskRow(
        TEXT, "ampft.tasks.multi_label:MultiLabel", "AutoModelForSequenceClassification",
        "text-classification", several_labels=True, pipeline_arguments={"top_k": None},
    ),
    "regression": TaskRow(
        TEXT, "ampft.tasks.regression:Regression", "AutoModelForSequenceClassification",
        "text-classification", number_labels=True, decides_per_case=False,
    ),
    "ordinal": TaskRow(
        TEXT, "ampft.tasks.ordinal:Ordinal", "AutoModelForSequenceClassification",
        "text-classification", ordered_labels=True,
    ),
    "tokens": TaskRow(
        WORDS, "ampft.tasks.token_labels:TokenLabels", "AutoModelForTokenClassification",
        "token-classification", pipeline_arguments={"aggregation_strategy": "first"},
        decides_per_case=False,
    ),
    "images": TaskRow(
        IMAGES, "ampft.tasks.single_label:SingleLabel", "AutoModelForImageClassification",
        "image-classification",
    ),
    "sounds": TaskRow(
        SOUNDS, "ampft.tasks.single_label:SingleLabel", "AutoModelForAudioClassification",
        "audio-classification",
    ),
    "pixels": TaskRow(
        PIXELS, "ampft.tasks.pixel_labels:PixelLabels", "AutoModelForSemanticSegmentation",
        "image-segmentation", pipeline_arguments={"subtask": "semantic"}, decides_per_case=False,
    ),
}  # fmt: skip


# What `ampft.Training` records, by the predictions that its loop gives; no flag names them.
OWN_TASKS = {
    OWN.name: TaskRow(OWN, "ampft.tasks.single_label:SingleLabel", "", ""),
    "own-multi-label": TaskRow(OWN, "ampft.tasks.multi_label:MultiLabel", "", ""),
    "own-losses": TaskRow(OWN, "ampft.tasks.case_losses:CaseLosses", "", ""),
}


def own_task(problem: str) -> str:
    """Return the task of an own loop whose predictions are those of a problem.

    Raises:
        KeyError: There is none.
    """
    return {row.problem_type().name: name for name, row in OWN_TASKS.items()}[problem]


def problem_types() -> dict[str, type[Problem]]:
    """Return the classes of all problems by name."""
    types = [row.problem_type() for row in (*TASKS.values(), *OWN_TASKS.values())]
    return {problem_type.name: problem_type for problem_type in types}


def default_task(data_kind: str) -> str:
    """Return the name of the default task for a kind of data.

    Raises:
        KeyError: No task has this kind.
    """
    defaults = {task.kind.name: name for name, task in reversed(TASKS.items())}
    return defaults[data_kind]


def task_of_folder(folder: Path) -> str | None:
    """Return the task whose kind of data a folder shows by its layout; None if none does."""
    return next((name for name, task in TASKS.items() if task.kind.holds(folder)), None)
