"""Which columns hold words and tags, or texts and spans: the named or those with usual names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from ampft.data.columns import INPUT_FLAGS, LABEL_FLAG, DataColumns, extra_columns, require_columns
from ampft.data.request import DataRequest
from ampft.data.row_labels import LabelParser
from ampft.data.sources.source_table import SAMPLE_ROWS, SourceTable
from ampft.data.sources.spans import is_span
from ampft.data.sources.text_lists import list_or_cell
from ampft.errors import InputError, listed, quoted_list
from ampft.text.units import TextUnits

WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = (
    *("ner_tags", "tags", "labels", "label", "upos", "pos_tags", "chunk_tags"),
    *("ner", "pos"),  # as tasks of run_ner are called
)
TEXT_COLUMNS = ("text", "sentence", "content", "data")
SPAN_COLUMNS = ("spans", "entities")
LABELS_OR_SPANS = ("label", "labels")
# The input column of prepared words with tags: words as the data have them, or words of a text.
WORDS, TEXT = "tokens", "text"


def token_columns(
    words: str,
    tags: str,
    *,
    are_spans: bool,
    extra: Mapping[str, str] | None = None,
    units: TextUnits | None = None,
) -> DataColumns:
    """Return the columns of words with tags, or of texts with spans."""
    labels = LabelParser((tags,), several=True, per_unit=True)
    return DataColumns((words,), labels, "token", extra or {}, are_spans, units or TextUnits())


def are_token_columns(table: SourceTable) -> bool:
    """Return whether columns show that they hold words with tags, or a text with spans.

    A text with spans that also has a label can be meant as either, unless the label is the spans.
    """

    def has(names: Sequence[str]) -> bool:
        return any(name in table.columns for name in names)

    if has(WORD_COLUMNS) and not has(TEXT_COLUMNS):
        return has(TAG_COLUMNS)
    if not has(TEXT_COLUMNS) or not has(LABELS_OR_SPANS):
        return has(TEXT_COLUMNS) and has(SPAN_COLUMNS)
    return not {*LABELS_OR_SPANS}.isdisjoint(span_columns(table))


def has_lists_of_words(table: SourceTable, request: DataRequest) -> bool:
    """Return whether the first row has a list of words and one of tags, which may be texts.

    They are in the columns that the user named, or in those with usual names.
    """
    kinds = (request.text_columns or WORD_COLUMNS, request.label_columns or TAG_COLUMNS)
    names = [next((n for n in of if n in table.columns), None) for of in kinds]
    if None in names:
        return False
    row = next(table.read([name for name in names if name]), (0, ()))[1]
    return bool(row) and all(isinstance(list_or_cell(cell), list) for cell in row)


def span_columns(table: SourceTable, named: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the columns of spans by their names, and those whose cells are spans.

    Args:
        named: Columns that may hold labels or spans, besides those called label or labels.
    """
    usual = [name for name in SPAN_COLUMNS if name in table.columns]
    found: dict[str, bool] = {}
    names = [n for n in dict.fromkeys((*LABELS_OR_SPANS, *named)) if n in table.columns]
    for _, row in islice(table.read(names), SAMPLE_ROWS) if names else ():
        for name, cell in zip(names, row, strict=True):
            spans = list_or_cell(cell)
            if isinstance(spans, list) and spans:
                found.setdefault(name, is_span(spans[0]))
    return (*usual, *(name for name in names if found.get(name)))


def _are_tags(table: SourceTable, column: str) -> bool:
    """Return whether the first cell with a value names tags: a text, or a list of tags."""
    cells = (list_or_cell(cell) for _, (cell,) in islice(table.read((column,)), SAMPLE_ROWS))
    first = next(filter(None, cells), None)
    return isinstance(first[0] if isinstance(first, list | tuple) else first, str | int)


def choose_token_columns(
    table: SourceTable, request: DataRequest, *, origin: str
) -> tuple[DataColumns, str]:
    """Return the requested columns, or columns with usual names, and a note on them.

    Args:
        request: The user's choices.
        origin: The file or data set, for the messages.

    Raises:
        InputError: A column is missing.
    """
    named_words, named_tags = request.text_columns, request.label_columns
    available, of_spans = table.columns, span_columns(table, named_tags or ())
    flag = INPUT_FLAGS["token"]
    if named_words is not None and len(named_words) > 1:
        raise InputError(
            f"{flag}: received {listed(named_words, separator=',')}, but words with tags"
            " are in one column. Pass one."
        )
    require_columns(named_words or (), available, flag, origin=origin)
    require_columns(named_tags or (), available, LABEL_FLAG, origin=origin)
    candidates = named_words or [n for n in (*WORD_COLUMNS, *TEXT_COLUMNS) if n in available]
    if of_spans and not named_words and not {*TAG_COLUMNS} - {*of_spans} & {*available}:
        candidates = [n for n in candidates if n in TEXT_COLUMNS] or candidates  # Prodigy has both
    words = candidates[0] if candidates else None
    usual = (*of_spans, *TAG_COLUMNS) if words in TEXT_COLUMNS else (*TAG_COLUMNS, *of_spans)
    found = named_tags or [name for name in usual if name in available]
    if words is None or not found:
        missing = f"{flag}: {origin} has no column of words"
        if words is not None:
            missing = f"{LABEL_FLAG}: {origin} has no column of tags"
        raise InputError(
            f"{missing} with a usual name. Its columns: {quoted_list(available)}. Tokens"
            " need a column of words (such as tokens) and one of tags (such as ner_tags), or a text"
            f" and spans (a list of start, end and label). Pass them with {flag} and {LABEL_FLAG}."
            " A file with a word and its tag per line needs the ending .conll."
        )
    tags = found[0]
    are_spans = tags in of_spans or (words in TEXT_COLUMNS and not _are_tags(table, tags))
    kinds = ("texts", "spans") if are_spans else ("words", "tags")
    how = "as --task says" if request.labels_tokens else "found from the columns"
    note = f"Task tokens, {how}: {kinds[0]} from {words!r}, {kinds[1]} from {tags!r}."
    extra = extra_columns(request)
    return token_columns(words, tags, are_spans=are_spans, extra=extra), note
