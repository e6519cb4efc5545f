"""Settings of `torch.compile` for models with hooks and inputs of varied shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch._dynamo.config
import torch._dynamo.utils
from accelerate.utils import DynamoBackend

from ampft.text.warning_names import PARTLY_COMPILED

if TYPE_CHECKING:
    from accelerate import Accelerator

RECOMPILE_LIMIT = 64
Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """Make `torch.compile` call a function as it is, between two compiled graphs."""
    return torch.compiler.disable(function)


def check_hooks_of_compiled_modules() -> None:
    """Make `torch.compile` check the hooks of a module before it runs code compiled for another.

    By default it assumes that all modules of a class have the same hooks (its setting
    `skip_nnmodule_hook_guards`). The hooks of ampft differ: without padding, the hooks of the
    last layer cut the row to the first tokens.
    """
    torch._dynamo.config.skip_nnmodule_hook_guards = False


def configured_backend(accelerator: Accelerator) -> str | None:
    """Return the backend of `torch.compile` that Accelerate was configured with; None for none."""
    backend = str(accelerator.state.dynamo_plugin.backend.value).lower()
    return None if backend == "no" else backend


def configure_compilation(accelerator: Accelerator) -> None:
    """Prepare the compilation that Accelerate was configured to do, if any.

    Layers with hooks, training and evaluation each need their own compiled code, so torch may
    compile a function more often than its default of eight times.

    Accelerate's launcher asks for static shapes unless it is called with `--dynamo_use_dynamic`.
    torch would then compile anew for every shape, and give up after eight of them. Here a dimension
    that has changed once becomes dynamic, as is torch's default.
    """
    if configured_backend(accelerator) is None:
        return
    check_hooks_of_compiled_modules()
    plugin = accelerator.state.dynamo_plugin
    plugin.dynamic = plugin.dynamic or None
    config = torch._dynamo.config
    config.recompile_limit = max(RECOMPILE_LIMIT, config.recompile_limit)


def turn_compilation_off(accelerator: Accelerator) -> None:
    """Keep `Accelerator.prepare` from compiling, regardless of the environment."""
    accelerator.state.dynamo_plugin.backend = DynamoBackend.NO


def partial_compilation_warning(accelerator: Accelerator) -> dict[str, str]:
    """Return a warning, by name, if torch has stopped compiling a part of the model."""
    reasons = torch._dynamo.utils.counters["unimplemented"]
    if configured_backend(accelerator) is None or not any("recompile limit" in r for r in reasons):
        return {}
    return {
        PARTLY_COMPILED: "torch compiled a part of the model for too many shapes or modules, and "
        "then ran it without compiling. All times are of a model that is compiled only in part."
    }


@contextmanager
def compile_settings_restored() -> Iterator[None]:
    """Restore the settings that this module changes."""
    names = ("skip_nnmodule_hook_guards", "recompile_limit")
    with torch._dynamo.config.patch({name: getattr(torch._dynamo.config, name) for name in names}):
        yield
