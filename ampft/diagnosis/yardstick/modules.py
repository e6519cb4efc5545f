"""Which block of the model a parameter belongs to, by a name that people know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Blocks:
    """The trainable parameters of a model in its blocks.

    Attributes:
        names: In the model's order: `embeddings`, `encoder.layer.0`, ..., `classifier`.
        of_parameter: Name of a parameter -> index of its block.
        sizes: Entries of each block.
    """

    names: tuple[str, ...]
    of_parameter: Mapping[str, int]
    sizes: tuple[int, ...]


def blocks_of(model: nn.Module) -> Blocks:
    """Return the blocks of `model`: the items of its lists of layers, and what stands beside them.

    Args:
        model: Any module. A part is opened as long as there is a list of layers inside; the
            prefix of transformers' base model, such as `bert.`, is left out of the names.
    """
    prefix = str(getattr(model, "base_model_prefix", "") or "")
    paths = _paths(model, "")
    sizes: dict[str, int] = {}
    block: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            shown = _shown(_longest(paths, name), prefix)
            block[name] = shown
            sizes[shown] = sizes.get(shown, 0) + parameter.numel()
    names = tuple(sizes)
    return Blocks(
        names=names,
        of_parameter={name: names.index(shown) for name, shown in block.items()},
        sizes=tuple(sizes.values()),
    )


def _paths(module: nn.Module, path: str) -> list[str]:
    """Return the paths of the blocks below `module`, and of every module that was opened."""
    found = []
    for name, child in module.named_children():
        below = f"{path}.{name}" if path else name
        found.append(below)
        if any(isinstance(part, nn.ModuleList) for part in child.modules()):
            listed = isinstance(child, nn.ModuleList)
            found += [f"{below}.{item}" for item, _ in child.named_children()] if listed else []
            found += [] if listed else _paths(child, below)
    return found


def _longest(paths: list[str], parameter: str) -> str:
    fitting = [path for path in paths if parameter.startswith(f"{path}.")]
    return max(fitting, key=len, default="")


def _shown(path: str, prefix: str) -> str:
    if path == prefix or not path:
        return path or "own parameters"
    return path.removeprefix(f"{prefix}.") if prefix else path
