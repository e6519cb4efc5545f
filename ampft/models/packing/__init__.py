"""Padding-free path for transformers encoders.

The idea is that of Effective Transformer and ByteTransformer, and on the training side of
MosaicBERT and ModernBERT: between the embeddings and the pooling of an encoder, attention alone has
to know where one sequence ends, so everything else can run on the real tokens of a batch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampft.models.packing.install import PackedModel, install_packing
    from ampft.models.packing.layout import PackedLayout, pack_layout
    from ampft.models.packing.support import PackingSupport, packing_support
    from ampft.models.packing.verify import verify_packing

__all__ = [
    "PackedLayout",
    "PackedModel",
    "PackingSupport",
    "install_packing",
    "pack_layout",
    "packing_support",
    "verify_packing",
]

_HOMES = {
    "PackedLayout": "layout",
    "PackedModel": "install",
    "PackingSupport": "support",
    "install_packing": "install",
    "pack_layout": "layout",
    "packing_support": "support",
    "verify_packing": "verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
