"""Predictions of some rows by one predictor, and how they depend on the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampft.certificate.findings import BatchInvariance
from ampft.certificate.gate import BATCH_SIZES, LogitTally
from ampft.certificate.rows import VerifiedRows
from ampft.evaluation.evaluate import as_array
from ampft.kinds.logits import forward_logits, logits_of_rows
from ampft.runs.predictor import Predictor

BATCH_SIZE = BATCH_SIZES[1]
INVARIANCE_ROWS = 256  # predicted twice; single rows take long

Numbers = Sequence[int] | npt.NDArray[np.int64]
Decoded = dict[str, npt.NDArray[Any]]


@dataclass
class Parts:
    """Decoded rows of several batches."""

    rows: list[npt.NDArray[np.int64]] = field(default_factory=list)
    decoded: list[Decoded] = field(default_factory=list)

    def add(self, rows: npt.NDArray[np.int64], decoded: Mapping[str, Any]) -> Decoded:
        """Add a batch, and return it as arrays."""
        self.rows.append(rows)
        self.decoded.append({name: as_array(value) for name, value in decoded.items()})
        return self.decoded[-1]

    def joined(self) -> Decoded:
        """Return the rows in their order."""
        back = np.argsort(np.concatenate(self.rows))
        names = self.decoded[0]
        return {name: np.concatenate([d[name] for d in self.decoded])[back] for name in names}


@dataclass(frozen=True)
class Predicted:
    """Predictions of rows: labels and (m, ...) logits by row, and decoded outputs in order."""

    labels: Mapping[int, str]
    logits: Mapping[int, Tensor]
    decoded: Decoded

    @property
    def is_finite(self) -> bool:
        """Whether all logits are finite."""
        return all(bool(torch.isfinite(each).all()) for each in self.logits.values())

    def tally(self, other: Predicted, tolerance: float | None) -> LogitTally:
        """Return the differences of another prediction of some of these rows.

        Args:
            other: The other prediction.
            tolerance: Share of the range of the logits that rounding explains.
        """
        tally = LogitTally(tolerance)
        for row, logits in other.logits.items():
            if logits.shape == self.logits[row].shape:
                tally.add(self.logits[row].numpy(), logits.numpy())
        return tally

    def against(self, alone: Predicted, tolerance: float | None) -> BatchInvariance:
        """Return what changes if some of these rows are predicted alone."""
        return BatchInvariance(
            sizes=BATCH_SIZES,
            rows=len(alone.labels),
            changed=sum(self.labels[row] != label for row, label in alone.labels.items()),
            logits=self.tally(alone, tolerance).differences(),
        )


def batches(
    predictor: Predictor, rows: VerifiedRows, some: Numbers, size: int
) -> list[npt.NDArray[np.int64]]:
    """Return the numbers of some rows, in batches of similar length."""
    numbers = np.asarray(some, dtype=np.int64)
    lengths = np.array([predictor.reader.length(rows.rows[row]) for row in numbers])
    order = numbers[np.argsort(-lengths, kind="stable")]
    return np.split(order, range(size, len(order), size))


def columns_of(rows: VerifiedRows, some: Numbers) -> list[list[Any]]:
    """Return the inputs of some rows by column."""
    return [list(column) for column in zip(*(rows.rows[row] for row in some), strict=True)]


@torch.no_grad()
def forward(
    predictor: Predictor, columns: Sequence[Sequence[Any]]
) -> tuple[Mapping[str, Tensor], Tensor]:
    """Return the inputs and the logits of a batch, on the CPU."""
    inputs = predictor.reader.collate(columns)
    logits = forward_logits(predictor.model, inputs, max_rows=BATCH_SIZE)
    return inputs, logits.float().cpu()


def predicted(predictor: Predictor, rows: VerifiedRows, some: Numbers, size: int) -> Predicted:
    """Predict some rows in batches of similar length.

    Args:
        predictor: The predictor.
        rows: All rows.
        some: Numbers of the rows to predict.
        size: Rows per batch.
    """
    labels: dict[int, str] = {}
    logits: dict[int, Tensor] = {}
    parts = Parts()
    for batch in batches(predictor, rows, some, size):
        inputs, found = forward(predictor, columns_of(rows, batch))
        with_masks = rows.with_masks(inputs, batch)
        decoded = parts.add(batch, predictor.problem.decode(torch.nan_to_num(found), with_masks))
        own = logits_of_rows(found, inputs, len(batch))
        pairs = zip(batch.tolist(), predictor.problem.predicted(decoded), own, strict=True)
        for row, (label, _), each in pairs:
            labels[row], logits[row] = str(label), each
    return Predicted(labels, logits, parts.joined())
