"""What add-ons add to the table of tasks."""

from __future__ import annotations

from collections.abc import Mapping

from ampft.registry import ExtensionPoint
from ampft.tasks import TaskRow

TASK_ROWS = ExtensionPoint[Mapping[str, TaskRow]]("labels", "adds tasks")
# What loops of users record, by the predictions that they give; no flag names them.
OWN_TASK_ROWS = ExtensionPoint[Mapping[str, TaskRow]]("own", "records loops of users")
