"""Settings of `torch.compile` for models with hooks and inputs of varied shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch._dynamo.config

if TYPE_CHECKING:
    from accelerate import Accelerator

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """Make `torch.compile` call a function as it is, between two compiled graphs."""
    result: Function = torch.compiler.disable(function)
    return result


def check_hooks_of_compiled_modules() -> None:
    """Make `torch.compile` check the hooks of a module before it runs code compiled for another.

    By default it assumes that all modules of a class have the same hooks (its setting
    `skip_nnmodule_hook_guards`). The hooks of ampft differ from layer to layer: the last layer of
    a model without padding is cut, and each layer has its own name when its values are watched.
    """
    torch._dynamo.config.skip_nnmodule_hook_guards = False


def compile_backend(accelerator: Accelerator) -> str | None:
    """Return the backend of `torch.compile` that Accelerate was configured with; None for none."""
    backend = str(accelerator.state.dynamo_plugin.backend.value).lower()
    return None if backend == "no" else backend


def configure_compilation(accelerator: Accelerator) -> None:
    """Prepare the compilation that Accelerate was configured to do, if any.

    Accelerate's launcher asks for static shapes unless it is called with `--dynamo_use_dynamic`.
    torch would then compile anew for every shape, and give up after eight of them. Here a dimension
    that has changed once becomes dynamic, as is torch's default.
    """
    if compile_backend(accelerator) is None:
        return
    check_hooks_of_compiled_modules()
    plugin = accelerator.state.dynamo_plugin
    plugin.dynamic = plugin.dynamic or None
