"""Words with tags: sentences of CoNLL files, lists of words and tags, and character spans.

Tags of every scheme become BIO, and character spans become tags of words. Plain tags, such as parts
of speech, are kept.
"""

from __future__ import annotations

import contextlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from ampft.data.columns import LABEL_FLAG, DataColumns, refuse_rejected, refuse_repeated_names
from ampft.data.dataset import RAW_TEXT_COLUMN, cells
from ampft.data.labelled_rows import LabelledRows
from ampft.data.request import DataRequest, refuse_unused_options
from ampft.data.row_collector import concatenated
from ampft.data.row_labels import (
    NO_LABEL,
    UNLABELLED,
    LabelParser,
    RowLabels,
    UnitLabels,
    sort_names,
)
from ampft.data.sources.arrow_rows import write_arrow
from ampft.data.sources.readers import FLAGS, OF_TABLES, open_table, open_tables
from ampft.data.sources.source_table import SourceTable, as_text, refuse_surrogates
from ampft.data.sources.spans import EntitySpan
from ampft.data.sources.text_lists import list_or_cell, seems_to_be_list
from ampft.data.table_rows import Loaded
from ampft.decision import OUTSIDE, bio_tags
from ampft.errors import InputError, quoted, quoted_list
from ampft.text.numbers import counted
from ampft.text.units import TextUnits
from ampft.words.class_names import read_class_names
from ampft.words.conll import CONLL_SUFFIXES, CONLLU_SUFFIX, has_line_per_word, read_as_conll
from ampft.words.tags import (
    BIO,
    IOB1,
    IOBES,
    PLAIN,
    Tag,
    TagError,
    as_bio,
    find_scheme,
    tag_words,
    use_other_bio_spelling,
)
from ampft.words.unit_choice import shifted_spans, units_of_spans, units_of_words
from ampft.words.word_columns import (
    TEXT,
    WORDS,
    are_token_columns,
    choose_token_columns,
    has_lists_of_words,
    span_columns,
)
from ampft.words.word_rows import with_row_per_sentence

NESTING_SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet")  # whose cells can be lists
SCHEME_NOTES = {
    BIO: "The tags follow BIO",
    IOB1: "The tags follow IOB1 (I- begins entities) and are converted to BIO",
    IOBES: "The tags follow IOBES or BILOU and are converted to BIO",
    PLAIN: "The tags have no prefixes (B- and I-), so each word is scored by itself",
}
BIO_RULE = (
    " In BIO, B- begins an entity, and I- continues one of the same type. If I- begins entities"
    " everywhere (IOB1), B- may only follow an entity of the same type."
)


def are_token_files(request: DataRequest) -> bool:
    """Return whether the files hold words with tags: as the task says, or as the first shows."""
    if request.labels_tokens is not None:
        return request.labels_tokens
    first = request.paths()["train"][0]
    suffix = first.suffix.lower()
    if suffix in (*CONLL_SUFFIXES, CONLLU_SUFFIX):
        return True
    if suffix in OF_TABLES and first.is_file():
        return has_line_per_word(first, request.encoding)
    if suffix not in (*NESTING_SUFFIXES, ".csv") or request.several_labels:
        return False
    table = open_table(first, flag=FLAGS["train"], encoding=request.encoding)
    if with_row_per_sentence(table) is not table:
        return True
    if suffix == ".csv":
        return has_lists_of_words(table, request)
    labels = request.label_columns
    if labels is not None and labels[0] in span_columns(table, labels):
        return True
    if (labels or request.text_columns) and has_lists_of_words(table, request):
        return True
    return labels is None and are_token_columns(table)


def read_token_files(request: DataRequest) -> Loaded:
    """Read the rows of the files of a request."""
    return read_token_tables(open_tables(request, read_as_conll), request, ())


