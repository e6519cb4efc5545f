"""Which columns hold inputs and labels, or words and tags: the named or those with usual names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

from ampft.data.request import DataRequest
from ampft.data.row_labels import WEIGHT_COLUMN, LabelParser
from ampft.data.sources.table import SAMPLE_ROWS, SourceTable, as_text
from ampft.data.sources.text_lists import list_or_cell
from ampft.data.splits import GROUP_COLUMN, ID_COLUMN
from ampft.data.words import is_span
from ampft.decision import described, join_texts, joined_parts
from ampft.errors import InputError, did_you_mean, listed, quoted, quoted_list
from ampft.text.units import TextUnits

# Names in GLUE's tasks and in common classification data sets. transformers' run_glue knows the
# pairs; its run_classification uses `sentence` and `label` by default.
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("text_a", "text_b"),
)
TEXTS = ("text", "sentence", "content", "review", "comment", "utterance", "tweet", "title")
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent")

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}

INPUT_FLAGS = {
    "text": "--text_column_names",
    "token": "--text_column_names",
    "image": "--image_column_name",
    "sound": "--audio_column_name",
}
LABEL_FLAG = "--label_column_name"
EXTRA_FLAGS = {
    GROUP_COLUMN: "--group_column",
    ID_COLUMN: "--id_column",
    WEIGHT_COLUMN: "--weight_column",
}
FEATURE_FLAG = "--feature_columns"

WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("ner_tags", "tags", "labels", "label", "upos", "pos_tags")
TEXT_COLUMNS = ("text", "sentence", "content", "data")
SPAN_COLUMNS = ("spans", "entities")
LABELS_OR_SPANS = ("label", "labels")
ANSWER, ACCEPTED, ANSWERS = "answer", "accept", ("accept", "reject", "ignore")  # of Prodigy
# The input column of prepared words with tags: words as the data have them, or words of a text.
WORDS, TEXT = "tokens", "text"

Describe = Callable[[], str]
USUAL_NAMES = frozenset({*LABELS, *TEXTS, *chain.from_iterable(PAIRS)})


def case_folded_name(name: str) -> str:
    """Return a column name without case and surrounding spaces."""
    return name.strip().casefold()


@dataclass(frozen=True)
class InputColumns:
    """The input columns, and the columns of the table that each consists of."""

    names: tuple[str, ...]  # Names of the inputs, such as `title+body`.
    # Columns of each input, in the order in which they are joined.
    parts: tuple[tuple[str, ...], ...]
    # Columns that are said before the first input, by the name that is said.
    features: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, names: Sequence[str], available: Sequence[str], features: Sequence[str] = ()
    ) -> InputColumns:
        """Return the columns of each name; a column that has a name exactly is not split."""
        present = frozenset(available)
        parts = tuple((name,) if name in present else joined_parts(name) for name in names)
        return cls(tuple(names), parts, dict(zip(features, features, strict=True)))

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The columns to read, each once."""
        return tuple(dict.fromkeys([*chain.from_iterable(self.parts), *self.features.values()]))

    def renamed(self, names: Mapping[str, str]) -> InputColumns:
        parts = tuple(tuple(names.get(n, n) for n in part) for part in self.parts)
        features = {said: names.get(column, column) for said, column in self.features.items()}
        return InputColumns(self.names, parts, features)

    def texts(self, values: Sequence[object], location: str) -> list[str | None]:
        """Return the text of each input, or None if none of its columns has one.

        Args:
            values: Cells of `sources`.
            location: File and line, for the messages.

        Raises:
            InputError: A cell holds a list or an object.
        """
        cells = {
            name: as_text(value, location, name)
            for name, value in zip(self.sources, values, strict=True)
        }
        texts = [join_texts(cells[name] for name in part) for part in self.parts]
        if self.features and texts[0] is not None:
            features = {said: cells[column] for said, column in self.features.items()}
            texts[0] = described(features, texts[0])
        return texts


@dataclass(frozen=True)
class DataColumns:
    """The columns to read."""

    inputs: tuple[str, ...]  # Columns of the inputs; a name such as `title+body` joins columns.
    labels: LabelParser  # Columns of the labels, and how to parse their cells.
    kind: str = "text"  # Kind of the inputs: `text`, `image`, `sound` or `token`.
    # Named columns that are neither, by their name in a split; see `extra_columns`.
    extra: Mapping[str, str] = field(default_factory=dict)
    are_spans: bool = False  # Whether they are texts with spans, not words with tags.
    units: TextUnits = field(default_factory=TextUnits)  # How texts are divided into words.
    features: tuple[str, ...] = ()  # Columns that are said before a text.

    def of_table(self, available: Sequence[str]) -> InputColumns:
        """Return where the inputs are in a table with these columns."""
        return InputColumns.of(self.inputs, available, self.features)

    @classmethod
    def of_tokens(
        cls,
        words: str,
        tags: str,
        *,
        are_spans: bool,
        extra: Mapping[str, str] | None = None,
        units: TextUnits | None = None,
    ) -> DataColumns:
        labels = LabelParser((tags,), several=True, per_unit=True)
        return cls((words,), labels, "token", extra or {}, are_spans, units or TextUnits())

    def of_split(self, split: str, request: DataRequest) -> DataColumns:
        """Return the columns to read of a split: without metrics by weight, only training has any.

        Args:
            split: Name of the split.
            request: The user's choices.
        """
        if split == "train" or request.weighted_metrics:
            return self
        extra = {name: column for name, column in self.extra.items() if name != WEIGHT_COLUMN}
        return replace(self, extra=extra)

    def require_in(self, available: Sequence[str], *, origin: str) -> None:
        """Raise InputError when a file or split lacks a column.

        Args:
            origin: The file or data set, for the message.
        """
        require_columns(self.features, available, FEATURE_FLAG, origin=origin)
        sources = self.of_table(available).sources
        require_columns(sources, available, INPUT_FLAGS[self.kind], origin=origin)
        require_columns(self.labels.columns, available, LABEL_FLAG, origin=origin)
        for name, column in self.extra.items():
            require_columns((column,), available, EXTRA_FLAGS[name], origin=origin)


