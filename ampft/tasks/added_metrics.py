"""Metrics of a problem that have no place of their own in its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ampft.metrics.sums import Metric
from ampft.tasks.outcome import Outcome

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class AddedMetric:
    """A metric of the problem that has no place of its own in the report."""

    name: str
    title: str
    value: float


def added_metrics(
    outcome: Outcome, rows: Mapping[str, Metric], known: Mapping[str, float | None]
) -> tuple[AddedMetric, ...]:
    """Return the metrics of a problem that its report does not have yet.

    Args:
        outcome: Outcome that the report is on.
        rows: Metrics of the problem, by name.
        known: Metrics of the report, by name.
    """
    values = outcome.metrics()
    return tuple(
        AddedMetric(name, row.title, values[name])
        for name, row in rows.items()
        if name not in known
    )


def added_values(added: Sequence[AddedMetric]) -> dict[str, float | None]:
    """Return added metrics by name."""
    return {each.name: each.value for each in added}


def added_text(added: Sequence[AddedMetric]) -> str:
    """Return added metrics in a sentence that follows others; empty if there are none."""
    listed = ", ".join(f"{each.title} {each.value:.4f}" for each in added)
    return f" Further metrics: {listed}." if listed else ""


def report_dict(report: DataclassInstance, metrics: Mapping[str, float | None]) -> dict[str, Any]:
    """Return a report as JSON values, with its metrics by name."""
    values = {**asdict(report), **metrics}
    return {name: value for name, value in values.items() if name != "added" or value}
