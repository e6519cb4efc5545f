"""Pages: single, deterministic HTML files without scripts or network access.

Every string of the data is escaped and isolated, and its direction and control characters are shown
as escapes, so that it cannot affect the document. A content security policy forbids what a page
does not need: scripts, external resources and forms.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from ampft.text.escaping import one_line
from ampft.text.numbers import counted, percent
from ampft.text.tables import Table, html_table, isolated

NO_BREAK = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=%|points?\b)")
MAX_ROWS = 30  # of a table; further rows are folded


def page_text(template: Path, **values: object) -> str:
    """Return a page as one HTML document.

    Args:
        template: Template, which extends `page.html.j2`; others beside it can be included.
        values: What the template shows.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (counted, html_table, isolated, no_break_units, one_line, percent, table_slice)
    environment.filters |= {each.__name__: each for each in filters}
    environment.globals["max_rows"] = MAX_ROWS
    return environment.get_template(template.name).render(values)


def no_break_units(text: str) -> Markup:
    """Return untrusted text in which no line breaks between a number and its unit."""
    return isolated(_UNIT.sub(NO_BREAK, text))


def table_slice(table: Table, start: int, stop: int | None = None) -> Table:
    """Return a table with only the rows from `start` to `stop`."""
    return replace(table, rows=table.rows[start:stop])
