"""The sections of the reports in Markdown and HTML, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ampft.comparison.findings import Comparison
from ampft.comparison.remarks import remark_text
from ampft.comparison.report import prediction_tables, tables
from ampft.comparison.report.method import SOURCES, method_paragraphs
from ampft.comparison.report.noise import yardstick
from ampft.comparison.report.subgroup_tables import subgroup_losses
from ampft.text.tables import Table


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a report.

    Attributes:
        name: Identifier, such as "classes".
        heading: Heading.
        is_exploratory: Whether its results may only suggest a question.
        is_folded: Whether the page shows only its heading until a reader opens it.
        tables: Tables.
        paragraphs: Paragraphs above the tables, not escaped.
        items: List below the tables, not escaped.
    """

    name: str
    heading: str
    is_exploratory: bool = False
    is_folded: bool = False
    tables: tuple[Table, ...] = ()
    paragraphs: tuple[str, ...] = ()
    items: tuple[str, ...] = ()


def sections(comparison: Comparison, *, max_classes: int | None = None) -> tuple[Section, ...]:
    """Return the sections below the table of modes that have content.

    Args:
        comparison: Comparison, from `without_incomplete_medians`.
        max_classes: Maximum number of classes in the table of classes; None for all.
    """
    every = _sections(comparison, max_classes)
    return tuple(each for each in every if each.tables or each.paragraphs or each.items)


def _sections(comparison: Comparison, max_classes: int | None) -> Iterator[Section]:
    yield Section(
        name="subgroups",
        heading="Where losses are largest",
        is_exploratory=True,
        tables=tuple(subgroup_losses(comparison)),
    )
    yield Section(
        name="changed",
        heading="Changed predictions",
        is_exploratory=True,
        tables=tuple(prediction_tables.changed(comparison)),
    )
    yield Section(
        name="in-fp32",
        heading="Predictions in fp32",
        is_exploratory=True,
        tables=_present(tables.predicted_in_fp32(comparison)),
    )
    yield Section(
        name="speed",
        heading="Speed",
        tables=_present(tables.speed(comparison)),
        items=tuple(
            f"{arm.name}: {remark_text(arm.speed.reason)}"
            for arm in comparison.arms
            if arm.speed is not None and arm.speed.reason
        ),
    )
    yield Section(name="memory", heading="Memory", tables=_present(tables.memory(comparison)))
    yield Section(
        name="classes",
        heading="Classes",
        is_exploratory=True,
        tables=_present(
            prediction_tables.classes(comparison, limit=max_classes),
            prediction_tables.class_intervals(comparison, limit=max_classes),
            prediction_tables.confusions(comparison),
        ),
    )
    yield Section(
        name="calibration",
        heading="Other metrics and calibration",
        is_exploratory=True,
        tables=_present(
            prediction_tables.metrics(comparison), prediction_tables.calibration(comparison)
        ),
    )
    yield Section(
        name="noise",
        heading="Gradient error relative to batch noise",
        is_exploratory=True,
        tables=tuple(yardstick(comparison.yardstick)),
    )
    yield Section(
        name="seeds",
        heading="Intervals and p-values"
        if comparison.has_one_model_each
        else "Results per seed, intervals and p-values",
        is_folded=True,
        tables=tuple(tables.seeds(comparison)),
    )
    yield Section(name="runs", heading="Runs", is_folded=True, tables=(tables.runs(comparison),))
    yield Section(
        name="method", heading="Method", is_folded=True, paragraphs=method_paragraphs(comparison)
    )
    yield Section(name="sources", heading="Sources", is_folded=True, items=SOURCES)
    yield Section(
        name="setup",
        heading="Setup and environment",
        is_folded=True,
        tables=_present(
            tables.facts("Settings of all runs", comparison.setup),
            tables.facts("Hardware and versions", comparison.environment),
        ),
    )


def _present(*every: Table | None) -> tuple[Table, ...]:
    return tuple(each for each in every if each is not None)
