"""Tables, and their output as terminal text, Markdown and HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from markupsafe import Markup

from ampft.text.escaping import code, display_width, inert, one_line, prose

GAP = "  "


@dataclass(frozen=True)
class Name:
    """A name from data or from a file, such as a class, a mode or a folder."""

    text: str  # The name.
    kind: str = ""  # What it is a name of, such as "arm", if a page shows a symbol next to it.


@dataclass(frozen=True)
class Quote:
    """A sentence from data or from a file."""

    text: str


@dataclass(frozen=True)
class ValueWithDetail:
    """A value of ampft's own with a detail such as its interval, which a page shows below it."""

    value: str
    detail: str

    @property
    def text(self) -> str:
        """Both on one line."""
        return f"{self.value} {self.detail}"


Cell: TypeAlias = str | Name | Quote | ValueWithDetail
"""A plain string is ampft's own text; the writers make a `Name` or `Quote` inert."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under a header."""

    header: Sequence[Cell]  # Name of each column.
    # Cells, one per column in each row.
    rows: Sequence[Sequence[Cell]] = field(default_factory=tuple)
    title: str = ""  # Line above the table; empty for none.
    note: str = ""  # Paragraph below the table; empty for none.
    label: str = ""  # What a table without a title is, for screen readers.
    left: int = 1  # Number of leading columns that are aligned left; the others contain numbers.


def terminal_table(table: Table, *, width: int | None = None, rule: bool = False) -> str:
    """Return the table as aligned columns, without its title and note.

    Args:
        table: Table; a header whose cells are all empty is omitted.
        width: Columns of the terminal. The last column wraps within them if it is aligned left;
            None never wraps.
        rule: Whether to draw a line of dashes below the header.
    """
    rows = [[inert(cell_text(cell)) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    if not any(rows[0]):
        rows = rows[1:]
    lines: list[str] = []
    for number, row in enumerate(rows):
        lines += _aligned(row, widths, table.left, width)
        if rule and number == 0:
            lines.append("-" * (sum(widths) + len(GAP) * (len(widths) - 1)))
    return "\n".join(lines)


def markdown_table(table: Table) -> str:
    """Return the table in Markdown, with its title above and its note below."""
    rule = [":---" if column < table.left else "---:" for column in range(len(table.header))]
    lines = [[markdown_cell(cell) for cell in table.header], rule]
    lines += [[markdown_cell(cell) for cell in row] for row in table.rows]
    body = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    title = f"{prose(table.title)}:" if table.title else ""
    return "\n\n".join(part for part in (title, body, prose(table.note)) if part)


def html_table(table: Table) -> Markup:
    """Return the table as an HTML element, with its title as the caption and without its note.

    Every cell is inert, except for `Markup`, which is inserted unchanged.
    """

    def row(cells: Sequence[Cell], *, is_header: bool = False) -> Markup:
        parts = []
        for column, cell in enumerate(cells):
            tag = "th" if is_header or column == 0 else "td"
            scope = f' scope="{"col" if is_header else "row"}"' if tag == "th" else ""
            css_class = "" if column < table.left else ' class="number"'
            parts.append(Markup(f"<{tag}{scope}{css_class}>{{}}</{tag}>").format(html_cell(cell)))
        return Markup("<tr>{}</tr>").format(Markup("").join(parts))

    caption = Markup("<caption>{}</caption>").format(one_line(table.title)) if table.title else ""
    header = row(table.header, is_header=True) if any(table.header) else ""
    return Markup("<table>{}\n<thead>{}</thead>\n<tbody>\n{}\n</tbody>\n</table>").format(
        caption, header, Markup("\n").join(map(row, table.rows))
    )


def html_tables(tables: Sequence[Table]) -> Markup:
    """Return tables as HTML elements for a notebook, each with its note as a paragraph below it."""
    parts = [
        part
        for table in tables
        for part in (html_table(table), Markup("<p>{}</p>").format(table.note))
    ]
    return Markup("\n").join(parts)


def isolated(text: str) -> Markup:
    """Return untrusted text as HTML, inert, escaped and isolated in its text direction."""
    line = one_line(text)
    return Markup("<bdi>{}</bdi>").format(line) if line else Markup('<i class="none">blank</i>')


def cell_text(cell: Cell) -> str:
    """Return a cell as text, which is not inert."""
    return cell if isinstance(cell, str) else cell.text


def markdown_cell(cell: Cell) -> str:
    """Return a cell in Markdown, in which a name or quote is inert."""
    if isinstance(cell, Name):
        return code(cell.text)
    return prose(cell.text) if isinstance(cell, Quote) else cell_text(cell)


def html_cell(cell: Cell) -> str:
    """Return a cell as HTML, in which a name or quote is inert; a plain string is not escaped."""
    if isinstance(cell, Name):  # of data, not a word of the report
        return isolated(cell.text).replace("<bdi>", Markup('<bdi translate="no">'), 1)
    if isinstance(cell, ValueWithDetail):
        return Markup("{}<br><small>{}</small>").format(cell.value, cell.detail)
    return cell if isinstance(cell, str) else isolated(cell.text)


def _aligned(row: Sequence[str], widths: Sequence[int], left: int, width: int | None) -> list[str]:
    cells = [
        cell + pad if column < left else pad + cell
        for column, (cell, pad) in enumerate(
            (cell, " " * (column_width - display_width(cell)))
            for cell, column_width in zip(row, widths, strict=True)
        )
    ]
    if width is None or left < len(row):
        return [GAP.join(cells).rstrip()]
    prefix = GAP.join([*cells[:-1], ""])
    wrapped = textwrap.wrap(row[-1], max(width - len(prefix), 20), drop_whitespace=False) or [""]
    return [
        (prefix + wrapped[0]).rstrip(),
        *(" " * len(prefix) + part.strip() for part in wrapped[1:]),
    ]
