"""Where an operation runs: the module whose forward pass runs now, and the line of its source."""

from __future__ import annotations

import contextlib
import linecache
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import accelerate
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

_PACKAGE = Path(__file__).parents[2]
_LIBRARIES = tuple(Path(str(library.__file__)).parent for library in (torch, accelerate))
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_SITE_PACKAGES = sysconfig.get_path("purelib")


class ModuleStack:
    """Context that follows which module of a model runs; its hooks are removed on exit.

    Args:
        model: Model; code outside of its forward pass has no path.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._running: list[str] = []
        self._handles: list[RemovableHandle] = []

    @property
    def path(self) -> str | None:
        """Path of the innermost module, empty for the model itself; None outside of it."""
        return self._running[-1] if self._running else None

    def __enter__(self) -> ModuleStack:
        for name, module in self._model.named_modules():
            self._handles += [
                module.register_forward_pre_hook(self._entering(name), prepend=True),
                module.register_forward_hook(self._leave, always_call=True),
            ]
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._running.clear()

    def _entering(self, name: str) -> Any:
        def enter(module: nn.Module, args: object) -> None:
            del module, args
            self._running.append(name)

        return enter

    def _leave(self, module: nn.Module, args: object, output: object) -> None:
        del module, args, output
        self._running.pop()


@dataclass(frozen=True)
class Frame:
    """A line of source.

    Attributes:
        file: Path of the file.
        line: Number of the line, from 1.
    """

    file: str
    line: int

    @property
    def text(self) -> str:
        """File, number and text of the line, such as `models/t5/modeling.py:12: x = self.wo(x)`."""
        shown = Path(self.file)
        for root in (_SITE_PACKAGES, str(Path.cwd())):
            with contextlib.suppress(ValueError):
                shown = Path(self.file).relative_to(root)
                break
        else:
            shown = Path(shown.name)
        return f"{shown.as_posix()}:{self.line}: {linecache.getline(self.file, self.line).strip()}"


def calling_frame() -> Frame | None:
    """Return the innermost frame of the model's own code, or of the loss."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_of_model(frame.f_code.co_filename):
            return Frame(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


@cache
def _is_of_model(file: str) -> bool:
    path = Path(file)
    if path.is_relative_to(_PACKAGE):
        return path.relative_to(_PACKAGE).parts[0] == "tasks"  # it has the losses
    if file.startswith("<") or any(path.is_relative_to(library) for library in _LIBRARIES):
        return False
    # Packages are installed below the folder of the standard library.
    return path.is_relative_to(_SITE_PACKAGES) or not path.is_relative_to(_STANDARD_LIBRARY)
