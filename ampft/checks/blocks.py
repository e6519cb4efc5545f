"""The blocks of a model, for figures that are too many per module and too few per model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class ParameterBlocks:
    """The trainable parameters of a model, grouped into blocks."""

    # Block names in the order of the model: `embeddings`, `encoder.layer.0`, ..., `classifier`.
    names: tuple[str, ...]
    of_parameter: Mapping[str, int]  # Parameter name -> index of its block.
    sizes: tuple[int, ...]  # Number of entries of each block.


def blocks_of(model: nn.Module) -> ParameterBlocks:
    """Return the blocks of `model`: the items of its lists of layers, and its other modules.

    Args:
        model: Any module. Submodules are split up as long as they contain a list of layers. The
            prefix of the transformers base model, such as `bert.`, is omitted from the names.
    """
    names_of = _block_names(model)
    sizes: dict[str, int] = {}
    block_of: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            block = names_of(name)
            block_of[name] = block
            sizes[block] = sizes.get(block, 0) + parameter.numel()
    names = tuple(sizes)
    return ParameterBlocks(
        names=names,
        of_parameter={name: names.index(block) for name, block in block_of.items()},
        sizes=tuple(sizes.values()),
    )


def module_blocks(model: nn.Module) -> dict[str, str]:
    """Return the name of the block, as in `blocks_of`, that each module belongs to, by path."""
    names_of = _block_names(model)
    return {path: names_of(f"{path}.") for path, _ in model.named_modules() if path}


def _block_names(model: nn.Module) -> Callable[[str], str]:
    """Return a function that maps a parameter's name to the name of its block."""
    prefix = str(getattr(model, "base_model_prefix", "") or "")
    paths = _paths(model, "")

    def name_of(parameter: str) -> str:
        prefixes = [path for path in paths if parameter.startswith(f"{path}.")]
        path = max(prefixes, key=len, default="")
        if path == prefix or not path:
            return path or "top-level parameters"
        return path.removeprefix(f"{prefix}.") if prefix else path

    return name_of


def _paths(module: nn.Module, path: str) -> list[str]:
    """Return the paths of the blocks below `module`, and of every module that was split up."""
    paths = []
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        paths.append(child_path)
        if any(isinstance(part, nn.ModuleList) for part in child.modules()):
            is_list = isinstance(child, nn.ModuleList)
            paths += (
                [f"{child_path}.{item}" for item, _ in child.named_children()] if is_list else []
            )
            paths += [] if is_list else _paths(child, child_path)
    return paths
