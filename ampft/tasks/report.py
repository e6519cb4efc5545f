"""What the reports of all tasks share: metrics under names, cells of tables, and how they show.

Nothing here imports torch, because comparisons and pages read reports without a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from ampft.metrics.ranking import AVERAGE_PRECISION, RANKING
from ampft.metrics.scores import Scores
from ampft.metrics.sums import Metric
from ampft.text.escaping import inert
from ampft.text.json_io import from_json
from ampft.text.numbers import counted
from ampft.text.page import Table, notebook_html, terminal

R = TypeVar("R", bound="Report")


@dataclass(frozen=True)
class HubMetric:
    """A metric under its name on the hub, for the metadata of a model card."""

    kind: str
    title: str
    value: float
    arguments: Mapping[str, str] | None = None


@dataclass(frozen=True)
class AddedMetric:
    """A metric of the problem that has no place of its own in the report."""

    name: str
    title: str
    value: float


@dataclass(frozen=True)
class Report:
    """All metrics of one split, to be printed, written and read."""

    title: ClassVar[str] = "classification report"

    split: str  # Name of the split.
    examples: int  # Number of examples of the split: texts, sentences, images.
    # Metrics of the problem beyond those that the report has a place for.
    added: tuple[AddedMetric, ...] = field(default=(), kw_only=True)
    # Whether the metrics count examples by their weights; numbers of examples never do.
    is_weighted: bool = field(default=False, kw_only=True)

    @property
    def class_scores(self) -> Mapping[str, Scores]:
        """Scores by class, of reports in which rows have classes; otherwise empty."""
        return {}

    def own_metrics(self) -> dict[str, float | None]:
        """Return the scalar metrics that the report has a place for; an undefined one is None."""
        raise NotImplementedError

    def tables(self) -> tuple[Table, ...]:
        """Return the tables of the report, as the model card shows them."""
        raise NotImplementedError

    def hub_metrics(self) -> tuple[HubMetric, ...]:
        """Return the metrics for the metadata of a model card, the primary one first."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float | None]:
        """Return the scalar metrics by name; an undefined one is None."""
        return {**self.own_metrics(), **{each.name: each.value for each in self.added}}

    def text(self) -> str:
        return terminal(self.tables())

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for notebooks."""
        return str(notebook_html(self.tables()))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, with every scalar metric under its name.

        `report_from_json` is the inverse.
        """
        values = asdict(self)
        unset = {"added", "is_weighted"} - {name for name in values if values[name]}
        return {k: v for k, v in values.items() if k not in unset} | self.metrics()

    @property
    def added_text(self) -> str:
        """Sentences that follow others: added metrics, and by what metrics count; may be empty."""
        listed = ", ".join(f"{each.title} {each.value:z.4f}" for each in self.added)
        weighted = " Metrics count rows by their weights." if self.is_weighted else ""
        return f" Further metrics: {listed}.{weighted}" if listed else weighted


def with_added_metrics(
    report: R,
    rows: Mapping[str, Metric],
    values: Mapping[str, float],
    ranking: Mapping[str, float] | None = None,
    *,
    ranked_class: str | None = None,
) -> R:
    """Return a report with the metrics of its problem that it does not have yet.

    Args:
        report: Report without added metrics.
        ranking: ROC AUC and average precision, by name.
        ranked_class: Class of two to which the average precision belongs; None for other numbers
            of classes.
    """
    known, ranking = report.metrics(), ranking or {}
    titles = {name: row.title for name, row in rows.items()}
    titles |= {name: RANKING[name].title for name in ranking}
    if ranked_class is not None and AVERAGE_PRECISION in ranking:
        titles[AVERAGE_PRECISION] += f" of {inert(ranked_class)!r}"
    added = tuple(
        AddedMetric(name, title, {**values, **ranking}[name])
        for name, title in titles.items()
        if name not in known and not math.isnan({**values, **ranking}[name])
    )
    return replace(report, added=added)


def report_from_json(report_type: type[R], values: Mapping[str, Any]) -> R:
    """Return a report from the result of its `as_dict`, which has other metrics too.

    Raises:
        ValueError: A field is missing or of another type.
    """
    names = report_type.__dataclass_fields__
    return from_json(report_type, {k: v for k, v in values.items() if k in names}, "report")


def outputs_text(label_names: Sequence[str]) -> str:
    """Return what a model predicts: "3 classes", or "numbers" for a single output."""
    return "numbers" if len(label_names) == 1 else counted(len(label_names), "class")


def as_tuples(counts: npt.NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    """Return the rows of (m, k) counts as tuples."""
    return tuple(map(tuple, counts.tolist()))


def score_cells(scores: Scores) -> tuple[str, str, str, str]:
    """Return precision, recall, F1 and support as cells of a table."""
    precision, recall, f1 = (f"{v:.3f}" for v in (scores.precision, scores.recall, scores.f1))
    return precision, recall, f1, f"{scores.support:,}"
