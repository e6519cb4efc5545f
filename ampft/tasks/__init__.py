"""Tasks: what is classified, and how predictions are evaluated.

A task combines a kind of data (texts, images) with a problem (one label per example, several
labels). Each has its own file; the table `TASKS` combines them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ampft.kinds import Kind, import_object

if TYPE_CHECKING:
    from ampft.tasks.outcome import Problem


# Settings that tasks whose labels are classes read.
OF_CLASSES = frozenset(
    {"class_weights", "label_smoothing_factor", "focal_gamma", "inspect_data", "metric"}
)


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
    # Whether a text has one label, named `column=value`, of each of several columns.
    labels_of_columns: bool = False
    # Other arguments of a call of that pipeline.
    pipeline_arguments: Mapping[str, Any] = field(default_factory=dict)
    # Whether each case has probabilities and a prediction of its own; otherwise its units do, such
    # as words.
    decides_per_case: bool = True
    # Settings of labels and of the loss that it reads. One that another task lists is refused.
    flags: frozenset[str] = OF_CLASSES

    def problem_type(self) -> type[Problem]:
        """Return the class of the problem, without importing torch."""
        return import_object(self.problem)
