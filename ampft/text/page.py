"""Reports as lists of blocks, and their output as terminal text, Markdown and one HTML page.

A report is a `Page`, or a sequence of blocks for a medium that shows less of it. A page is one
deterministic file without scripts or network access: every string of the data is escaped and
isolated, and its direction and control characters are shown as escapes, so that it cannot affect
the document. A content security policy forbids what a page does not need: scripts, external
resources and forms.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from markupsafe import Markup

from ampft.text.escaping import code, display_width, inert, one_line, prose
from ampft.text.numbers import counted
from ampft.text.terminal import GAP, PARAGRAPH_WIDTH, labelled


@dataclass(frozen=True, kw_only=True)
class Span:
    """Neighbouring words with a type."""

    name: str  # Type.
    first: int  # Index of the first word.
    end: int  # Index after the last word.
    # Whether the label has it too; of a span of the label, whether all predictions do.
    is_shared: bool


@dataclass(frozen=True, kw_only=True)
class Tagging:
    """The spans of a sentence in order, as its label or a prediction has them."""

    title: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class ShownPicture:
    """A small picture: its title, its media type, such as "image/png", and its file in base64."""

    title: str
    media_type: str
    content: str


@dataclass(frozen=True, kw_only=True)
class ShownSound:
    """A short sound."""

    media_type: str  # Media type, such as "audio/flac".
    content: str  # File in base64.
    peaks: tuple[int, ...]  # Largest amplitude of each of equal parts of the sound, 0 to 100.
    description: str  # Length and rate.


@dataclass(frozen=True, kw_only=True)
class ShownCase:
    """A case as a page shows it; JSON can hold it."""

    # Texts by title; the only one has no title in the page.
    texts: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()  # Words of a sentence.
    taggings: tuple[Tagging, ...] = ()  # Spans of these words.
    pictures: tuple[ShownPicture, ...] = ()  # Pictures, side by side.
    legend: Mapping[str, str] = field(default_factory=dict)  # Colour, such as "#ff8000", by class.
    sound: ShownSound | None = None  # Sound.
    reference: str = ""  # Where the case comes from, below everything else.

    def html(self) -> Markup:
        """Return the case as HTML, in which every string is inert."""
        return Markup("\n").join(self._parts())

    def _parts(self) -> Iterator[Markup]:
        for name, text in self.texts.items():
            title = _small(name) if len(self.texts) > 1 else ""
            yield Markup("<blockquote>{}{}</blockquote>").format(title, isolated(text))
        for tagging in self.taggings:
            yield Markup('<p class="tagged">{}{}</p>').format(
                _small(tagging.title), _marked(self.words, tagging.spans)
            )
        if self.pictures:
            shown = Markup("").join(map(_picture, self.pictures))
            yield Markup('<div class="pictures">{}</div>').format(shown)
        if self.legend:
            entries = Markup(" ").join(_entry(*item) for item in self.legend.items())
            yield Markup('<p class="facts">{}</p>').format(entries)
        if self.sound is not None:
            yield _sound(self.sound)
        if self.reference:
            yield Markup('<p class="facts">{}</p>').format(isolated(self.reference))


def _small(title: str) -> Markup:
    return Markup("<small>{}</small> ").format(isolated(title))


def _marked(words: tuple[str, ...], spans: tuple[Span, ...]) -> Markup:
    parts: list[Markup] = []
    place = 0
    for span in spans:
        parts += map(isolated, words[place : span.first])
        inside = Markup(" ").join(map(isolated, words[span.first : span.end]))
        kind = "shared" if span.is_shared else "unshared"
        parts.append(
            Markup('<mark class="{}">{} <small>{}</small></mark>').format(
                kind, inside, isolated(span.name)
            )
        )
        place = span.end
    parts += map(isolated, words[place:])
    return Markup(" ").join(parts)


def _picture(picture: ShownPicture) -> Markup:
    source = f"data:{picture.media_type};base64,{picture.content}"
    title = Markup("<small>{}</small>").format(isolated(picture.title)) if picture.title else ""
    return Markup('<span><img alt="" src="{}">{}</span>').format(source, title)


def _entry(name: str, color: str) -> Markup:
    return Markup(
        '<svg class="patch" viewBox="0 0 12 12" aria-hidden="true"><rect width="12" height="12" '
        'fill="{}"/></svg> {}'
    ).format(color, isolated(name))


def _sound(sound: ShownSound) -> Markup:
    bars = " ".join(
        f"M{place} {-max(peak, 1)}V{max(peak, 1)}" for place, peak in enumerate(sound.peaks)
    )
    source = f"data:{sound.media_type};base64,{sound.content}"
    return Markup(
        '<svg class="wave" viewBox="-1 -100 {} 200" preserveAspectRatio="none" aria-hidden="true">'
        '<path d="{}"/></svg>\n<audio controls preload="metadata" src="{}"></audio>'
        '<p class="facts">{}</p>'
    ).format(len(sound.peaks) + 1, bars, source, isolated(sound.description))


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
            tag, scope = "td", ""
            if is_header:
                tag, scope = "th", ' scope="col"'
            elif column == 0:
                tag, scope = "th", ' scope="row"'
            css_class = "" if column < table.left else ' class="number"'
            parts.append(Markup(f"<{tag}{scope}{css_class}>{{}}</{tag}>").format(cell_markup(cell)))
        return Markup("<tr>{}</tr>").format(Markup("").join(parts))

    caption = Markup("<caption>{}</caption>").format(one_line(table.title)) if table.title else ""
    header = row(table.header, is_header=True) if any(table.header) else ""
    return Markup("<table>{}\n<thead>{}</thead>\n<tbody>\n{}\n</tbody>\n</table>").format(
        caption, header, Markup("\n").join(map(row, table.rows))
    )


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


def cell_markup(cell: Cell) -> str:
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


NO_BREAK = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=%|points?\b)")
MAX_ROWS = 30  # of a table of a page; further rows are folded

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
        return Markup("").join(map(_part_markup, text))
    if isinstance(text, str) and not isinstance(text, Markup):
        return isolated(_UNIT.sub(NO_BREAK, text))
    return Markup(cell_markup(text))


def _part_markup(part: Cell) -> Markup | str:
    if isinstance(part, str) and not isinstance(part, Markup):
        return Markup.escape(_UNIT.sub(NO_BREAK, part))
    return part if isinstance(part, Markup) else cell_markup(part)


def notebook_html(blocks: Sequence[Block]) -> Markup:
    """Return blocks as HTML elements for a notebook, which has no style sheet of a page."""
    parts: list[Markup] = []
    for block in blocks:
        match block:
            case Table():
                parts += [html_table(block), Markup("<p>{}</p>").format(block.note)]
            case Paragraph():
                parts.append(Markup("<p>{}</p>").format(html_text(block.text)))
            case Notices():
                notice = Markup("<p>{}: {}</p>")
                parts += [notice.format(block.label, isolated(text)) for text in block.texts]
            case _:
                raise NotImplementedError(type(block).__name__)
    return Markup("\n").join(parts)


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
        if start != line and display_width(start + word) > PARAGRAPH_WIDTH:
            lines.append(line)
            start = margin
        line = start
        for character in word:
            if display_width(line + character) > PARAGRAPH_WIDTH:
                lines.append(line)
                line = margin
            line += character
    return "\n".join([*lines, line])
