"""Compiled kernels that are kept for shapes which do not come back."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

# Without padding nearly every step multiplies matrices of new shapes. In bfloat16 on a CPU oneDNN
# compiles a kernel for each, of some 0.3 MB, and keeps 1024 (its documentation, "Primitive cache");
# ideep, between torch and oneDNN, keeps the primitives of 1024 more. What one step needs suffices.
CAPACITIES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "16"}


def limit_kernel_caches(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let oneDNN and ideep keep fewer kernels, unless the user has said how many.

    Both read their variable when they first need it: later it has no effect.
    """
    for name, capacity in CAPACITIES.items():
        environ.setdefault(name, capacity)
