"""How probabilities become predictions: temperature, thresholds, and which rows are answered.

Nothing here imports torch, because comparisons and reports read outcomes without a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.metrics.abstention import CONFIDENCE

TEMPERATURE = "logit_temperature"
THRESHOLDS = "label_thresholds"
POSITIVE_LABEL = "threshold_label"
POSITIVE_THRESHOLD = "threshold_of_label"
ABSTENTION = "abstention"
ENTRIES = (TEMPERATURE, THRESHOLDS, POSITIVE_LABEL, POSITIVE_THRESHOLD, ABSTENTION)


@dataclass(frozen=True)
class Abstention:
    """Which rows a model answers."""

    error: float  # Promised error among the answered rows.
    # Confidence from which a row is answered; None answers none, because the promise could not be
    # proven.
    least_confidence: float | None
    confidence: float = CONFIDENCE  # Probability with which the promise holds.


@dataclass(frozen=True)
class Decisions:
    """What was fitted on a validation split."""

    temperature: float | None = None  # Number by which logits are divided; None for 1.
    # Probability from which each of several labels is predicted; None if not tuned.
    thresholds: tuple[float, ...] | None = None
    positive: int | None = None  # Index of the class of two that `positive_threshold` is for.
    # Probability from which this class is predicted; None if not tuned.
    positive_threshold: float | None = None
    abstention: Abstention | None = None  # Which rows are answered; None answers all.

    def entries(self, label_names: Sequence[str]) -> dict[str, Any]:
        """Return the decisions as JSON values for the configuration of a model; none if unset.

        Args:
            label_names: Names of the classes.
        """
        of_two = self.positive is not None and self.positive_threshold is not None
        values = {
            TEMPERATURE: self.temperature,
            THRESHOLDS: None if self.thresholds is None else list(self.thresholds),
            POSITIVE_LABEL: label_names[self.positive or 0] if of_two else None,
            POSITIVE_THRESHOLD: self.positive_threshold,
            ABSTENTION: None if self.abstention is None else asdict(self.abstention),
        }
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_entries(cls, entries: Mapping[str, Any], label_names: Sequence[str]) -> Decisions:
        """Return the decisions from a mapping that has the result of `entries` among others.

        Raises:
            ValueError: An entry has another form.
        """
        thresholds, label = entries.get(THRESHOLDS), entries.get(POSITIVE_LABEL)
        temperature, abstention = entries.get(TEMPERATURE), entries.get(ABSTENTION)
        return cls(
            temperature=None if temperature is None else float(temperature),
            thresholds=None if thresholds is None else tuple(map(float, thresholds)),
            positive=None if label is None else list(label_names).index(label),
            positive_threshold=None if label is None else float(entries[POSITIVE_THRESHOLD]),
            abstention=None if abstention is None else Abstention(**abstention),
        )

    def classes(self, probabilities: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Return the (n,) predicted classes from (n, K) probabilities of one class each.

        It is the most probable class, or of equally probable ones the first; or with a threshold
        for one class of two, this class from the threshold on.
        """
        if self.positive is None or self.positive_threshold is None:
            return probabilities.argmax(axis=1).astype(np.int64)
        is_positive = probabilities[:, self.positive] >= np.float32(self.positive_threshold)
        return np.where(is_positive, self.positive, 1 - self.positive).astype(np.int64)

    def answers(self, confidence: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.bool_] | None:
        """Return (n,) whether rows with these confidences are answered; None without abstention."""
        if self.abstention is None:
            return None
        least = self.abstention.least_confidence
        if least is None:
            return np.zeros(len(confidence), dtype=bool)
        answered: npt.NDArray[np.bool_] = confidence >= np.float32(least)
        return answered


def fitted_config_entries(config: Any) -> dict[str, Any]:
    """Return the entries of the configuration of a saved model, each None if nothing was fitted."""
    return {name: getattr(config, name, None) for name in ENTRIES}


UNTOUCHED = Decisions()
