"""Modules that compute in float32 inside a model that otherwise runs in 16 bits.

Inside such a module autocast is off, and its 16-bit inputs are cast to float32. Casts are
differentiable, so the gradient is exact for the function that runs. With autocast, the weights are
float32 already, and none of them changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ampft.errors import InputError, check_type
from ampft.precision.compilation import uncompiled
from ampft.precision.extension_points import UNUSED_PRECISION_CHECK
from ampft.precision.resolve import Precision, usable_modes
from ampft.text.numbers import counted

FLAG = "--fp32_modules"
CONFIG_FIELD = "ampft_fp32_modules"
_NAMED = 3  # modules that a message names


class _Inside(threading.local):
    """Autograd's sequence number at which this thread entered a float32 module, if it is in one."""

    first_node: int | None = None


_inside = _Inside()


def float32_module_start() -> int | None:
    """Return autograd's sequence number at the start of the float32 module that runs now.

    Returns:
        The number of the first node that the module can have created; None outside such modules.
    """
    return _inside.first_node


@contextmanager
def _entered() -> Iterator[None]:
    outer = _inside.first_node
    if outer is None:
        _inside.first_node = torch._C._autograd._get_sequence_nr()
    try:
        yield
    finally:
        _inside.first_node = outer


class Float32Forward:
    """The forward pass of a module in float32. It replaces `module.forward`.

    A copy of the module has a copy of this object, which refers to that copy.
    """

    def __init__(self, module: nn.Module, pattern: str) -> None:
        self.pattern = pattern  # Pattern that chose the module.
        self.calls = 0  # Number of calls so far.
        self._module = module
        self._original: Callable[..., Any] | None = module.__dict__.get("forward")

    @uncompiled  # for the recorder of products, which is told by `_entered`
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's own forward pass on float32 inputs, without autocast."""
        self.calls += 1
        forward = self._original or type(self._module).forward.__get__(self._module)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        tensors += list(self._module.parameters())[:1]
        device = tensors[0].device.type if tensors else None
        without_autocast = torch.autocast(device, enabled=False) if device else nullcontext()
        with _entered(), without_autocast:
            return forward(*tree_map(_widened, args), **tree_map(_widened, kwargs))

    def around(self, forward: Callable[..., Any]) -> Callable[[], None]:
        """Call `forward` in float32 from now on; return a function that reverts it."""
        former, self._original = self._original, forward

        def undo() -> None:
            self._original = former

        return undo

    def restore(self) -> None:
        """Give the module its forward pass back."""
        if self._original is None:
            self._module.__dict__.pop("forward", None)
        else:
            self._module.__dict__["forward"] = self._original


def _widened(value: Any) -> Any:
    is_16_bit = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_16_bit else value


@dataclass(frozen=True)
class Float32Modules:
    """Handle of the modules that `keep_in_fp32` has changed; `remove` restores them."""

    names: tuple[str, ...]  # Paths of the modules, in the order of the model.
    forwards: tuple[Float32Forward, ...]  # Their forward passes.

    def remove(self) -> None:
        """Let the modules compute as the rest of the model again."""
        for forward in self.forwards:
            forward.restore()


def keep_in_fp32(model: nn.Module, patterns: Iterable[str]) -> Float32Modules:
    """Make modules of a model compute in float32, with and without autocast.

    Inside them autocast is off and 16-bit inputs are cast to float32. Their outputs are float32,
    and the operations that follow cast them as autocast prescribes. Call it before or after
    `Accelerator.prepare`; it can be repeated with other patterns.

    Args:
        model: Model with float32 weights.
        patterns: Globs over the paths in `model.named_modules()`, such as `encoder.layer.3.*` or
            `*.output.dense`; `*` also matches dots. A pattern may omit the beginning of a path, so
            that `wo` is every module of that name.

    Returns:
        A handle, whose `remove` restores the model.

    Raises:
        InputError: A pattern matches no module; the message names similar ones.
    """
    check_type("keep_in_fp32", "model", model, nn.Module)
    return keep_paths_in_fp32(model, matching_modules(model, tuple(patterns)))


def keep_paths_in_fp32(model: nn.Module, patterns: Mapping[str, str]) -> Float32Modules:
    """Make modules compute in float32, as `keep_in_fp32` does.

    Args:
        model: Model with float32 weights.
        patterns: Path of each module, and the pattern that chose it.
    """
    forwards = []
    for path, pattern in patterns.items():
        module = model.get_submodule(path)
        current = module.__dict__.get("forward")
        if isinstance(current, Float32Forward):
            current.restore()
        forward = Float32Forward(module, pattern)
        module.__dict__["forward"] = forward
        forwards.append(forward)
    return Float32Modules(tuple(patterns), tuple(forwards))


def matching_modules(model: nn.Module, patterns: Sequence[str], flag: str = FLAG) -> dict[str, str]:
    """Return the outermost modules that match, and the pattern of each, by path.

    Args:
        model: Model.
        patterns: Globs over paths of modules.
        flag: Flag that has the patterns, for messages.

    Raises:
        InputError: A pattern matches no module.
    """
    paths = {path: module for path, module in model.named_modules() if path}
    found: dict[str, str] = {}
    for pattern in patterns:
        matched = [path for path in paths if matches_path(path, pattern)]
        if not matched:
            raise InputError(_no_match(flag, pattern, list(paths)))
        for path in matched:
            for called in called_modules(path, paths[path]):
                found.setdefault(called, pattern)
    outermost = [path for path in found if not any(path.startswith(f"{other}.") for other in found)]
    return {path: found[path] for path in paths if path in outermost}


