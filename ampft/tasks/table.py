"""The table of tasks, to which each add-on adds its rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ampft.kinds import TEXT
from ampft.tasks import TaskRow
from ampft.tasks.extension_points import OWN_TASK_ROWS, TASK_ROWS

if TYPE_CHECKING:
    from ampft.tasks.outcome import Problem


# A new task adds a row. The first task for a kind of data is its default.
TASKS: dict[str, TaskRow] = {
    "text": TaskRow(
        TEXT, "ampft.tasks.single_label:SingleLabel", "AutoModelForSequenceClassification",
        "text-classification",
    ),
}  # fmt: skip
for _added in TASK_ROWS.all():
    TASKS |= _added
# What loops of users record, by the predictions that they give; no flag names them.
OWN_TASKS: dict[str, TaskRow] = dict(OWN_TASK_ROWS.get() or {})


def own_loop_task(problem: str) -> str:
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
