"""The module whose forward pass runs now."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle


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
