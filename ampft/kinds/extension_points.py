"""What add-ons add to models of texts: models without padding, and gradients that reuse memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ampft.registry import ExtensionPoint

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ampft.data.step_batches import MicroBatch


class PackedModels(Protocol):
    """Models that run without padding."""

    def is_packed(self, model: nn.Module) -> bool:
        """Return whether a model runs without padding."""
        ...

    def layout_on_host(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
        """Return the layout of a batch on the device of a packed model; None for another."""
        ...

    def with_layout(self, model: nn.Module, micro_batch: MicroBatch) -> MicroBatch:
        """Return a micro-batch with its layout."""
        ...


class PaddingRemoval(Protocol):
    """Makes models run without padding."""

    def remove_padding(
        self, model: Any, examples: Any, *, token_buckets: int | None, compared: str | None = None
    ) -> tuple[bool, str]:
        """Make a model run without padding if its results stay the same.

        Args:
            compared: Note of the same call for a copy with the same weights; None for none.

        Returns:
            Whether it does, and a note for the user.
        """
        ...

    def install_where_supported(self, model: Any) -> None:
        """Make a saved model run without padding if its family can."""
        ...


PACKED_MODELS = ExtensionPoint[PackedModels]("fast", "runs models without padding")
PADDING_REMOVAL = ExtensionPoint[PaddingRemoval]("fast", "runs models without padding")
# Makes large tables of embeddings reuse the memory of their gradient.
EMBEDDING_GRADIENT: ExtensionPoint[Callable[[nn.Module], object]] = ExtensionPoint(
    "fast", "reuses the memory of gradients"
)
