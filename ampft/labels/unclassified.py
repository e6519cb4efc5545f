"""Predictions that are numbers, not classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.metrics.scores import Scores


class Unclassified:
    """Cases with one number each, which have no classes and no probabilities."""

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """False everywhere."""
        return np.zeros(len(self), dtype=np.bool_)

    @property
    def confidence(self) -> Any:
        """None."""
        return None

    def scores(self) -> tuple[Scores, ...]:
        """Return none."""
        return ()

    def confusion(self) -> None:
        """Return None."""

    def calibration(self, bins: int) -> None:
        """Return None."""
