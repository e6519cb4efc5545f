"""Whether a model of texts or words runs without padding: where its results are equal."""

from __future__ import annotations

from typing import Any

from ampft.data.step_batches import ids_of_varied_length
from ampft.fast.packing.families import packing_support
from ampft.fast.packing.install import install_packing, limit_kernel_caches
from ampft.fast.packing.verification import verify_packing
from ampft.kinds.logits import model_inputs
from ampft.models.by_length import largest_part

# Difference of float32 logits, relative to the largest: rounding is at most 1e-6, a wrong mask at
# least 1e-2.
PACKED_TOLERANCE = 1e-4


def remove_padding(
    model: Any, examples: Any, *, token_buckets: int | None, compared: str | None = None
) -> tuple[bool, str]:
    """Make a model run without padding if its results stay the same.

    Args:
        examples: Training examples, as the module of a kind makes them.
        token_buckets: Multiple to which the tokens of a batch are filled up; None for none.
        compared: Note of the same call for a copy with the same weights, whose results were
            compared; None compares them.

    Returns:
        Whether it does, and a note for the user.
    """
    support = packing_support(model)
    if not support.supported:
        return False, f"padded path: {support.reason}; micro-batches sorted by length"
    limit_kernel_caches()  # must precede the first product
    if compared is not None:
        install_packing(model, token_buckets=token_buckets)
        return True, compared
    batch = examples.collate(ids_of_varied_length(examples.lengths))
    error = verify_packing(model, largest_part(model, model_inputs(batch)))
    for part, difference in error._asdict().items():
        if not difference <= PACKED_TOLERANCE:
            return False, f"padded path: {part} without padding differ by {difference:.1e}"
    install_packing(model, token_buckets=token_buckets)
    return True, f"padding-free path: {support.reason} (logits equal within {error.logits:.0e})"


def install_where_supported(model: Any) -> None:
    """Make a saved model run without padding if its family can."""
    if packing_support(model).supported:
        install_packing(model)
