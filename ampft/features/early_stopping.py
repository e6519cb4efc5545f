"""When a training stops early (`--early_stopping_patience`).

Every process counts, because `evaluate` gathers all predictions: all of them decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EarlyStopping:
    """Counts evaluations on the validation split that did not improve."""

    # Number of evaluations without a better value after which to stop; None never stops.
    patience: int | None = None
    without_improvement: int = 0  # Number of evaluations since the last better value.

    def count(self, *, improved: bool) -> None:
        """Count an evaluation."""
        self.without_improvement = 0 if improved else self.without_improvement + 1

    @property
    def should_stop(self) -> bool:
        """Whether patience ran out."""
        return self.patience is not None and self.without_improvement >= self.patience
