"""Tasks: how examples become tensors, a loss and predictions. One file per kind of example."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampft.data.dataset import ClassificationData
    from ampft.tasks.task import Task, TaskSettings

# Kind of data -> the module of its task and the function that builds it. A new kind adds a line.
KINDS = {"text": ("text", "text_task"), "image": ("image", "image_task")}


def make_task(data: ClassificationData, settings: TaskSettings) -> Task:
    """Return the task for the kind of `data`.

    Raises:
        InputError: The model's tokenizer or image processor cannot be loaded.
    """
    module, build = KINDS[data.kind]
    task: Task = getattr(import_module(f"ampft.tasks.{module}"), build)(data, settings)
    return task
