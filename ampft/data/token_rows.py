"""Words with tags: sentences of CoNLL files, lists of words and tags, and character spans.

Tags of every scheme become BIO, and character spans become tags of words. Plain tags, such as parts
of speech, are kept.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, Features

from ampft.data.checks import sort_names
from ampft.data.columns import LABEL_FLAG, DataColumns
from ampft.data.dataset import TOKEN, batches
from ampft.data.label_parser import LabelParser
from ampft.data.request import DataRequest, refuse_unused_options
from ampft.data.row_collector import POSITION, LabelledRows, concatenated, location
from ampft.data.row_labels import RowLabels
from ampft.data.sources import conll
from ampft.data.sources.files import FLAGS, open_table, write_arrow
from ampft.data.sources.hub import frame_index, label_names, standard_splits
from ampft.data.sources.table import Row, as_text, refuse_surrogates
from ampft.data.tags import (
    BIO,
    IOB1,
    IOBES,
    OUTSIDE,
    PLAIN,
    Tag,
    TagError,
    as_bio,
    bio_tags,
    find_scheme,
)
from ampft.data.token_columns import TokenColumns, choose_token_columns, hold_tokens
from ampft.data.words import Span, split_words, tag_words
from ampft.errors import InputError, quoted
from ampft.text.numbers import counted

Loaded = tuple[dict[str, LabelledRows], DataColumns, list[str]]

NESTING_SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet")  # whose cells can be lists
SCHEME_NOTES = {
    BIO: "The tags follow BIO",
    IOB1: "The tags follow IOB1 (I- begins entities) and are converted to BIO",
    IOBES: "The tags follow IOBES or BILOU and are converted to BIO",
    PLAIN: "The tags have no prefixes (B- and I-), so each word is scored by itself",
}
SPAN_LABELS = ("label", "type", "entity", "entity_group", "entity_type", "tag")


@dataclass(frozen=True)
class TokenSource:
    """The rows of one file, or of one split of a data set.

    Attributes:
        origin: The file, or the data set and its split.
        unit: What row numbers count, `line`, `row` or `POSITION`.
        rows: Iterator over (number, values of `TokenColumns.names`).
        declared: Names of the tags if cells hold indices.
        has_line_per_word: Whether each word has its own line, as in CoNLL files.
        index: Labels of all rows of a data frame, by position; empty if it has none.
    """

    origin: str
    unit: str
    rows: Iterator[Row]
    declared: tuple[str, ...] | None = None
    has_line_per_word: bool = False
    index: Sequence[str] = ()

    def place(self, *numbers: int) -> str:
        """Return where the rows with these numbers are, for a message."""
        return location(self.origin, self.unit, numbers, self.index)


@dataclass(frozen=True)
class TaggedRows:
    """Sentences as they were read, with tags in any scheme.

    Attributes:
        source: Where they were read; its rows are used up.
        inputs: Words and extra columns.
        codes: Index of the tag of each word, sentence after sentence.
        counts: Number of words of each sentence.
        numbers: Line or row of each sentence.
        names: The tags, in the order of their indices.
        ignored: Tags whose sentences were left out.
        notes: Sentences for the user.
    """

    source: TokenSource
    inputs: Dataset
    codes: array[int]
    counts: array[int]
    numbers: array[int]
    names: tuple[str, ...]
    ignored: frozenset[str]
    notes: tuple[str, ...]

    def sentences(self) -> Iterator[list[str]]:
        """Yield the tags of each sentence."""
        start = 0
        for count in self.counts:
            yield [self.names[code] for code in self.codes[start : start + count]]
            start += count

    def place(self, sentence: int, word: int) -> str:
        """Return the place of a word for a message; a word of a CoNLL file has its own line."""
        number = self.numbers[sentence]
        if self.source.has_line_per_word:
            return self.source.place(number + word)
        return f"{self.source.place(number)}, word {word + 1}"


def load_token_files(request: DataRequest) -> Loaded | None:
    """Read the files of a request if they hold words with tags; otherwise return None.

    Raises:
        InputError: A file or a row cannot be read, or its tags are wrong; the message names it.
    """
    if request.train_file is None or not _are_token_files(request):
        return None
    tables = {
        split: [
            open_table(
                path,
                flag=FLAGS[split],
                encoding=request.encoding,
                sheet=request.sheet_name,
                other_reader=conll.read_other,
            )
            for path in paths
        ]
        for split, paths in request.paths().items()
    }
    train = tables["train"][0]
    columns, note = choose_token_columns(train.columns, request, origin=train.origin)
    for table in chain.from_iterable(tables.values()):
        columns.require_in(table.columns, origin=table.origin)
    sources = {
        split: [
            TokenSource(
                table.origin,
                table.unit,
                table.read(columns.names),
                declared_in_file(Path(table.origin), columns.tags),
                Path(table.origin).suffix.lower() not in NESTING_SUFFIXES,
            )
            for table in parts
        ]
        for split, parts in tables.items()
    }
    notes = chain.from_iterable(table.notes for table in chain.from_iterable(tables.values()))
    return _read_sources(sources, columns, request, [note, *notes])


def _are_token_files(request: DataRequest) -> bool:
    """Return whether the files hold words with tags: as the task says, or as the first shows."""
    if request.labels_tokens is not None:
        return request.labels_tokens
    first = request.paths()["train"][0]
    suffix = first.suffix.lower()
    if suffix in conll.SUFFIXES:
        return True
    if suffix not in NESTING_SUFFIXES or request.label_column_names or request.several_labels:
        return False
    table = open_table(first, flag=FLAGS["train"], encoding=request.encoding)
    return hold_tokens(table.columns)


def are_token_splits(data: DatasetDict, request: DataRequest) -> bool:
    """Return whether a data set holds words with tags: as the task says, or as columns show."""
    if request.labels_tokens is not None:
        return request.labels_tokens
    return hold_tokens(next(iter(data.values())).column_names)


def load_token_splits(data: DatasetDict, request: DataRequest) -> Loaded:
    """Read the splits of a data set that holds words with tags.

    Raises:
        InputError: Its columns or rows cannot be used.
    """
    name = str(request.dataset_name)
    splits, notes = standard_splits(data, name)
    columns, note = choose_token_columns(splits["train"].column_names, request, origin=name)
    sources = {}
    for split, part in splits.items():
        origin = f"{name}, split {split}"
        columns.require_in(part.column_names, origin=origin)
        declared = label_names(part.features[columns.tags])
        sources[split] = [
            TokenSource(
                origin,
                POSITION,
                _numbered(part, columns.names),
                declared,
                index=frame_index(part),
            )
        ]
    return _read_sources(sources, columns, request, [*notes, note])


def _numbered(part: Dataset, names: Sequence[str]) -> Iterator[Row]:
    columns = part.select_columns(list(dict.fromkeys(names)))
    rows = (zip(*(batch[name] for name in names), strict=True) for batch in batches(columns))
    yield from enumerate(chain.from_iterable(rows))


def declared_in_file(path: Path, column: str) -> tuple[str, ...] | None:
    """Return the names of tags that a Parquet file of `datasets` stores as indices."""
    if path.suffix.lower() != ".parquet":
        return None
    schema = pq.read_schema(path.absolute())
    if b"huggingface" not in (schema.metadata or {}):
        return None
    return label_names(Features.from_arrow_schema(schema).get(column))


def _read_sources(
    sources: Mapping[str, Sequence[TokenSource]],
    columns: TokenColumns,
    request: DataRequest,
    notes: Sequence[str],
) -> Loaded:
    """Read all rows, and convert their tags to BIO by the scheme of the training rows."""
    refuse_unused_options(request, ("drop_missing_labels",), "words with tags")
    read = {
        split: [_read_source(source, columns, request) for source in parts]
        for split, parts in sources.items()
    }
    train = read["train"]
    scheme = find_scheme(tags for part in train for tags in part.sentences())
    rows = {
        split: _joined(
            [_labelled(part, scheme) for part in parts], str(request.files.get(split, split))
        )
        for split, parts in read.items()
    }
    names = rows["train"].names
    if names in ((), (OUTSIDE,)):
        raise InputError(
            f"{rows['train'].origin}: no word has a tag other than {OUTSIDE}. Check {LABEL_FLAG}."
        )
    words = sum(len(part.codes) for part in train)
    all_notes = [*notes, f"{SCHEME_NOTES[scheme]}; {words:,} training words."]
    parser = LabelParser((columns.tags,), several=True)
    group, identifier = request.group_column, request.id_column
    data_columns = DataColumns((columns.input,), parser, kind=TOKEN, group=group, id=identifier)
    return rows, data_columns, all_notes


def _read_source(source: TokenSource, columns: TokenColumns, request: DataRequest) -> TaggedRows:
    """Check the rows of one source, and write the usable ones to an Arrow file."""
    index: dict[str, int] = {}
    codes, counts, numbers, empty = array("q"), array("q"), array("q"), array("q")
    left_out: Counter[str] = Counter()
    extended = 0

    def usable() -> Iterator[Sequence[Any]]:
        nonlocal extended
        for number, (words_cell, tags_cell, *others) in source.rows:
            place = source.place(number)
            words, tags, more = read_cells(words_cell, tags_cell, columns, source, place)
            extended += more
            if ignored := set(tags).intersection(request.ignore_labels):
                left_out[min(ignored)] += 1
                continue
            if not words:
                empty.append(number)
                continue
            codes.extend(index.setdefault(tag, len(index)) for tag in tags)
            counts.append(len(tags))
            numbers.append(number)
            extra = zip(columns.extra.values(), others, strict=True)
            yield words, *(as_text(value, place, name) for name, value in extra)

    written = write_arrow(usable(), (columns.input, *columns.extra), lists=(columns.input,))
    if empty and not request.drop_missing_text:
        raise InputError(
            f"{source.place(*empty)}: no word in column"
            f" {quoted(columns.words)}. Remove such rows, or pass --drop_missing_text to leave them"
            " out."
        )
    notes = [
        f"{source.origin}: {counted(n, 'row')} with the tag {quoted(t)} left out (--ignore_label)."
        for t, n in sorted(left_out.items())
    ]
    if empty:
        notes.append(f"{source.origin}: {counted(len(empty), 'row')} without words left out.")
    if extended:
        notes.append(f"{source.origin}: {counted(extended, 'span')} extended to whole words.")
    return TaggedRows(
        source, written, codes, counts, numbers, tuple(index), frozenset(left_out), tuple(notes)
    )


def read_cells(
    words: Any, tags: Any, columns: TokenColumns, source: TokenSource, place: str
) -> tuple[list[str], list[str], int]:
    """Return the words of a row, their tags, and how many spans were extended to whole words.

    Args:
        words: Cell of the words, or the text.
        tags: Cell of the tags, or the spans.
        columns: Their columns.
        source: Where they were read.
        place: File and line, for the messages.

    Raises:
        InputError: A cell has another type, or words and tags do not fit.
    """
    if columns.are_spans:
        return _words_of_text(words, tags, columns, place)
    return (*_words_of_lists(words, tags, columns, source, place), 0)


def _words_of_lists(
    words: Any, tags: Any, columns: TokenColumns, source: TokenSource, place: str
) -> tuple[list[str], list[str]]:
    """Return the words of a row and their tags, as many of both."""
    for cell, column in ((words, columns.words), (tags, columns.tags)):
        if not isinstance(cell, list | tuple):
            raise InputError(
                f"{place}: column {quoted(column)} must hold a list, one entry per word, but holds"
                f" {quoted(cell)}."
            )
    if len(words) != len(tags):
        raise InputError(
            f"{place}: {counted(len(words), 'word')} but {counted(len(tags), 'tag')}. Every word "
            "needs one tag."
        )
    for number, word in enumerate(words, start=1):
        if as_text(word, place, columns.words) is None:
            raise InputError(f"{place}: word {number} is empty. Remove it and its tag.")
    names = [_tag_name(tag, columns.tags, source.declared, place) for tag in tags]
    return [str(word) for word in words], names


def _tag_name(tag: Any, column: str, declared: tuple[str, ...] | None, place: str) -> str:
    is_index = isinstance(tag, int) and not isinstance(tag, bool)
    if is_index and declared is not None and 0 <= tag < len(declared):
        return declared[tag]
    if isinstance(tag, str) and tag.strip():
        refuse_surrogates(tag, place)
        return tag.strip()
    hint = " Write the names of the tags." if is_index else ""
    raise InputError(
        f"{place}: column {quoted(column)} holds {quoted(tag)}, which names no tag.{hint}"
    )


def _words_of_text(
    text: Any, spans: Any, columns: TokenColumns, place: str
) -> tuple[list[str], list[str], int]:
    """Return the words of a text, their tags, and how many spans were extended to whole words."""
    if text is not None and not isinstance(text, str):
        raise InputError(f"{place}: column {quoted(columns.words)} must hold a text.")
    text = text or ""
    refuse_surrogates(text, place)
    if spans is None:
        spans = []
    if not isinstance(spans, list | tuple):
        raise InputError(
            f"{place}: column {quoted(columns.tags)} must hold a list of spans (start, end and"
            f" label), but holds {quoted(spans)}."
        )
    words = split_words(text)
    try:
        tags, extended = tag_words(words, [_span(span) for span in spans], len(text))
    except ValueError as error:
        raise InputError(f"{place}: {error}. Fix the spans.") from None
    return [word.text for word in words], tags, extended


def _span(value: Any) -> Span:
    """Return a span from its keys or from a list of start, end and label."""
    if isinstance(value, Mapping):
        label = next((value[key] for key in SPAN_LABELS if value.get(key) is not None), None)
        start, end = value.get("start"), value.get("end")
    elif isinstance(value, list | tuple) and len(value) == 3:
        start, end, label = value
    else:
        start = end = label = None
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(label, str) and label):
        raise ValueError(f"{quoted(value)} is not a span, which needs start, end and label")
    return Span(start, end, label)


def _labelled(part: TaggedRows, scheme: str) -> LabelledRows:
    """Return the rows with their tags in BIO over the types that they have, or with plain tags.

    Raises:
        InputError: A tag is not allowed by the scheme.
    """
    bio = (_as_bio(part, number, tags, scheme) for number, tags in enumerate(part.sentences()))
    declared = part.source.declared
    if scheme == PLAIN:
        names = declared or sort_names(part.names)
    else:
        found = [tag.type for tag in map(Tag.parse, declared or part.names) if tag and tag.type]
        names = bio_tags(list(dict.fromkeys(found)) if declared else sort_names(set(found)))
    index = {name: code for code, name in enumerate(names)}
    codes = np.fromiter((index[tag] for tags in bio for tag in tags), np.int64, len(part.codes))
    return LabelledRows(
        inputs=part.inputs,
        labels=RowLabels.from_counts(codes, part.counts),
        names=names,
        numbers=np.array(part.numbers, dtype=np.int64),
        origin=part.source.origin,
        unit=part.source.unit,
        declared=names,
        ignored=part.ignored,
        notes=part.notes,
        index=part.source.index,
    )


def _joined(parts: Sequence[LabelledRows], origin: str) -> LabelledRows:
    """Join the rows of several files into one split, with the tags of all files."""
    rows = concatenated(parts, origin)
    return replace(rows, declared=rows.names)


def _as_bio(part: TaggedRows, sentence: int, tags: Sequence[str], scheme: str) -> list[str]:
    try:
        return as_bio(tags, scheme)
    except TagError as error:
        begins = " In BIO, B- begins an entity, and I- continues one of the same type. If I- begins"
        begins += " entities everywhere (IOB1), B- may only follow an entity of the same type."
        raise InputError(
            f"{part.place(sentence, error.word)}: {error}, but the training data follow the scheme"
            f" {scheme}.{begins if scheme == BIO else ''} Fix the tag."
        ) from None
