"""errors.html: a single file without scripts or network access, in the comparison's design."""

from __future__ import annotations

from pathlib import Path

from ampft.comparison.report import html
from ampft.diagnosis.mistakes.find import Mistakes
from ampft.text.numbers import percent
from ampft.text.tables import Name, Table

TEMPLATE = "errors.html.j2"


def page_text(mistakes: Mistakes) -> str:
    """Return the mistakes as one HTML document, in which every string is inert."""
    environment = html.environment(Path(__file__).parent)
    return environment.get_template(TEMPLATE).render(m=mistakes, pairs=pair_table(mistakes))


def pair_table(mistakes: Mistakes) -> Table:
    """Return the confused pairs."""
    rows = [
        (
            Name(pair.label),
            Name(pair.prediction),
            f"{pair.count:,}",
            percent(pair.count / pair.support) if pair.support else "",
            f"{pair.reverse:,}",
        )
        for pair in mistakes.pairs
    ]
    return Table(
        header=("label", "predicted as", "count", "of the label", "the other way round"),
        rows=rows,
        note=f"Counts are {mistakes.pair_unit}.",
        left=2,
    )
