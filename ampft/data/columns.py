"""Which columns hold inputs and labels, or words and tags: the named or those with usual names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from ampft.data.input_columns import JOIN, InputColumns
from ampft.data.request import DataRequest
from ampft.data.row_labels import LabelParser
from ampft.data.splits import GROUP_COLUMN, ID_COLUMN
from ampft.errors import InputError, did_you_mean, listed, quoted, quoted_list

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
EXTRA_FLAGS = {GROUP_COLUMN: "--group_column", ID_COLUMN: "--id_column"}

WORD_COLUMNS = ("tokens", "words")
TAG_COLUMNS = ("ner_tags", "tags", "labels", "label", "upos", "pos_tags")
TEXT_COLUMNS = ("text", "sentence", "content")
SPAN_COLUMNS = ("spans", "entities")
# The input column of prepared words with tags: words as the data have them, or words of a text.
WORDS, TEXT = "tokens", "text"

Describe = Callable[[], str]
USUAL_NAMES = frozenset({*LABELS, *TEXTS, *chain.from_iterable(PAIRS)})


def folded(name: str) -> str:
    """Return a column name without case and surrounding spaces."""
    return name.strip().casefold()


@dataclass(frozen=True)
class DataColumns:
    """The columns to read.

    Attributes:
        inputs: Columns of the inputs; a name such as `title+body` joins columns.
        labels: Columns of the labels, and how to parse their cells.
        kind: Kind of the inputs: `text`, `image`, `sound` or `token`.
        extra: Named columns that are neither, by their name in a split; see `extra_columns`.
    """

    inputs: tuple[str, ...]
    labels: LabelParser
    kind: str = "text"
    extra: Mapping[str, str] = field(default_factory=dict)

    def require_in(self, available: Sequence[str], *, origin: str) -> None:
        """Raise InputError when a file or split lacks a column.

        Args:
            available: Its columns.
            origin: The file or data set, for the message.
        """
        sources = InputColumns.of(self.inputs, available).sources
        require(sources, available, INPUT_FLAGS[self.kind], origin=origin)
        require(self.labels.columns, available, LABEL_FLAG, origin=origin)
        for name, column in self.extra.items():
            require((column,), available, EXTRA_FLAGS[name], origin=origin)


@dataclass(frozen=True)
class TokenColumns:
    """The columns of words with tags, or of texts with spans.

    Attributes:
        words: Column of lists of words, or of texts.
        tags: Column of lists of tags, or of spans.
        are_spans: Whether there are texts with spans.
        extra: Named columns that are neither, by their name in a split; see `extra_columns`.
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
    def read(self) -> DataColumns:
        """The same columns, as of any data."""
        labels = LabelParser((self.tags,), several=True, per_unit=True)
        return DataColumns((self.words,), labels, "token", self.extra)


def extra_columns(request: DataRequest) -> dict[str, str]:
    """Return the named columns of groups and ids, by their name in a split."""
    columns = {GROUP_COLUMN: request.group_column, ID_COLUMN: request.id_column}
    return {name: column for name, column in columns.items() if column is not None}


def column_renames(columns: Sequence[str], expected: Sequence[str]) -> dict[str, str]:
    """Return the expected name of each column that differs from it only in case or spaces.

    A name is left out if a column has it exactly, or if several columns could be meant.
    """
    exact = {*columns} & {*expected}
    alike: dict[str, list[str]] = defaultdict(list)
    for column in columns:
        if column not in exact:
            alike[folded(column)].append(column)
    matches = {name: alike.get(folded(name), []) for name in expected if name not in exact}
    return {columns[0]: name for name, columns in matches.items() if len(columns) == 1}


