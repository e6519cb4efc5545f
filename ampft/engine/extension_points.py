"""What add-ons add to optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ampft.registry import ExtensionPoint

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    JointWeights = Callable[[nn.Module, torch.dtype], AbstractContextManager[None]]

# Returns a context in which the linear layers of a model read one joint cast of their weights.
JOINT_WEIGHTS: ExtensionPoint[JointWeights] = ExtensionPoint("fast", "casts all weights at once")