def refuse_rejected(table: SourceTable, columns: DataColumns) -> None:
    """Raise InputError when Prodigy's column `answer` rejects rows, whose labels do not hold."""
    used = {*columns.of_table(table.columns).sources, *columns.labels.columns}
    if ANSWER not in table.columns or ANSWER in used:
        return
    rejected = []
    for number, (answer,) in table.read((ANSWER,)):
        if answer not in ANSWERS:
            return
        if answer != ACCEPTED:
            rejected.append(number)
    if rejected:
        raise InputError(
            f"{table.place(*rejected)}: the column {ANSWER!r} says that the labels of these rows"
            f" do not hold. Keep only rows with the answer {ACCEPTED!r}, or remove the column."
        )


def extra_columns(request: DataRequest) -> dict[str, str]:
    """Return the named columns of groups, ids and weights, by their name in a split."""
    columns = {
        GROUP_COLUMN: request.group_column,
        ID_COLUMN: request.id_column,
        WEIGHT_COLUMN: request.weight_column,
    }
    return {name: column for name, column in columns.items() if column is not None}


def column_renames(columns: Sequence[str], expected: Sequence[str]) -> dict[str, str]:
    """Return the expected name of each column that differs from it only in case or spaces.

    A name is left out if a column has it exactly, or if several columns could be meant.
    """
    exact = {*columns} & {*expected}
    alike: dict[str, list[str]] = defaultdict(list)
    for column in columns:
        if column not in exact:
            alike[case_folded_name(column)].append(column)
    matches = {
        name: alike.get(case_folded_name(name), []) for name in expected if name not in exact
    }
    return {columns[0]: name for name, columns in matches.items() if len(columns) == 1}


def rename_columns(table: SourceTable, expected: Sequence[str]) -> SourceTable:
    """Return the table with the expected names for columns that differ only in case or spaces."""
    names = column_renames(table.columns, expected)
    if not names:
        return table
    changes = listed([f"{quoted(old)} as {quoted(new)}" for old, new in names.items()])
    note = f"{table.origin}: columns are read under other spellings: {changes}."
    return table.renamed(names, note)


def require_columns(
    names: Sequence[str],
    columns: Sequence[str],
    flag: str,
    *,
    origin: str,
    describe: Describe | None = None,
) -> None:
    """Raise InputError, which lists the columns, when one of `names` is missing.

    Args:
        origin: The file or data set, for the message.
        describe: Function that describes the columns; None lists their names.
    """
    present = frozenset(columns)
    missing = [name for name in names if name not in present]
    if missing:
        listing = quoted_list(columns) if describe is None else describe()
        raise InputError(
            f"{flag}: {origin} has no column {quoted_list(missing)}. Its columns:"
            f" {listing}.{did_you_mean(missing[0], columns)}{header_hint(columns, origin)}"
        )


def header_hint(columns: Sequence[str], origin: str) -> str:
    """Return what to do if the columns are not names, or if another separator made them one.

    Args:
        origin: The file or data set.
    """
    if {"data", "annotations"} <= {*columns}:
        return " This seems to be Label Studio's nested export: export JSON-MIN or CSV instead."
    suffix = Path(origin).suffix.lower()
    if suffix in (".xlsx", ".xlsm"):
        return " The first row with a value must name them; --sheet_name reads another sheet."
    if suffix not in (".csv", ".tsv", ".tab"):
        return ""
    hint = (
        " If these are not column names, the file lacks a header: write the names into its first"
        " line."
    )
    if len(columns) == 1 or "\t" in columns[0]:
        for delimiter, name in DELIMITERS.items():
            if delimiter in columns[0]:
                return (
                    f"{hint} The file seems to be separated by {name}; .csv files need commas, .tsv"
                    " files tabs."
                )
    return hint


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


def has_lists_of_words(table: SourceTable) -> bool:
    """Return whether the first row has a list of words and one of tags, written as text."""
    names = [
        next((n for n in of if n in table.columns), None) for of in (WORD_COLUMNS, TAG_COLUMNS)
    ]
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
    return DataColumns.of_tokens(words, tags, are_spans=are_spans, extra=extra), note
