"""What add-ons add to precisions: the emulation of 16 bits on a CPU, and a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampft.registry import ExtensionPoint

if TYPE_CHECKING:
    import torch
    from torch import nn

    UnusedPrecisionCheck = Callable[[nn.Module, str, Mapping[str, str]], None]


@dataclass(frozen=True)
class EmulatedProducts:
    """16-bit products on a CPU, computed as a GPU computes them."""

    # Returns a context in which the products of a dtype are emulated.
    emulation: Callable[[torch.dtype], AbstractContextManager[object]]
    # Returns a context in which torch's own kernels compute, inside or outside an emulation.
    suspended: Callable[[], AbstractContextManager[None]]
    is_active: Callable[[torch.dtype], bool]  # Whether the products of a dtype are emulated now.


EMULATION = ExtensionPoint[EmulatedProducts]("emulation", "emulates 16 bits on a CPU")
# Rejects modules in float32, by name with their pattern, that leave no product to a mode.
UNUSED_PRECISION_CHECK: ExtensionPoint[UnusedPrecisionCheck] = ExtensionPoint(
    "checks", "finds precisions that compute nothing"
)
