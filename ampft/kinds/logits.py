"""The logits of a collated batch: of examples, of words or of pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ampft.kinds.extension_points import PACKED_MODELS
from ampft.kinds.windows import WORD_COUNTS, logits_per_text_or_word
from ampft.precision.transfer import to_device

LABEL_WEIGHTS = "label_weights"  # of a collated batch: the weights of the labels in the loss
NO_LABEL = -100  # of a word that does not count, as in `torch.nn.CrossEntropyLoss`


def forward_logits(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    max_rows: int | None = None,
    packing: Any = None,
) -> Tensor:
    """Call a transformers model on `inputs`, without labels, and return its logits.

    The logits are per example or word, see `logits_per_text_or_word`. They are float32, or
    float64 for a float64 model, so that a reference is not rounded.

    Args:
        model: Any model, prepared by Accelerate or not.
        inputs: Collated batch.
        max_rows: Largest number of rows, such as windows, per forward pass; None for all.
        packing: Layout of the batch for a model without padding; None computes it. Only without
            `max_rows`.
    """
    arguments = model_inputs(inputs)
    rows = len(next(iter(arguments.values())))
    if max_rows is None or rows <= max_rows:
        return logits_per_text_or_word(_row_logits(model, arguments, packing), inputs)
    parts = [
        {name: value[start : start + max_rows] for name, value in arguments.items()}
        for start in range(0, rows, max_rows)
    ]
    return logits_per_text_or_word(torch.cat([_row_logits(model, part) for part in parts]), inputs)


def logits_of_rows(logits: Tensor, inputs: Mapping[str, Tensor], rows: int) -> tuple[Tensor, ...]:
    """Return the logits of each row of a batch: (1, K, ...), or (w, K) of the w words of a row.

    Args:
        logits: Result of `forward_logits`.
        rows: Number of its rows.
    """
    counts = inputs.get(WORD_COUNTS)
    return logits.split([1] * rows if counts is None else counts.tolist())


def _row_logits(model: nn.Module, arguments: Mapping[str, Tensor], packing: Any = None) -> Tensor:
    # Imported here because it imports transformers, which a model needs anyway.
    from ampft.models.by_length import merged_logits, padded_inputs, parts_together

    parts = parts_together(model, arguments)
    if not parts:
        return _logits(model, padded_inputs(model, arguments), packing)
    return merged_logits([(rows, _logits(model, part)) for rows, part in parts], arguments)


def _logits(model: nn.Module, arguments: Mapping[str, Tensor], packing: Any = None) -> Tensor:
    without_padding = PACKED_MODELS.get()
    weight = next(model.parameters())
    moved: dict[str, Any] = {
        # Without autocast, pixels must have the dtype of the weights.
        name: to_device(
            value, weight.device, weight.dtype if value.is_floating_point() else value.dtype
        )
        for name, value in arguments.items()
    }
    layout = packing
    if packing is None and without_padding is not None:
        layout = without_padding.layout_on_host(model, arguments)
    if layout is not None:
        moved["packing"] = layout
    logits: Tensor = model(**moved).logits
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def model_inputs(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the model's inputs in a collated batch, without labels."""
    return {name: value for name, value in inputs.items() if not name.startswith("label")}
