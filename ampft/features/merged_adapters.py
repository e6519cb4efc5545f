"""`--merge_lora`: adapters become part of the weights before the final evaluation."""

from __future__ import annotations

from typing import Any

from ampft.features.feature import Feature
from ampft.models.adapters import merge_adapters


class MergedAdapters(Feature):
    """Merges the adapters, so that the model that is saved is the one that is evaluated."""

    name = "merged_adapters"

    def __init__(self, model: Any) -> None:
        """Begin with separate adapters.

        Args:
            model: Model without what Accelerate added.
        """
        self._model = model

    def choose_weights(self) -> bool:
        """Merge the adapters, which cannot be undone."""
        merge_adapters(self._model)
        return False
