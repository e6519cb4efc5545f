"""What this add-on adds to the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ampft.tasks.extension_points import OWN_TASK_ROWS

if TYPE_CHECKING:
    from ampft.tasks import TaskRow


@OWN_TASK_ROWS.add
def tasks() -> Mapping[str, TaskRow]:
    """Return what loops of users record."""
    from ampft.own.tasks import TASKS

    return TASKS
