"""Harm: what a precision may do to a gradient and to a training, and what it may not.

The doctor, its cures and `--check_precision` ask `GradientChange.harm` and
`ShortTrainingResult.harm`, so that a cure never fails the check that it was found for. Both compare
with float32: only the gradient as a whole decides. Counts of entries, such as the share that
underflows, explain a harm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MIN_COSINE = 0.9
"""Smallest cosine between the gradients of a mode and of float32.

An independent error of half the gradient's size gives 1 / sqrt(1 + 0.5^2) = 0.89. Rounding leaves
0.99 and more on encoders (errors of 1 to 3 % in bf16, up to 15 % on a few examples)."""
MIN_PART_COSINE = 0.5
"""Below it, the gradient of a single parameter counts as lost. A few parameters have gradients that
are zero but for rounding in any precision, as the biases of keys in attention have."""
MAX_LOST = 0.25
"""Largest share of the weights whose parameters may have lost their gradient."""
MIN_SIZE, MAX_SIZE = 0.5, 2.0
"""Smallest and largest norm of the gradient relative to float32. Beyond them, the gradient acts as
one of another learning rate, and clipping acts on other steps."""
SMALL_BATCH = 0.1
"""Norm of a batch's gradient, relative to the largest, below which it is not judged by itself: it
hardly moves the weights."""
MAX_RISE = 2.0
"""Largest ratio of the losses after and before a trial. A training that works lowers the loss; a
few steps on few batches can raise it a little."""
MIN_STEPS = 20
"""Number of steps after which a trial is asked what it has learned. In fewer, the steps that a
scaler skips at the start count too much."""
MIN_PROGRESS = 0.5
"""Share of the decrease in float32 that a trial must reach; rounding and other dropout masks leave
more than 0.9 of it."""
CLEAR_PROGRESS = 0.05
"""Decrease of the loss in float32, relative to its start, above which decreases are compared."""


class Harm(StrEnum):
    """What a precision does to a gradient, or to a training."""

    NOT_FINITE = "not finite"
    DIRECTION = "gradient in another direction"
    PARAMETERS = "gradient of many parameters lost"
    SIZE = "gradient of another size"
    DIVERGES = "loss rises"
    LEARNS_NOTHING = "loss does not fall"
    LEARNS_LESS = "loss falls less than in float32"


@dataclass(frozen=True)
class GradientChange:
    """Sums over the entries of gradients g of a mode and g32 of float32.

    They add up over batches.
    """

    # (parameters, 4) float64: for each parameter the sums of g * g32, g^2, g32^2 and (g - g32)^2.
    sums: Tensor
    entries: Tensor  # (parameters,) number of entries of each.

    @classmethod
    def of(cls, actual: Iterable[Tensor], expected: Iterable[Tensor]) -> GradientChange:
        """Return the sums over pairs of tensors, computed in float64.

        Args:
            actual: Parts of the gradient of the mode, without the loss scale.
            expected: The same parts in float32.
        """
        import torch  # here, because the results of the doctor are also read without torch

        sums, entries = [], []
        for one, other in zip(actual, expected, strict=True):
            a, b = one.double(), other.double()
            squares = (a * b, a.square(), b.square(), (a - b).square())
            sums.append(torch.stack([each.sum() for each in squares]).cpu())
            entries.append(b.numel())
        empty = torch.zeros(0, 4, dtype=torch.float64)
        return cls(torch.stack(sums) if sums else empty, torch.tensor(entries))

    def __add__(self, other: GradientChange) -> GradientChange:
        """Return the sums over the batches of both."""
        if not len(self.sums):
            return other
        return GradientChange(self.sums + other.sums, self.entries) if len(other.sums) else self

    @property
    def _whole(self) -> list[float]:
        return list(self.sums.sum(0).tolist())

    @property
    def norm32(self) -> float:
        """Norm of g32."""
        return math.sqrt(self._whole[2])

    @property
    def cosine(self) -> float:
        """Cosine of the angle between g and g32; 1 if both are zero."""
        product, square, square32, _ = self._whole
        if not square or not square32:
            return float(square == square32)
        return product / math.sqrt(square) / math.sqrt(square32)

    @property
    def size(self) -> float:
        """Norm of g relative to g32; 1 if both are zero."""
        _, square, square32, _ = self._whole
        if not square32:
            return math.inf if square else 1.0
        return math.sqrt(square) / math.sqrt(square32)

    @property
    def error(self) -> float:
        """Norm of g - g32 relative to g32; 0 if both are zero."""
        _, _, square32, difference = self._whole
        if not square32:
            return math.inf if difference else 0.0
        return math.sqrt(difference) / math.sqrt(square32)

    @property
    def lost_share(self) -> float:
        """Share of the weights whose parameter's gradient has lost its direction, 0 to 1.

        AdamW moves every parameter by the learning rate, however small its gradient is.
        """
        product, square, square32, _ = self.sums.unbind(1)
        trained = square32 > 0
        is_lost = trained & ~(product > MIN_PART_COSINE * (square * square32).sqrt())
        total = float(self.entries[trained].sum())
        return float(self.entries[is_lost].sum()) / total if total else 0.0

    @property
    def harm(self) -> Harm | None:
        """What is wrong with g; None if it trains as g32 does."""
        if not math.isfinite(self._whole[1]):
            return Harm.NOT_FINITE
        if self.cosine < MIN_COSINE:
            return Harm.DIRECTION
        if self.lost_share > MAX_LOST:
            return Harm.PARAMETERS
        return None if MIN_SIZE <= self.size <= MAX_SIZE else Harm.SIZE


def gradient_harm(changes: Sequence[GradientChange]) -> Harm | None:
    """Return the harm to the gradients of some batches; None if they train as in float32.

    All batches are judged together. Batches whose gradient is not small are also judged singly.
    """
    together = sum(changes, GradientChange.of((), ()))
    largest = max((change.norm32 for change in changes), default=0.0)
    counted = (change for change in changes if change.norm32 >= SMALL_BATCH * largest)
    return together.harm or next((change.harm for change in counted if change.harm), None)


@dataclass(frozen=True, kw_only=True)
class ShortTrainingResult:
    """A short training."""

    mode: str  # Its precision.
    steps: int  # Number of optimizer steps that were made.
    learning_rate: float  # Peak learning rate.
    # Mean loss of its batches at the start, in float32 and without dropout; None if it is not
    # finite.
    before: float | None
    # The same loss at the end; None if the loss, gradient or weights were not finite.
    after: float | None

    def harm(self, in_float32: ShortTrainingResult | None = None) -> Harm | None:
        """Return the harm to the training; None if it works.

        Args:
            in_float32: The same training in float32; None compares only with its start.
        """
        before, after = self.before, self.after
        if before is None or after is None:
            return Harm.NOT_FINITE
        if after - before > (MAX_RISE - 1) * abs(before):
            return Harm.DIVERGES
        if self.steps >= MIN_STEPS and after >= before:
            return Harm.LEARNS_NOTHING
        if in_float32 is None or in_float32.before is None or in_float32.after is None:
            return None
        expected = in_float32.before - in_float32.after
        is_clear = self.steps >= MIN_STEPS and expected > CLEAR_PROGRESS * abs(before)
        return Harm.LEARNS_LESS if is_clear and before - after < MIN_PROGRESS * expected else None
