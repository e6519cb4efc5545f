"""Where an operation runs: the module whose forward pass runs now, and the line of its source."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FrameType

import accelerate
import torch
from torch import nn

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
        self._hooks = ExitStack()

    @property
    def path(self) -> str | None:
        """Path of the innermost module, empty for the model itself; None outside of it."""
        return self._running[-1] if self._running else None

    def __enter__(self) -> ModuleStack:
        for name, module in self._model.named_modules():
            enter = partial(self._enter, name)
            before = module.register_forward_pre_hook(enter, prepend=True)
            after = module.register_forward_hook(self._leave, always_call=True)
            self._hooks.callback(before.remove)
            self._hooks.callback(after.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()
        self._running.clear()

    def _enter(self, name: str, module: nn.Module, args: object) -> None:
        del module, args
        self._running.append(name)

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
        path = Path(self.file)
        roots = [each for each in (_SITE_PACKAGES, Path.cwd()) if path.is_relative_to(each)]
        shown = path.relative_to(roots[0]).as_posix() if roots else path.name
        return f"{shown}:{self.line}: {linecache.getline(self.file, self.line).strip()}"


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