def read_token_tables(
    tables: Mapping[str, Sequence[SourceTable]], request: DataRequest, notes: Sequence[str]
) -> Loaded:
    """Read all rows, and convert their tags to BIO by the scheme of the training rows.

    Args:
        tables: The files of each split, or a split of a data set.
        request: The user's choices.

    Returns:
        Rows by split, their columns, and notes.

    Raises:
        InputError: The columns or a row cannot be used, or its tags are wrong; the message names
            it.
    """
    tables = {
        split: [with_row_per_sentence(table, request.label_columns or ()) for table in each]
        for split, each in tables.items()
    }
    first = tables["train"][0]
    origin = first.origin if first.dataset is None else str(request.dataset_name)
    columns, note = choose_token_columns(first, request, origin=origin)
    every = list(chain.from_iterable(tables.values()))
    for split, sources in tables.items():
        for table in sources:
            columns.of_split(split, request).require_in(table.columns, origin=table.origin)
            refuse_rejected(table, columns)
    unused = (
        *("drop_missing_labels", "image_column_name", "audio_column_name", "weighted_metrics"),
        "feature_columns",
    )
    refuse_unused_options(request, unused, "words with tags")
    chosen = None if request.text_units is None else TextUnits(request.text_units)
    unit_note = f"Units: {request.text_units} (--text_units)."
    if columns.are_spans:
        if chosen is None:
            problem = shifted_spans(_texts_with_spans(tables["train"], columns))
            if problem is not None:
                raise InputError(
                    f"{origin}: {problem}. Count characters from 0, with the end not included: "
                    "convert the spans, or pass --text_units graphemes if they are right."
                )
            chosen, unit_note = units_of_spans(_texts_with_spans(tables["train"], columns))
        columns = replace(columns, units=chosen)
    read = {
        split: [_read_table(table, columns.of_split(split, request), request) for table in sources]
        for split, sources in tables.items()
    }
    train = read["train"]
    has_lists = not (columns.are_spans or first.has_line_per_word)
    if has_lists and max(part.labels.counts.max(initial=0) for part in train) == 1:
        raise InputError(
            f"{first.origin}: each row has one word, so the sentences are not known. Write a "
            ".conll file: a word and its tag per line, and a blank line after each sentence."
        )
    if chosen is None:
        sentences = (words for part in train for (words,) in cells(part.inputs, (WORDS,)))
        chosen, unit_note = units_of_words(sentences)
    scheme = find_scheme(tags for part in train for tags in _sentences(part))
    tags = sorted({name for part in train for name in part.names})
    if scheme == PLAIN and use_other_bio_spelling(tags):
        raise InputError(
            f"{first.origin}: the tags {quoted_list(tags)} seem to mark entities in another "
            "spelling. Write them as B-PER, I-PER and O, so that entities are found."
        )
    rows = {}
    for split, parts in read.items():
        origin = str(request.files.get(split, split))
        joined = concatenated([_in_scheme(part, scheme) for part in parts], origin)
        rows[split] = replace(joined, declared=joined.names)
    _refuse_one_tag(rows["train"], columns)
    words = sum(len(part.labels.codes) for part in train)
    scheme_note = f"{SCHEME_NOTES[scheme]}; {words:,} training words."
    of_tables = (note for table in every for note in table.notes)
    all_notes = [*notes, note, *of_tables, scheme_note, unit_note]
    return rows, replace(columns, inputs=_prepared_columns(columns)[:1], units=chosen), all_notes


def _refuse_one_tag(train: LabelledRows, columns: DataColumns) -> None:
    """Raise InputError when all training words have the same tag."""
    if len(train.names) < 2 and train.ignored:
        raise InputError(
            f"{train.origin}: the words that are left have fewer than two different tags. "
            f"{train.left_out_by_label} If these tags are classes, remove "
            "--ignore_label."
        )
    if train.names in ((), (OUTSIDE,)):
        raise InputError(
            f"{train.origin}: no word has a tag other than {OUTSIDE}. Check {LABEL_FLAG}."
        )
    if len(train.names) == 1:
        raise InputError(
            f"{train.origin}: all words have the tag {quoted(train.names[0])}, from"
            f" {columns.labels.title!r}. Keep the columns of words and tags, in this order, or pass"
            f" the column of tags with {LABEL_FLAG}."
        )


def _texts_with_spans(
    tables: Sequence[SourceTable], columns: DataColumns
) -> Iterator[tuple[str, list[EntitySpan]]]:
    """Yield the texts and spans of rows; what cannot be read is refused when the rows are read."""
    for table in tables:
        for _, (text, cell) in table.read((columns.inputs[0], columns.labels.title)):
            spans = list_or_cell(cell)
            if isinstance(text, str) and isinstance(spans, list | tuple | None):
                with contextlib.suppress(ValueError):
                    found = [EntitySpan.of(span) for span in spans or ()]
                    yield text, [e for e in found if 0 <= e.start < e.end <= len(text)]


def _prepared_columns(columns: DataColumns) -> tuple[str, ...]:
    """Return the columns of the prepared rows; the first is their input."""
    inputs = (TEXT, RAW_TEXT_COLUMN) if columns.are_spans else (WORDS,)
    return (*inputs, *columns.extra)


