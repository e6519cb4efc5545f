"""A finished comparison, read from its folder."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from ampft.comparison.findings import Comparison
from ampft.comparison.report.files import read_comparison
from ampft.comparison.report.terminal import terminal_text


class FinishedComparison:
    """A finished comparison; `ampft.compare` returns one.

    Attributes:
        folder: Folder of the comparison, with comparison.html.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def comparison(self) -> Comparison:
        """Arms, differences, intervals and verdicts, as in comparison.json."""
        return read_comparison(self.folder)

    def __repr__(self) -> str:
        return terminal_text(self.comparison)

    def _repr_html_(self) -> str:
        """Return the text for terminals as HTML, in which nothing from the data is active."""
        return str(Markup("<pre>{}</pre>").format(terminal_text(self.comparison)))