def split_patterns(flag: str, text: str) -> tuple[str, ...]:
    """Return the patterns that a flag lists, separated by commas.

    Raises:
        InputError: One is empty.
    """
    patterns = tuple(part.strip() for part in text.split(","))
    if not all(patterns):
        raise InputError(
            f"{flag} {text!r}: a pattern is empty. Separate patterns with single commas, such as "
            "encoder.layer.3.*,wo, or remove the flag."
        )
    return patterns


def matches_path(path: str, pattern: str) -> bool:
    """Return whether a glob matches a path. The glob may omit the beginning of the path."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}")


def called_modules(path: str, module: nn.Module) -> list[str]:
    """Return the path of a module, or its children's paths if it is a list of modules."""
    if type(module).forward is not nn.Module.forward:
        return [path]
    children = [called_modules(f"{path}.{name}", part) for name, part in module.named_children()]
    return [name for names in children for name in names]


def _no_match(flag: str, pattern: str, paths: Sequence[str]) -> str:
    # The paths of neighbouring layers differ by a number.
    literal = pattern.replace("*", "").strip(".")
    endings = {".".join(path.split(".")[-length:]): path for path in paths for length in (1, 2, 3)}
    near = [endings[name] for name in get_close_matches(literal, endings, n=_NAMED, cutoff=0.5)]
    near += [path for path in get_close_matches(pattern, paths, n=_NAMED) if path not in near]
    listed = ", ".join(list(dict.fromkeys(near))[:_NAMED]) or ", ".join(paths[:_NAMED])
    kind = "Similar ones" if near else "The first ones"
    return (
        f"{flag} {pattern}: the pattern matches no module of the model. {kind} are {listed}. Use a "
        "path, or a glob over paths such as 'encoder.layer.3.*' or '*.output.dense'."
    )


def replaced_forwards(model: nn.Module) -> dict[str, Float32Forward]:
    """Return the forward passes of the modules that compute in float32, by path."""
    return {
        path: module.__dict__["forward"]
        for path, module in model.named_modules()
        if isinstance(module.__dict__.get("forward"), Float32Forward)
    }


def uncalled_float32_pattern(model: nn.Module) -> str | None:
    """Return which pattern had no effect so far, because none of its modules was called.

    A model can use the weights of a module without calling it, as `nn.MultiheadAttention` does.
    """
    calls: dict[str, int] = {}
    for forward in replaced_forwards(model).values():
        calls[forward.pattern] = calls.get(forward.pattern, 0) + forward.calls
    unused = [pattern for pattern, count in calls.items() if not count]
    if not unused:
        return None
    return (
        f"{FLAG} {unused[0]} was requested, but the model called none of these modules in the "
        "first step. Give the modules that contain them, or remove the pattern"
    )


def _stored_patterns(model: nn.Module) -> tuple[str, ...]:
    """Return the patterns in the configuration of a model, which must be a list of texts."""
    patterns = getattr(getattr(model, "config", None), CONFIG_FIELD, None) or ()
    is_list = isinstance(patterns, list | tuple)
    if not is_list or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise InputError(
            f"config.json: {CONFIG_FIELD} is {patterns!r}, but must be a list of patterns of "
            "modules that compute in float32. Correct it, or remove the entry."
        )
    return tuple(patterns)


def apply_patterns(model: nn.Module, requested: Sequence[str] = ()) -> Float32Modules:
    """Apply the requested patterns, or those in the model's configuration if none is requested.

    Args:
        model: Model of transformers with float32 weights.
        requested: Patterns, which are then stored in the configuration, and so saved with the
            model.

    Raises:
        InputError: A pattern matches no module, or the stored ones are not a list of texts.
    """
    handle = keep_in_fp32(model, requested or _stored_patterns(model))
    if requested:
        setattr(model.config, CONFIG_FIELD, list(requested))
    return handle


def check_float32_modules(model: nn.Module, precision: Precision) -> None:
    """Check that the precision can keep modules in float32, and that others do not.

    Raises:
        InputError: It cannot.
    """
    kept = replaced_forwards(model)
    properties = precision.properties
    if not kept:
        return
    if properties.keeps_float32_modules:
        check = UNUSED_PRECISION_CHECK.get()
        if check is not None and precision.compute_dtype != torch.float32:
            patterns = {name: forward.pattern for name, forward in kept.items()}
            check(model, precision.mode, patterns)
        return
    if properties.stores_16_bits:
        reason = f"it stores all weights in {properties.storage}"
    elif properties.replaces_layers:
        reason = "it replaces layers of the model"
    else:
        reason = "it multiplies float32 tensors with fewer bits"
    usable = usable_modes(("fp16", "bf16", "fp32"), torch.device(precision.device_type))
    raise InputError(
        f"{FLAG}: {counted(len(kept), 'module')} ({next(iter(kept))}) must compute in float32, and "
        f"the mode {precision.mode} cannot do that, because {reason}. Use --mixed_precision "
        f"{usable}, or remove the flag (for a saved model: {CONFIG_FIELD} in its config.json)."
    )


def description(handle: Float32Modules) -> str:
    """Return the kept modules in one clause; empty if there are none."""
    if not handle.names:
        return ""
    patterns = dict.fromkeys(forward.pattern for forward in handle.forwards)
    return f"{counted(len(handle.names), 'module')} in float32: {', '.join(patterns)}"
