"""What add-ons add to models."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ampft.registry import ExtensionPoint

# Types of models that can run without padding. Where they are padded, the padding follows the text.
PACKED_FAMILIES = ExtensionPoint[Collection[str]]("fast", "removes padding")
# Names of attention without padding, by the names of the same in transformers.
PACKED_ATTENTION = ExtensionPoint[Mapping[str, str]]("fast", "runs models without padding")
