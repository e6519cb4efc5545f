"""`--tune_thresholds`: the thresholds of labels, tuned on the validation split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from ampft.features.feature import Feature
from ampft.tasks.outcome import Outcome, TunableOutcome


class TunedThresholds(Feature):
    """Decides by thresholds tuned on the validation split, and saves them with the model."""

    name = "thresholds"

    def __init__(self) -> None:
        """Begin without thresholds."""
        self._tuned: TunableOutcome | None = None

    def decided(self, outcome: Outcome, validation: Callable[[], Outcome]) -> Outcome:
        """Return the outcome with tuned thresholds: a validation with its own.

        Those of any other split are tuned once, by the weights that are saved.
        """
        assert isinstance(outcome, TunableOutcome), "checked with the other arguments"
        if outcome.split == "validation":
            return outcome.tuned()
        if self._tuned is None:
            tuned = validation()
            assert isinstance(tuned, TunableOutcome)
            self._tuned = tuned
        return outcome.decided_like(self._tuned)

    def save(self, folder: Path, model: nn.Module) -> None:
        """Write the thresholds into the configuration of the model."""
        del folder
        assert self._tuned is not None, "the final split is predicted before"
        config: Any = model.config
        config.update(self._tuned.decision_settings())
