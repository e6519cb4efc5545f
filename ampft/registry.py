"""What add-ons add to the core, which imports none of them.

The core works in a copy without them: what an absent add-on would add does not exist there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Generic, TypeVar

from ampft.errors import InputError

T = TypeVar("T")
# What each add-on is for. An add-on may import the core, and the add-ons before it.
ADD_ONS = {
    "labels": "several labels per text, several columns of labels, ordered labels, and numbers as "
    "labels",
    "words": "words with a tag each, and spans of characters",
    "media": "images, sounds, and images with masks",
    "emulation": "16-bit precisions on a CPU, computed as a GPU computes them",
    "fast": "the same training with less work: models without padding, and CUDA graphs",
    "checks": "what is examined beside a training: labels, simple methods, harm",
    "own": "loops of users: `ampft.Training`, `ampft.computing_in`",
    "comparison": "several runs compared: a plan and its trainings, paired statistics, a report",
    "integrations": "what connects ampft with other programs: functions for Python, scikit-learn's "
    "estimators, flags of transformers' scripts, tables of predictions, and plain clients that are "
    "asked about a saved model",
    "export": "artifacts of trained models, their certificates, and precisions of inference",
    "lab": "the laboratory: what examines and judges trainings",
}


class ExtensionPoint(Generic[T]):
    """A place of the core to which add-ons add objects of one type.

    An add-on adds functions that return such objects, in its module `additions`. They import what
    they return, so that nothing is imported before it is used.
    """

    def __init__(self, add_on: str, purpose: str) -> None:
        """Describe what is missing where no add-on has added anything.

        Args:
            add_on: The add-on that adds to it.
            purpose: What that does, such as "exports models".
        """
        self._add_on = add_on
        self._purpose = purpose
        self._loaders: list[Callable[[], T]] = []

    def add(self, load: Callable[[], T]) -> Callable[[], T]:
        """Add an object, given a function that returns it."""
        self._loaders.append(load)
        return load

    @property
    def is_empty(self) -> bool:
        """Whether no add-on adds anything; nothing else is imported."""
        _import_additions()
        return not self._loaders

    def all(self) -> list[T]:
        """Return all objects, in the order of the add-ons."""
        _import_additions()
        return [load() for load in self._loaders]

    def get(self) -> T | None:
        """Return the only object, or None where its add-on is absent."""
        objects = self.all()
        assert len(objects) <= 1, f"several add-ons add what {self._purpose}"
        return objects[0] if objects else None

    def require(self) -> T:
        """Return the only object.

        Raises:
            InputError: Its add-on is absent.
        """
        if (only := self.get()) is None:
            raise InputError(f"`ampft/{self._add_on}` is absent, which {self._purpose}.")
        return only


@cache
def _import_additions() -> None:
    """Import the modules in which the add-ons that are present add to extension points."""
    for add_on in ADD_ONS:
        # `find_spec` would import the package of the add-on, which may be slow.
        if (Path(__file__).parent / add_on / "additions.py").is_file():
            import_module(f"ampft.{add_on}.additions")
