"""Reports as lists of blocks, and their output as terminal text, Markdown and one HTML page.

A report is a `Page`, or a sequence of blocks for a medium that shows less of it. A page is one
deterministic file without scripts or network access: every string of the data is escaped and
isolated, and its direction and control characters are shown as escapes, so that it cannot affect
the document. A content security policy forbids what a page does not need: scripts, external
resources and forms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from markupsafe import Markup

from ampft.text.escaping import display_width, inert, one_line, prose
from ampft.text.numbers import counted
from ampft.text.shown_case import ShownCase
from ampft.text.tables import (
    Cell,
    Table,
    cell_text,
    html_cell,
    html_table,
    isolated,
    markdown_cell,
    markdown_table,
    terminal_table,
)
from ampft.text.terminal import labelled

NO_BREAK = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=%|points?\b)")
MAX_ROWS = 30  # of a table of a page; further rows are folded
WIDTH = 96  # columns of a paragraph in a terminal; fits into a window of 100

Text: TypeAlias = Cell | tuple[Cell, ...]
"""A text, or its parts; names and quotes are of the data, and are isolated from the rest."""


@dataclass(frozen=True)
class Paragraph:
    """One or more sentences."""

    text: Text
    role: str = ""  # CSS class on a page: "answer", "condition", "facts" or "kicker".
    label: str = ""  # Word in front of it in a terminal; empty for none.


@dataclass(frozen=True)
class Items:
    """A list."""

    texts: Sequence[Text]


@dataclass(frozen=True)
class Facts:
    """Names and values: a line each, and on a page a table."""

    rows: Sequence[tuple[str, Cell]]
    label: str  # What they are, for screen readers.

    def table(self) -> Table:
        """Return them as a table without a header."""
        return Table(header=("", ""), rows=self.rows, label=self.label, left=2)


@dataclass(frozen=True)
class Notices:
    """What a reader must know first."""

    heading: str
    texts: Sequence[str]
    label: str = "note"  # Word in front of each in a terminal and in Markdown.


@dataclass(frozen=True)
class Subheading:
    """A heading within a section."""

    text: Text
    tag: str = ""  # Remark beside it.
    level: int = 3  # 2 outside of sections.


@dataclass(frozen=True)
class Figure:
    """A drawing, which only pages show; its text alternative is in its markup."""

    drawing: Markup
    caption: Text = ""
    heading: str = ""
    is_wide: bool = False


@dataclass(frozen=True)
class Details:
    """Blocks that are folded until a reader opens them."""

    summary: Text
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Card:
    """A box."""

    title: Text
    blocks: Sequence[Block]
    kind: str = "none"  # "good", "bad", "open" or "none": the colour of its edge and its chip.
    chip: str = ""  # A word at the right of the title.
    tag: str = ""  # A remark beside the title.
    is_data: bool = False  # Whether all of its words are from data, and must not be translated.


@dataclass(frozen=True)
class Cards:
    """Boxes side by side, which only pages show."""

    cards: Sequence[Card]
    role: str = "cards"  # CSS class: "cards" for results, "cases" for examples.


@dataclass(frozen=True)
class Section:
    """A section with a heading, to which the contents of a page link."""

    name: str  # Identifier, such as "classes".
    heading: str
    blocks: Sequence[Block]
    tag: str = ""  # Remark beside the heading, such as "exploratory".
    is_folded: bool = False  # Whether a page shows only the heading until a reader opens it.


Block: TypeAlias = (
    Paragraph | Items | Facts | Notices | Subheading | Figure | Details | Cards | Table | ShownCase
)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A report as a page."""

    kind: str  # What it is: a word in lower case, its CSS class.
    title: str  # Title of the document.
    kicker: Text  # Line above the headline.
    headline: Text
    lead: Sequence[Block] = ()  # Paragraphs below the headline.
    cards: Cards | None = None  # Results side by side, below the lead.
    reading: Sequence[Block] = ()  # How to read the page, beside the lead.
    notices: Sequence[Block] = ()  # Below all of these.
    sections: Sequence[Section] = ()
    has_media: bool = False  # Whether it embeds pictures or sounds.


