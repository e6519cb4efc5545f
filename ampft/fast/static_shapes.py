"""Micro-batches with few different shapes, and their copies in memory that stays where it is.

A CUDA graph repeats the same kernels with the same shapes, numbers and addresses. A batch for a
model without padding is therefore padded to the longest text of the split, and its row is filled up
to a bucket of tokens with sequences that may be empty. Logits, loss and gradient do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ampft.data.step_batches import MicroBatch, StepBatch, StepBatches
from ampft.fast.packing.install import with_layout
from ampft.fast.packing.layout import PackedLayout
from ampft.kinds.logits import LABEL_WEIGHTS, NO_LABEL
from ampft.kinds.windows import WORD_POSITIONS
from ampft.models.model_settings import ModelSettings
from ampft.models.weights import LoadedModel
from ampft.precision.transfer import copy_into

BUCKET = 256
WORD_BUCKET = 64

Key = tuple[object, ...]
"""What a graph depends on: names, shapes and dtypes."""


class CannotCapture(Exception):
    """A step does what a CUDA graph cannot repeat; the message is a clause."""


@dataclass(frozen=True)
class StaticShapes:
    """Gives micro-batches few different shapes."""

    model: nn.Module  # Model as loaded.
    longest: int  # Upper bound of the number of tokens of a text.
    bucket: int = BUCKET  # Tokens of a bucket.

    def shaped(self, micro_batch: MicroBatch) -> MicroBatch:
        """Return a micro-batch with its layout in its bucket; unchanged if it has one."""
        packing = micro_batch.packing
        if packing is not None and packing.is_filled:
            return micro_batch
        if (mask := micro_batch.inputs.get("attention_mask")) is None or mask.dim() != 2:
            return micro_batch
        token = getattr(self.model.config, "pad_token_id", None) or 0
        inputs = pad_batch_to_width(micro_batch.inputs, self.longest, padding_token=token)
        padded = replace(micro_batch, inputs=inputs, packing=None)
        layout = with_layout(self.model, padded).packing
        if layout is None:
            return micro_batch
        bucketed = layout.bucketed(self.bucket, max(self.longest, layout.longest))
        bucketed.pin()
        return replace(padded, packing=bucketed)


def pad_batch_to_width(
    inputs: Mapping[str, Tensor], width: int, *, padding_token: int
) -> dict[str, Tensor]:
    """Return a batch of texts with more padding, and words up to a multiple of `WORD_BUCKET`.

    The added words have no label, so that the loss does not change.

    Args:
        inputs: Collated batch with `attention_mask` (m, T).
        width: Number of columns of the result, if the batch has fewer.
    """
    former = inputs["attention_mask"].shape
    missing = max(0, width - former[1])
    padded = dict(inputs)
    for name, tensor in inputs.items():
        if tensor.shape == former:
            value = padding_token if name == "input_ids" else 0
            padded[name] = functional.pad(tensor, (0, missing), value=value)
    if WORD_POSITIONS in inputs:
        positions = inputs[WORD_POSITIONS]
        moved = positions // former[1] * (former[1] + missing) + positions % former[1]
        more = -len(positions) % WORD_BUCKET
        padded[WORD_POSITIONS] = functional.pad(moved, (0, more))
        padded["labels"] = functional.pad(inputs["labels"], (0, more), value=NO_LABEL)
        if LABEL_WEIGHTS in inputs:
            padded[LABEL_WEIGHTS] = functional.pad(inputs[LABEL_WEIGHTS], (0, more))
    return padded


def static_shapes(
    settings: ModelSettings, loaded: LoadedModel, step_batches: StepBatches
) -> StaticShapes:
    """Return the shapes of a training: texts of the split are at most `max_seq_length` long."""
    longest = min(settings.max_seq_length, int(step_batches.examples.lengths.max()))
    return StaticShapes(loaded.model, longest, settings.token_buckets or BUCKET)


def graph_key(micro_batch: MicroBatch) -> Key:
    """Return what a graph for this micro-batch depends on."""
    layout: PackedLayout | None = micro_batch.packing
    of_layout = () if layout is None else (layout.total, len(layout.lengths), layout.longest)
    return (
        *sorted((name, *tensor.shape, tensor.dtype) for name, tensor in micro_batch.inputs.items()),
        *of_layout,
    )


class StaticLayout(PackedLayout):
    """A layout whose indices are in memory that stays where it is; it has no groups."""

    def cells(self, rows: Any) -> Any:
        """Refuse to form groups.

        Raises:
            CannotCapture: Always.
        """
        del rows
        raise CannotCapture(
            "attention runs in groups of similar length, whose shapes differ from step to step"
        )


class StaticBatch:
    """A step batch of one micro-batch, in memory that stays where it is."""

    def __init__(self, micro_batch: MicroBatch, device: torch.device) -> None:
        self._inputs = {
            name: torch.empty_like(tensor, device=device, pin_memory=False)
            for name, tensor in micro_batch.inputs.items()
        }
        self._weight = torch.ones((), device=device)
        self._indices: Tensor | None = None
        layout = None if micro_batch.packing is None else self._static(micro_batch.packing)
        unread: Any = _Unreadable()
        # The step batch; what a graph cannot have, such as example ids, is unreadable.
        self.step_batch = StepBatch(
            epoch=unread,
            step=unread,
            effective_ids=unread,
            effective_weight=self._weight,  # type: ignore[arg-type] # a number in both
            effective_length=unread,
            micro_batches=(
                MicroBatch(unread, self._inputs, counted=True, is_last=True, packing=layout),
            ),
        )

    def _static(self, layout: PackedLayout) -> StaticLayout:
        names = (field for field in layout.__dataclass_fields__)
        static = StaticLayout(**{name: getattr(layout, name) for name in names})
        sizes = list(layout._joined.sizes)
        self._indices = torch.empty(sum(sizes), dtype=torch.int64, device=layout.device)
        self._offsets = torch.empty(sizes[3], dtype=torch.int32, device=layout.device)
        self._boundaries = self._indices.split(sizes)[3]
        static.__dict__.update(_indices=self._indices.split(sizes), offsets=self._offsets)
        return static

    def load(self, step_batch: StepBatch, micro_batch: MicroBatch) -> None:
        """Copy a micro-batch with the same key, and the weight of its step."""
        for name, tensor in micro_batch.inputs.items():
            copy_into(self._inputs[name], tensor)
        self._weight.fill_(step_batch.effective_weight)
        if self._indices is not None:
            host = micro_batch.packing._joined.tensors
            joined = host[0] if len(host) == 1 else torch.cat(host)
            copy_into(self._indices, joined)
            self._offsets.copy_(self._boundaries)


def _refuse(*_: object, **__: object) -> Any:
    raise CannotCapture("the loss reads the example ids or the number of the step")


class _Unreadable:
    """Stands for a value that differs from step to step, which a graph would never see."""

    __getattr__ = __getitem__ = __iter__ = __len__ = __bool__ = __int__ = __float__ = _refuse
    __index__ = __array__ = __eq__ = __lt__ = __add__ = __mul__ = __mod__ = _refuse
    __hash__ = None  # type: ignore[assignment]
