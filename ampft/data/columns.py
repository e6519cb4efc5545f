"""Which columns hold inputs and labels, or words and tags: the named or those with usual names."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from ampft.data.request import DataRequest
from ampft.data.row_labels import WEIGHT_COLUMN, LabelParser
from ampft.data.sources.source_table import SourceTable, as_text
from ampft.data.splits import GROUP_COLUMN, ID_COLUMN
from ampft.decision import BLANK, join_texts, joined_parts, with_features
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
# Names of two texts of one kind, such as sentence_A and sentence_B, where a table has no others.
TWINS = re.compile(
    r"(sentence|sent|text|question|query|passage|document|doc|phrase|comment|review|title|claim"
    r"|utterance|snippet|string|premise)s?[ _.-]?(1|2|a|b)",
    re.IGNORECASE,
)
TEXTS = ("text", "sentence", "content", "review", "comment", "utterance", "tweet", "title")
LABELS = (
    "label",
    "labels",
    "class",
    "category",
    "target",
    "sentiment",
    "intent",
    "accept",
    "cats",
    "is_duplicate",
)

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

ANSWER, ACCEPTED, ANSWERS = "answer", "accept", ("accept", "reject", "ignore")  # of Prodigy
Describe = Callable[[], str]
USUAL_NAMES = frozenset({*LABELS, *TEXTS, *chain.from_iterable(PAIRS)})


def normalized_name(name: str) -> str:
    """Return a column name without case and surrounding spaces."""
    return name.strip().casefold()


@dataclass(frozen=True)
class InputColumns:
    """The input columns, and the columns of the table that each consists of."""

    names: tuple[str, ...]  # Names of the inputs, such as `title+body`.
    # Columns of each input, in the order in which they are joined.
    parts: tuple[tuple[str, ...], ...]
    # Columns that are put before the first input, by the name that stands there.
    features: Mapping[str, str] = field(default_factory=dict)
    delimiter: str = BLANK  # Text between joined columns.

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        available: Sequence[str],
        features: Sequence[str] = (),
        delimiter: str = BLANK,
    ) -> InputColumns:
        """Return the columns of each name; a column that has a name exactly is not split."""
        present = frozenset(available)
        parts = tuple((name,) if name in present else joined_parts(name) for name in names)
        return cls(tuple(names), parts, dict(zip(features, features, strict=True)), delimiter)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The columns to read, each once."""
        return tuple(dict.fromkeys([*chain.from_iterable(self.parts), *self.features.values()]))

    def renamed(self, names: Mapping[str, str]) -> InputColumns:
        parts = tuple(tuple(names.get(n, n) for n in part) for part in self.parts)
        features = {said: names.get(column, column) for said, column in self.features.items()}
        return replace(self, parts=parts, features=features)

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
        texts = [join_texts((cells[n] for n in part), self.delimiter) for part in self.parts]
        if self.features and texts[0] is not None:
            features = {said: cells[column] for said, column in self.features.items()}
            texts[0] = with_features(features, texts[0])
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
    features: tuple[str, ...] = ()  # Columns that are put before a text.
    delimiter: str = BLANK  # Text between joined columns.

    def of_table(self, available: Sequence[str]) -> InputColumns:
        """Return where the inputs are in a table with these columns."""
        return InputColumns.of(self.inputs, available, self.features, self.delimiter)

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


def refuse_repeated_names(names: Sequence[str], place: str) -> None:
    """Raise InputError when a name occurs twice.

    Args:
        place: Where they are listed, for the message.
    """
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{place} {quoted(twice[0])} occurs twice. Name each once.")


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
            alike[normalized_name(column)].append(column)
    matches = {name: alike.get(normalized_name(name), []) for name in expected if name not in exact}
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
    are_names = not USUAL_NAMES.isdisjoint(map(normalized_name, columns))
    if suffix not in (".csv", ".tsv", ".tab") or are_names:
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