def _read_table(table: SourceTable, columns: DataColumns, request: DataRequest) -> LabelledRows:
    """Return the usable rows of one file or split, with their tags in any scheme."""
    (word_column,), tag_column = columns.inputs, columns.labels.title
    declared = _declared_tags(table, tag_column, request)
    index: dict[str, int] = {}
    codes, counts, numbers, empty = array("q"), array("q"), array("q"), array("q")
    left_out: Counter[str] = Counter()
    extended = 0
    kinds: set[type] = set()  # of the tags, where numbers have no names

    def usable() -> Iterator[Sequence[Any]]:
        nonlocal extended, kinds
        for number, (words_cell, tags_cell, *others) in table.read(
            (word_column, tag_column, *columns.extra.values())
        ):
            place = table.place(number)
            words, tags, more = _read_cells(words_cell, tags_cell, columns, declared, place)
            extended += more
            if declared is None and not columns.are_spans:
                kinds.update(type(tag) for tag in list_or_cell(tags_cell))
            if int in kinds and len(kinds) > 1:
                raise InputError(
                    f"{place}: column {quoted(tag_column)} holds numbers in some rows and names of "
                    "tags in others. Write the names of the tags."
                )
            if ignored := set(tags).intersection(request.ignored_labels):
                left_out[min(ignored)] += 1
                continue
            _refuse_no_label(tags, columns.labels, place)
            if not words:
                empty.append(number)
                continue
            codes.extend(index.setdefault(tag, len(index)) for tag in tags)
            counts.append(len(tags))
            numbers.append(number)
            extra = map(as_text, others, repeat(place), columns.extra.values())
            yield words, *([words_cell] if columns.are_spans else []), *extra

    prepared = _prepared_columns(columns)
    written = write_arrow(usable(), prepared, lists=prepared[:1])
    if empty and not request.drop_missing_text:
        raise InputError(
            f"{table.place(*empty)}: no word in column {quoted(word_column)}. Remove such rows, or "
            "pass --drop_missing_text to leave them out."
        )
    notes = [
        f"{table.origin}: {counted(n, 'row')} with the tag {quoted(t)} left out (--ignore_label)."
        for t, n in sorted(left_out.items())
    ]
    if empty:
        notes.append(f"{table.origin}: {counted(len(empty), 'row')} without words left out.")
    if extended:
        notes.append(
            f"{table.origin}: {counted(extended, 'span')} extended to whole words"
            " (--text_units graphemes keeps them)."
        )
    return LabelledRows(
        inputs=written,
        labels=RowLabels.from_counts(codes, counts),
        names=tuple(index),
        numbers=np.array(numbers, dtype=np.int64),
        table=table,
        declared=declared,
        ignored=frozenset(left_out),
        notes=tuple(notes),
    )


def _declared_tags(table: SourceTable, column: str, request: DataRequest) -> tuple[str, ...] | None:
    """Return the names of tags that are numbers, from the source or from a file of names."""
    declared = table.classes.get(column)
    refuse_repeated_names(
        declared or (), f"{table.origin}: of the classes of column {quoted(column)},"
    )
    if declared is None and request.class_names_file is not None:
        entries = read_class_names(Path(request.class_names_file))
        return tuple(entry.name for entry in entries)
    return declared


def _refuse_no_label(tags: Sequence[str], labels: LabelParser, place: str) -> None:
    """Raise InputError for a tag that stands for no label, as -100 does."""
    if unlabelled := sorted(labels.no_label.intersection(tags)):
        raise InputError(
            f"{place}: the tag {unlabelled[0]} in column {quoted(labels.title)} stands for no"
            f" label. Pass --ignore_label {','.join(unlabelled)} to leave such rows out, or write a"
            " tag for each word, such as O."
        )


def _sentences(rows: LabelledRows) -> Iterator[list[str]]:
    start = 0
    for count in rows.labels.counts.tolist():
        yield [rows.names[code] for code in rows.labels.codes[start : start + count]]
        start += count


def _in_scheme(rows: LabelledRows, scheme: str) -> LabelledRows:
    """Return the rows with their tags in BIO over the types that they have, or with plain tags.

    Raises:
        InputError: A tag is not allowed by the scheme; the message names its line or word.
    """
    if scheme == PLAIN:
        names = rows.declared or sort_names(rows.names)
    else:
        found = [tag.type for tag in map(Tag.parse, rows.declared or rows.names) if tag]
        types = list(dict.fromkeys(filter(None, found)))
        names = bio_tags(types if rows.declared else sort_names(types))
    index = {name: code for code, name in enumerate(names)}
    codes = array("q")
    for number, tags in zip(rows.numbers.tolist(), _sentences(rows), strict=True):
        try:
            codes.extend(index[tag] for tag in as_bio(tags, scheme))
        except TagError as error:
            place = f"{rows.table.place(number)}, word {error.word + 1}"
            if rows.table.has_line_per_word:
                place = rows.table.place(number + error.word)
            raise InputError(
                f"{place}: {error}, but the training data follow the scheme"
                f" {scheme}.{BIO_RULE if scheme == BIO else ''} Fix the tag."
            ) from None
        except KeyError as error:
            raise InputError(
                f"{rows.table.place(number)}: the tag {quoted(error.args[0])} is not among the"
                f" names of tags: {quoted_list(names)}. Fix the tag, or add its name."
            ) from None
    labels = RowLabels.from_counts(codes, rows.labels.counts)
    return replace(rows, labels=labels, names=names, declared=names)


