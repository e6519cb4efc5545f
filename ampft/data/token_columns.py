"""Which columns hold words with tags: the named ones, or those with usual names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ampft.data.columns import GROUP_FLAG, ID_FLAG, LABEL_FLAG, require
from ampft.data.groups import GROUP_COLUMN, ID_COLUMN
from ampft.data.request import DataRequest
from ampft.errors import InputError, listed, quoted_list

WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("ner_tags", "tags", "labels", "label", "upos", "pos_tags")
TEXT_COLUMNS = ("text", "sentence", "content")
SPAN_COLUMNS = ("spans", "entities")
WORDS_FLAG = "--text_column_names"
# The input column of the prepared data: words as the data have them, or words of a text.
WORDS, TEXT = "tokens", "text"


@dataclass(frozen=True)
class TokenColumns:
    """The columns to read.

    Attributes:
        words: Column of lists of words, or of texts.
        tags: Column of lists of tags, or of spans.
        are_spans: Whether there are texts with spans.
        extra: Named columns that are neither, by their name in a split.
    """

    words: str
    tags: str
    are_spans: bool
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def input(self) -> str:
        """Input column of the prepared data."""
        return TEXT if self.are_spans else WORDS

    @property
    def names(self) -> tuple[str, ...]:
        """All columns to read."""
        return (self.words, self.tags, *self.extra.values())

    def require_in(self, available: Sequence[str], *, origin: str) -> None:
        """Raise InputError when a file or split lacks a column.

        Args:
            available: Its columns.
            origin: The file or the split, for the message.
        """
        flags = {GROUP_COLUMN: GROUP_FLAG, ID_COLUMN: ID_FLAG}
        for column, flag in (
            (self.words, WORDS_FLAG),
            (self.tags, LABEL_FLAG),
            *((column, flags[name]) for name, column in self.extra.items()),
        ):
            require((column,), available, flag, origin=origin)


def hold_tokens(columns: Sequence[str]) -> bool:
    """Return whether columns show that they hold words with tags, or a text with spans.

    A text with spans that also has a label can be meant as either.
    """

    def has(names: Sequence[str]) -> bool:
        return any(name in columns for name in names)

    if has(WORD_COLUMNS) and not has(TEXT_COLUMNS):
        return has(TAG_COLUMNS)
    return has(TEXT_COLUMNS) and has(SPAN_COLUMNS) and not {"label", "labels"} & set(columns)


def choose_token_columns(
    available: Sequence[str], request: DataRequest, *, origin: str
) -> tuple[TokenColumns, str]:
    """Return the requested columns, or columns with usual names, and a note on them.

    Args:
        available: All columns.
        request: The user's choices.
        origin: The file or data set, for the messages.

    Raises:
        InputError: A column is missing.
    """
    named_words, named_tags = request.text_column_names, request.label_column_names
    if named_words is not None and len(named_words) > 1:
        raise InputError(
            f"{WORDS_FLAG}: received {listed(named_words, separator=',')}, but words with tags"
            " are in one column. Pass one."
        )
    for named, flag in ((named_words, WORDS_FLAG), (named_tags, LABEL_FLAG)):
        require(named or (), available, flag, origin=origin)
    words = named_words[0] if named_words else _first((*WORD_COLUMNS, *TEXT_COLUMNS), available)
    usual = SPAN_COLUMNS if words in TEXT_COLUMNS else (*TAG_COLUMNS, *SPAN_COLUMNS)
    tags = named_tags[0] if named_tags else _first(usual, available)
    if words is None or tags is None:
        missing = f"{WORDS_FLAG}: {origin} has no column of words"
        if words is not None:
            missing = f"{LABEL_FLAG}: {origin} has no column of tags"
        raise InputError(
            f"{missing} with a usual name. Its columns: {quoted_list(available)}. Tokens"
            " need a column of words (such as tokens) and one of tags (such as ner_tags), or a text"
            f" and spans (a list of start, end and label). Name them with {WORDS_FLAG} and"
            f" {LABEL_FLAG}."
        )
    are_spans = tags in SPAN_COLUMNS or words in TEXT_COLUMNS
    kinds = ("texts", "spans") if are_spans else ("words", "tags")
    how = "as --task says" if request.labels_tokens else "found from the columns"
    note = f"Task tokens, {how}: {kinds[0]} from {words!r}, {kinds[1]} from {tags!r}."
    extra = {GROUP_COLUMN: request.group_column, ID_COLUMN: request.id_column}
    named_extra = {name: column for name, column in extra.items() if column is not None}
    return TokenColumns(words, tags, are_spans, named_extra), note


def _first(names: Sequence[str], available: Sequence[str]) -> str | None:
    return next((name for name in names if name in available), None)
