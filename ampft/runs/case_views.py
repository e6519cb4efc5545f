"""Shows cases of a run, with its table of predictions and, where it is needed, its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampft.errors import InputError
from ampft.kinds.views import Case, CasePrediction
from ampft.runs.predictions import read_rows
from ampft.runs.record import RunRecord
from ampft.runs.show import task_row
from ampft.text.shown_case import ShownCase

if TYPE_CHECKING:
    from ampft.data.dataset import ClassificationData

MOST_READ_AGAIN = 100_000  # examples; reading more would take many minutes


@dataclass
class CaseViews:
    """Shows the cases of the final split of a run.

    Attributes:
        record: Record of the run.
        split: Name of the split.
        label_names: The labels.
    """

    record: RunRecord
    split: str
    label_names: Sequence[str]

    def show(
        self,
        case: int,
        inputs: Mapping[str, str],
        truth: Any,
        predictions: Sequence[CasePrediction],
    ) -> ShownCase:
        """Return how a case is shown; as texts if it cannot be read.

        Args:
            case: Row of the split.
            inputs: Input columns of the case in the table of predictions.
            truth: Entry of `Outcome.truth`.
            predictions: Predictions to show beside the truth.
        """

        def stored(path: Path, column: str) -> Any:
            return read_rows(path, [case], lambda name: name == column)[case].get(column)

        return task_row(self.record).kind.show(
            Case(
                number=case,
                split=self.split,
                label_names=self.label_names,
                inputs=inputs,
                truth=truth,
                predictions=predictions,
                data=lambda: self._data,
                stored=stored,
            )
        )

    @cached_property
    def _data(self) -> ClassificationData | None:
        """The data of the run; None if they are not available, have changed, or are very many."""
        if sum(self.record.data.examples.values()) > MOST_READ_AGAIN:
            return None
        from ampft.runs.audit.rebuild import recorded_arguments

        try:
            data = task_row(self.record).kind.load(recorded_arguments(self.record, ()), None)
        except InputError:
            return None
        return data if dict(data.fingerprints) == dict(self.record.data.fingerprints) else None