def expected_names(
    columns: Sequence[str], *, texts: tuple[str, ...] | None, labels: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return the names to look for: the user's choices, and usual names if no column has one.

    Args:
        columns: All columns.
        texts: Text columns that the user named, or None.
        labels: Label columns that the user named, or None.
    """
    usual: list[str] = []
    if texts is None and not text_choices(columns):
        usual += [*chain.from_iterable(PAIRS), *TEXTS]
    if labels is None and set(LABELS).isdisjoint(columns):
        usual += LABELS
    return (*usual, *InputColumns.of(texts or (), columns).sources, *(labels or ()))


def renaming_notes(names: Mapping[str, str], origin: str) -> tuple[str, ...]:
    """Return the note that says which columns are read under which names."""
    changes = listed([f"{quoted(old)} as {quoted(new)}" for old, new in names.items()])
    return (f"{origin}: columns are read under other spellings: {changes}.",) if names else ()


def label_columns(
    columns: Sequence[str], named: tuple[str, ...] | None, *, origin: str, describe: Describe
) -> tuple[str, ...]:
    """Return the label columns: those named, `label`, or the only one with a usual name.

    Args:
        columns: All columns.
        named: Columns that the user named, or None.
        origin: The file or data set, for the message.
        describe: Function that returns the list of columns for the message.

    Raises:
        InputError: A named column is missing, or the choice is not clear. The message lists the
            columns.
    """
    if named is not None:
        require(named, columns, LABEL_FLAG, origin=origin, describe=describe)
        return named
    candidates = [name for name in columns if folded(name) in LABELS]
    if "label" in candidates:
        return ("label",)
    if len(candidates) == 1:
        return (candidates[0],)
    if candidates:
        raise InputError(
            f"{LABEL_FLAG}: {origin} has several possible label columns:"
            f" {quoted_list(candidates)}. Pass the right one."
        )
    raise InputError(
        f"{LABEL_FLAG}: {origin} has no column called label. Its columns: {describe()}. Pass the"
        f" label column.{header_hint(columns)}"
    )


def text_columns(
    columns: Sequence[str],
    request: DataRequest,
    *,
    labels: tuple[str, ...],
    origin: str,
    describe: Describe,
) -> tuple[str, ...]:
    """Return one text column, or two for pairs.

    These are the named ones, otherwise a usual pair or a single usual name, otherwise the only
    column that is not a label.

    Raises:
        InputError: A named column is missing, more than two texts are named, or the choice is not
            clear.
    """
    named = request.text_columns
    if named is not None:
        received = f"--text_column_names: received {listed(named, separator=',')}."
        if len(named) > 2:
            raise InputError(
                f"{received} Commas separate the two texts of a pair. To join columns into one"
                f" text, write {JOIN} between them: {listed(named, separator=JOIN)}."
            )
        sources = InputColumns.of(named, columns).sources
        if len(set(named)) < len(named) or not {*labels, "label"}.isdisjoint(sources):
            raise InputError(
                f"{received} Pass one text column, two different ones for pairs (a,b), or columns"
                f" to join (a{JOIN}b). None may be a label column ({quoted_list(labels)}) or be"
                " called 'label'."
            )
        require(sources, columns, "--text_column_names", origin=origin, describe=describe)
        return named
    not_texts = (*labels, "label", *extra_columns(request).values())
    others = [name for name in columns if name not in not_texts]
    choices = text_choices(others)
    if not choices and len(others) == 1:
        return (others[0],)
    if len(choices) == 1:
        return choices[0]
    problem = "several possible text columns" if choices else "no text column with a usual name"
    raise InputError(
        f"--text_column_names: {origin} has {problem}. Its columns: {describe()}. Pass the right"
        f" one, for example --text_column_names text, or a,b for pairs, or a{JOIN}b to join them."
        f"{header_hint(columns)}"
    )


def text_choices(columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the usual pairs of text columns, and the usual text columns outside them."""
    pairs = [pair for pair in PAIRS if set(pair) <= set(columns)]
    paired = set(chain.from_iterable(pairs))
    return [*pairs, *((name,) for name in TEXTS if name in columns and name not in paired)]


def require(
    names: Sequence[str],
    columns: Sequence[str],
    flag: str,
    *,
    origin: str,
    describe: Describe | None = None,
) -> None:
    """Raise InputError, which lists the columns, when one of `names` is missing.

    Args:
        names: Columns that are needed.
        columns: All columns.
        flag: Flag that names them, for the message.
        origin: The file or data set, for the message.
        describe: Function that describes the columns; None lists their names.
    """
    present = frozenset(columns)
    missing = [name for name in names if name not in present]
    if missing:
        listing = quoted_list(columns) if describe is None else describe()
        raise InputError(
            f"{flag}: {origin} has no column {quoted_list(missing)}. Its columns:"
            f" {listing}.{did_you_mean(missing[0], columns)}{header_hint(columns)}"
        )


def header_hint(columns: Sequence[str]) -> str:
    """Return what to do if the columns are not names, or if another separator made them one."""
    hint = (
        " If these are not column names, the file lacks a header: add a first line with the names."
    )
    if len(columns) == 1:
        for delimiter, name in DELIMITERS.items():
            if delimiter in columns[0]:
                return (
                    f"{hint} The file seems to be separated by {name}; .csv files need commas, .tsv"
                    " files tabs."
                )
    return hint


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
    named_words, named_tags = request.text_columns, request.label_columns
    flag = INPUT_FLAGS["token"]
    if named_words is not None and len(named_words) > 1:
        raise InputError(
            f"{flag}: received {listed(named_words, separator=',')}, but words with tags"
            " are in one column. Pass one."
        )
    require(named_words or (), available, flag, origin=origin)
    require(named_tags or (), available, LABEL_FLAG, origin=origin)
    candidates = named_words or [n for n in (*WORD_COLUMNS, *TEXT_COLUMNS) if n in available]
    words = candidates[0] if candidates else None
    usual = SPAN_COLUMNS if words in TEXT_COLUMNS else (*TAG_COLUMNS, *SPAN_COLUMNS)
    found = named_tags or [name for name in usual if name in available]
    if words is None or not found:
        missing = f"{flag}: {origin} has no column of words"
        if words is not None:
            missing = f"{LABEL_FLAG}: {origin} has no column of tags"
        raise InputError(
            f"{missing} with a usual name. Its columns: {quoted_list(available)}. Tokens"
            " need a column of words (such as tokens) and one of tags (such as ner_tags), or a text"
            f" and spans (a list of start, end and label). Pass them with {flag} and {LABEL_FLAG}."
        )
    tags = found[0]
    are_spans = tags in SPAN_COLUMNS or words in TEXT_COLUMNS
    kinds = ("texts", "spans") if are_spans else ("words", "tags")
    how = "as --task says" if request.labels_tokens else "found from the columns"
    note = f"Task tokens, {how}: {kinds[0]} from {words!r}, {kinds[1]} from {tags!r}."
    return TokenColumns(words, tags, are_spans, extra_columns(request)), note
