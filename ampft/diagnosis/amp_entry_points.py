"""Which doors to automatic mixed precision this PyTorch has, found by opening them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

PRESENT_IMPORT = "from torch.amp import autocast, GradScaler"

ADVICE = (
    "\"cannot import name 'amp'\" and \"No module named 'apex'\" come from code written for "
    "NVIDIA's apex (from apex import amp), which came before PyTorch's own AMP and is not needed "
    "any more; `pip install apex` fetches another project of that name. Replace the import by "
    f"`{PRESENT_IMPORT}`, amp.initialize and amp.scale_loss by the calls below, or let "
    "Accelerator(mixed_precision=...) make them."
)

# (module, name, arguments that open it, the present call)
_DOORS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("torch.amp", "autocast", ("cpu",), "torch.amp.autocast('cuda', dtype=torch.float16)"),
    ("torch.amp", "GradScaler", ("cpu",), "torch.amp.GradScaler('cuda')"),
    ("torch.cuda.amp", "autocast", (), "torch.amp.autocast('cuda', dtype=torch.float16)"),
    ("torch.cuda.amp", "GradScaler", (), "torch.amp.GradScaler('cuda')"),
    ("torch.cpu.amp", "autocast", (), "torch.amp.autocast('cpu', dtype=torch.bfloat16)"),
    ("torch.cpu.amp", "GradScaler", (), "torch.amp.GradScaler('cpu')"),
    ("apex.amp", "initialize", (), "torch.amp.autocast and torch.amp.GradScaler"),
)


@dataclass(frozen=True)
class EntryPoint:
    """One door to automatic mixed precision.

    Attributes:
        name: Its full name.
        status: `present`, `deprecated` or `absent`.
        call: What to write today.
    """

    name: str
    status: str
    call: str


def amp_entry_points() -> tuple[EntryPoint, ...]:
    """Open each known entry point of AMP and return what became of it.

    A deprecation is what PyTorch itself warns of (`FutureWarning`) when the entry point is used.
    """
    return tuple(
        EntryPoint(f"{module}.{name}", _status(module, name, arguments), call)
        for module, name, arguments, call in _DOORS
    )


def _status(module: str, name: str, arguments: tuple[str, ...]) -> str:
    if find_spec(module.partition(".")[0]) is None:
        return "absent"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            door = getattr(import_module(module), name)
            # apex would patch this process when it is initialized, so it is only looked at.
            if module != "apex.amp":
                door(*arguments)
        except (ImportError, AttributeError):
            return "absent"
    if any(issubclass(warning.category, FutureWarning) for warning in caught):
        return "deprecated"
    return "present"
