"""What this add-on adds to the core."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from ampft.engine.extension_points import JOINT_WEIGHTS
from ampft.kinds.extension_points import (
    EMBEDDING_GRADIENT,
    PACKED_MODELS,
    PADDING_REMOVAL,
    PackedModels,
    PaddingRemoval,
)
from ampft.models.extension_points import PACKED_ATTENTION, PACKED_FAMILIES
from ampft.runs.extension_points import (
    GRAPHS,
    GROUPED_ATTENTION_CHECK,
    Graphs,
    GroupedAttentionCheck,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch import nn


@PACKED_FAMILIES.add
def packed_families() -> Collection[str]:
    """Return the types of models that can run without padding."""
    from ampft.fast.packing.families import FAMILIES

    return FAMILIES


@PACKED_MODELS.add
def packed_models() -> PackedModels:
    """Return what runs models without padding."""
    from ampft.fast.packing import install

    return install


@PADDING_REMOVAL.add
def padding_removal() -> PaddingRemoval:
    """Return what makes models run without padding."""
    from ampft.fast.packing import choice

    return choice


@EMBEDDING_GRADIENT.add
def embedding_gradient() -> Callable[[nn.Module], object]:
    """Return the function that makes embeddings reuse the memory of their gradient."""
    from ampft.fast.embedding_gradient import reuse_embedding_gradient_memory

    return reuse_embedding_gradient_memory


@JOINT_WEIGHTS.add
def joint_weights() -> Callable[[nn.Module, torch.dtype], AbstractContextManager[None]]:
    """Return the context in which one operator casts all weights."""
    from ampft.fast.joint_weights import joint_weights

    return joint_weights


@GRAPHS.add
def graphs() -> Graphs:
    """Return what computes steps by CUDA graphs."""
    from ampft.fast import graph_choice

    return graph_choice


@PACKED_ATTENTION.add
def packed_attention() -> Mapping[str, str]:
    """Return the names of attention without padding."""
    from ampft.fast.packing.packed_attention import PACKED_NAMES

    return PACKED_NAMES


@GROUPED_ATTENTION_CHECK.add
def grouped_attention_check() -> GroupedAttentionCheck:
    """Return the check of a model without padding."""
    from ampft.fast.packing.verification import grouped_attention_reason

    return grouped_attention_reason
