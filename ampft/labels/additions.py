"""What this add-on adds to the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ampft.data.extension_points import DECLARED_TASK
from ampft.tasks.extension_points import TASK_ROWS

if TYPE_CHECKING:
    from datasets import Features

    from ampft.data.request import DataRequest
    from ampft.tasks import TaskRow


@TASK_ROWS.add
def tasks() -> Mapping[str, TaskRow]:
    """Return the tasks."""
    from ampft.labels.tasks import TASKS

    return TASKS


@DECLARED_TASK.add
def task_of_columns() -> Callable[[Features, DataRequest], str | None]:
    """Return the function that reads the task of a data set from the types of its columns."""
    from ampft.labels.declared_task import declared_task

    return declared_task
