"""Tables, and their output as terminal text, Markdown and HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ampft.text.escaping import display_width, inert
from ampft.text.markdown import code, prose

GAP = "  "


@dataclass(frozen=True)
class Name:
    """A name from data or from a file, such as a class, a mode or a folder."""

    text: str


@dataclass(frozen=True)
class Quote:
    """A sentence from data or from a file."""

    text: str


Cell: TypeAlias = str | Name | Quote
"""A plain string is ampft's own text; the writers make a `Name` or `Quote` inert."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under a header.

    Attributes:
        header: Name of each column.
        rows: Cells, one per column in each row.
        title: Line above the table; empty for none.
        note: Paragraph below the table; empty for none.
        left: Number of leading columns that are aligned left; the others contain numbers.
    """

    header: Sequence[Cell]
    rows: Sequence[Sequence[Cell]] = field(default_factory=tuple)
    title: str = ""
    note: str = ""
    left: int = 1


def terminal_table(table: Table, *, width: int | None = None, rule: bool = False) -> str:
    """Return the table as aligned columns, without its title and note.

    Args:
        table: Table; a header whose cells are all empty is omitted.
        width: Columns of the terminal. The last column wraps within them if it is aligned left;
            None never wraps.
        rule: Whether to draw a line of dashes below the header.
    """
    rows = [[inert(_plain(cell)) for cell in row] for row in (table.header, *table.rows)]
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
    lines = [[_in_markdown(cell) for cell in table.header], rule]
    lines += [[_in_markdown(cell) for cell in row] for row in table.rows]
    body = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return "\n\n".join(part for part in (table.title, body, table.note) if part)


def html_table(table: Table, *, class_: str = "") -> str:
    """Return the table as an HTML element in which every cell is inert.

    Args:
        table: Table, whose title becomes the caption and whose note a paragraph after the table.
        class_: CSS class of the element.
    """
    from markupsafe import Markup, escape

    def row(cells: Sequence[Cell], tag: str) -> str:
        parts = []
        for column, cell in enumerate(cells):
            name = "th" if tag == "th" or column == 0 else "td"
            scope = f' scope="{"col" if tag == "th" else "row"}"' if name == "th" else ""
            css_class = "" if column < table.left else ' class="number"'
            parts.append(f"<{name}{scope}{css_class}>{_in_html(cell)}</{name}>")
        return f"<tr>{''.join(parts)}</tr>"

    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    body = "\n".join(row(cells, "td") for cells in table.rows)
    attribute = f' class="{escape(class_)}"' if class_ else ""
    note = f"\n<p>{escape(table.note)}</p>" if table.note else ""
    return Markup(
        f"<table{attribute}>{caption}\n<thead>{row(table.header, 'th')}</thead>\n"
        f"<tbody>\n{body}\n</tbody>\n</table>{note}"
    )


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def _in_markdown(cell: Cell) -> str:
    if isinstance(cell, Name):
        return code(cell.text)
    return prose(cell.text) if isinstance(cell, Quote) else cell


def _in_html(cell: Cell) -> str:
    from markupsafe import escape

    if isinstance(cell, str):
        return str(escape(cell))
    return f"<bdi>{escape(inert(cell.text))}</bdi>"


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
