"""Whether any product of a model runs in the requested precision, decided without a step."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ampft.errors import InputError
from ampft.precision.float32_modules import FLAG


def refuse_all_float32(model: nn.Module, mode: str, kept: Mapping[str, str]) -> None:
    """Reject patterns that leave no product to the requested precision.

    An embedding lookup is not a matrix product. A single layer inside a block may be a projection
    of attention, which also multiplies queries and keys outside any layer. In that case the first
    step shows whether anything ran in 16 bits.

    Args:
        mode: Requested precision, which computes in 16 bits.
        kept: Modules in float32, and the pattern that matched each.
    """
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding)]
    parts = {name: model.get_submodule(name) for name in kept}
    left = {id(weight) for weight in model.parameters() if weight.dim() > 1}
    left -= {id(weight) for part in (*tables, *parts.values()) for weight in part.parameters()}
    single = [name for name, part in parts.items() if "." in name and _is_one_layer(part)]
    if left or single:
        return
    patterns = ",".join(dict.fromkeys(kept.values()))
    raise InputError(
        f"{FLAG} {patterns}: the whole model would compute in float32, and nothing in "
        f"{mode}. Use --mixed_precision fp32, or pass fewer modules."
    )


def _is_one_layer(module: nn.Module) -> bool:
    """Return whether a module is one layer, possibly wrapped in a PEFT adapter."""
    return hasattr(module, "base_layer") or next(module.children(), None) is None