def html_page(page: Page) -> str:
    """Return a page as one HTML document."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters = (counted, html_table, one_line, table_slice)
    environment.filters |= {each.__name__: each for each in filters}
    environment.filters |= {"html": html_text, "kind": lambda block: type(block).__name__}
    environment.globals["max_rows"] = MAX_ROWS
    return environment.get_template("page.html.j2").render(page=page)


def html_text(text: Text) -> Markup:
    """Return a text as HTML, in which no line breaks between a number and its unit."""
    if isinstance(text, tuple):
        return Markup("").join(
            part if isinstance(part, Markup)
            else Markup.escape(_UNIT.sub(NO_BREAK, part)) if isinstance(part, str)
            else html_cell(part)
            for part in text
        )  # fmt: skip
    if isinstance(text, str) and not isinstance(text, Markup):
        return isolated(_UNIT.sub(NO_BREAK, text))
    return Markup(html_cell(text))


def table_slice(table: Table, start: int, stop: int | None = None) -> Table:
    """Return a table with only the rows from `start` to `stop`."""
    return replace(table, rows=table.rows[start:stop])


def markdown(blocks: Sequence[Block | Section]) -> str:
    """Return blocks as Markdown without a trailing newline; sections are in `<details>`."""
    return "\n\n".join(filter(None, map(_in_markdown, blocks)))


def _in_markdown(block: Block | Section) -> str:
    match block:
        case Paragraph():
            return _markdown_text(block.text)
        case Items():
            return "\n".join(f"- {_markdown_text(each)}" for each in block.texts)
        case Facts():
            return "\n".join(f"- {name}: {prose(cell_text(value))}" for name, value in block.rows)
        case Notices():
            label = block.label.capitalize()
            return "\\\n".join(f"> **{label}:** {prose(text)}" for text in block.texts)
        case Subheading():
            return f"{_markdown_text(block.text)}:"
        case Table():
            return markdown_table(block)
        case Details():
            return _markdown_details(_markdown_text(block.summary), block.blocks)
        case Section():
            tag = f" ({block.tag})" if block.tag else ""
            return _markdown_details(block.heading + tag, block.blocks)
        case _:
            return ""


def _markdown_text(text: Text) -> str:
    parts = text if isinstance(text, tuple) else (text,)
    return "".join(prose(p) if isinstance(p, str) else markdown_cell(p) for p in parts)


def _markdown_details(summary: str, blocks: Sequence[Block]) -> str:
    body = markdown(blocks)
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>" if body else ""


def terminal(blocks: Sequence[Block]) -> str:
    """Return blocks as text for a terminal, which wraps; hostile characters are escaped.

    Labelled lines that follow each other are not separated. Only a table of many columns, or with a
    long name, exceeds the width.
    """
    text = ""
    was_labelled = False
    for block in blocks:
        shown, is_labelled = _in_terminal(block)
        if shown:
            gap = "\n" if is_labelled and was_labelled else "\n\n"
            text += f"{gap}{shown}" if text else shown
            was_labelled = is_labelled
    return text


def _in_terminal(block: Block) -> tuple[str, bool]:
    """Return a block as text, and whether it consists of labelled lines."""
    match block:
        case Paragraph():
            text = _plain(block.text)
            if block.label:
                return labelled(block.label, inert(text)), True
            return wrapped(text), False
        case Items():
            return "\n".join(wrapped(_plain(each), "- ") for each in block.texts), False
        case Facts():
            rows = (labelled(name, inert(cell_text(value))) for name, value in block.rows)
            return "\n".join(rows), True
        case Notices(label="!"):
            return "\n".join(wrapped(text, "! ") for text in block.texts), False
        case Notices():
            return "\n".join(labelled(block.label, inert(each)) for each in block.texts), True
        case Table():
            parts = (inert(block.title), terminal_table(block), wrapped(block.note))
            return "\n\n".join(filter(None, parts)), False
        case Subheading():
            return wrapped(_plain(block.text)), False
        case _:
            return "", False


def _plain(text: Text) -> str:
    return "".join(map(cell_text, text)) if isinstance(text, tuple) else cell_text(text)


def wrapped(text: str, mark: str = "") -> str:
    """Wrap at spaces by display columns, breaking words that are wider than a line."""
    lines, line = [], mark
    margin = " " * len(mark)
    for word in inert(text).split():
        start = line if line.strip() in ("", mark.strip()) else f"{line} "
        if start != line and display_width(start + word) > WIDTH:
            lines.append(line)
            start = margin
        line = start
        for character in word:
            if display_width(line + character) > WIDTH:
                lines.append(line)
                line = margin
            line += character
    return "\n".join([*lines, line])
