"""A larger epsilon, which cures a division by zero that float32 meets too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from ampft.diagnosis.doctor.findings import Cause, Fault
from ampft.text.numbers import counted

NAMES = ("eps", "epsilon", "variance_epsilon")  # of torch's modules, and of transformers' norms
VALUE = 1e-4  # a normal number of binary16
CAUSES = {
    Cause.DIVISION_BY_ZERO,
    Cause.ZERO_BY_ZERO,
    Cause.QUOTIENT,
    Cause.ROOT_AT_ZERO,
    Cause.UNDERFLOW_DIVISION,
    Cause.UNDERFLOW_ZERO_BY_ZERO,
    Cause.UNDERFLOW_ROOT,
}


@dataclass(frozen=True)
class LargerEpsilon:
    """All modules of a class whose epsilon is smaller than `VALUE`.

    Attributes:
        modules: The modules.
        name: Attribute that holds the epsilon.
    """

    modules: Sequence[nn.Module]
    name: str

    @property
    def what(self) -> str:
        """What to do, without a capital letter and a full stop."""
        kind = type(self.modules[0]).__name__
        smallest = min(getattr(module, self.name) for module in self.modules)
        return (
            f"set `{self.name}` of {counted(len(self.modules), 'module')} of class {kind} to "
            f"{VALUE:g} (it is {smallest:g})"
        )

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which the modules have the larger epsilon."""
        before = [getattr(module, self.name) for module in self.modules]
        try:
            for module in self.modules:
                setattr(module, self.name, VALUE)
            yield
        finally:
            for module, value in zip(self.modules, before, strict=True):
                setattr(module, self.name, value)


def larger_epsilon(model: nn.Module, faults: Sequence[Fault]) -> LargerEpsilon | None:
    """Return the epsilon of the module that failed first; None if it has none, or a large one.

    Args:
        model: Model.
        faults: What failed, the first one first.
    """
    failed = dict(model.named_modules()).get(faults[0].module)
    if failed is None or faults[0].cause not in CAUSES:
        return None
    for name in NAMES:
        if _is_small(getattr(failed, name, None)):
            same = [module for module in model.modules() if type(module) is type(failed)]
            small = [module for module in same if _is_small(getattr(module, name, None))]
            return LargerEpsilon(small, name)
    return None


def _is_small(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < VALUE