def _read_cells(
    words: Any, tags: Any, columns: DataColumns, declared: tuple[str, ...] | None, place: str
) -> tuple[list[str], list[str], int]:
    """Return the words of a row, their tags, and how many spans were extended to whole words."""
    tags = list_or_cell(tags)
    if columns.are_spans:
        return _words_of_text(words, tags, columns, place)
    words = list_or_cell(words)
    is_damaged = isinstance(words, str) and isinstance(tags, list) and seems_to_be_list(words)
    if isinstance(words, str) and not (is_damaged or isinstance(tags, int)):  # with blanks between
        words, tags = words.split(), tags.split() if isinstance(tags, str) else tags
    (word_column,), tag_column = columns.inputs, columns.labels.title
    for cell, column in ((words, word_column), (tags, tag_column)):
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
        if as_text(word, place, word_column) is None:
            raise InputError(f"{place}: word {number} is empty. Remove it and its tag.")
    codes = columns.labels.no_label
    if declared is None and all(type(t) is int and (t >= 0 or str(t) in codes) for t in tags):
        names = list(map(str, tags))
    else:
        names = [_tag_name(tag, tag_column, declared, place) for tag in tags]
    return [str(word) for word in words], names, 0


def _tag_name(tag: Any, column: str, declared: tuple[str, ...] | None, place: str) -> str:
    if isinstance(tag, str) and tag.strip():
        refuse_surrogates(tag, place)
        name = tag.strip()
        is_name = declared is None or any(each.isdecimal() for each in declared)
        if is_name or not name.isdecimal():
            return name
        tag = int(name)  # as a text file has numbers
    is_index = isinstance(tag, int) and not isinstance(tag, bool)
    if is_index and tag in (NO_LABEL, UNLABELLED):
        return str(tag)
    if is_index and declared is not None and 0 <= tag < len(declared):
        return declared[tag]
    hint = " Write the names of the tags." if is_index else ""
    if is_index and declared is not None:
        hint = f" There are {len(declared)} names, for 0 to {len(declared) - 1}."
    raise InputError(
        f"{place}: column {quoted(column)} holds {quoted(tag)}, which names no tag.{hint}"
    )


def _words_of_text(
    text: Any, spans: Any, columns: DataColumns, place: str
) -> tuple[list[str], list[str], int]:
    """Return the words of a text, their tags, and how many spans were extended to whole words."""
    if text is not None and not isinstance(text, str):
        raise InputError(f"{place}: column {quoted(columns.inputs[0])} must hold a text.")
    text = text or ""
    refuse_surrogates(text, place)
    if spans is None:
        spans = []
    if not isinstance(spans, list | tuple):
        raise InputError(
            f"{place}: column {quoted(columns.labels.title)} must hold a list of spans (start, end"
            f" and label), but holds {quoted(spans)}."
        )
    words = columns.units.split(text)
    try:
        found = [EntitySpan.of(span) for span in spans]
        for span in found:
            span.check_text(text)
        tags, extended = tag_words(words, found, len(text))
    except ValueError as error:
        raise InputError(f"{place}: {error}. Fix the spans.") from None
    return [word.text for word in words], tags, extended


@dataclass(frozen=True)
class TagReader:
    """Where the tags of words are, in rows that are predicted; as `LabelParser` for whole rows."""

    tokens: DataColumns  # Columns of the words and of the tags.
    declared: tuple[str, ...] | None  # Names of the tags if cells hold indices.

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the words and of the tags or spans."""
        return *self.tokens.inputs, self.title

    @property
    def title(self) -> str:
        """Name of the column of the tags."""
        return self.tokens.labels.title

    def parse(self, cells: Sequence[object], location: str) -> tuple[str, ...]:
        """Return the tag of each word of a row.

        Raises:
            InputError: A cell has another type, or words and tags do not fit.
        """
        words, tags = cells
        _, found, _ = _read_cells(words, tags, self.tokens, self.declared, location)
        return tuple(found)

    def as_trained(self, rows: Sequence[tuple[str, ...]]) -> Sequence[tuple[str, ...]]:
        """Return the tags of all rows as BIO, if they are in another scheme of entities.

        Raises:
            InputError: They are in no scheme.
        """
        try:
            scheme = find_scheme([list(tags) for tags in rows])
            return [tuple(as_bio(list(tags), scheme)) for tags in rows]
        except TagError as error:
            raise InputError(f"column {self.title!r}: {error}") from None

    def targets(self, rows: Sequence[tuple[int, ...]], classes: int) -> UnitLabels:
        del classes
        counts = np.array([len(row) for row in rows], dtype=np.int64)
        codes = np.array([code for row in rows for code in row], dtype=np.int64)
        return UnitLabels(codes, counts)
