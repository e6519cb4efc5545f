"""Which columns hold the inputs and the label, where the user did not say or said wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from ampft.data.sources.table import shown
from ampft.errors import InputError, nearest

# The names that GLUE's tasks and usual classification sets have; transformers' run_glue knows
# the pairs, and its run_classification takes `sentence` and `label` when nothing is said
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

SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}

Describe = Callable[[], str]


def label_columns(
    columns: Sequence[str], named: tuple[str, ...] | None, *, origin: str, describe: Describe
) -> tuple[str, ...]:
    """Return the columns of the labels: those named, `label`, or the only one with a usual name.

    Args:
        columns: All columns.
        named: What the user said, or None.
        origin: The file or dataset, for the message.
        describe: Returns the columns as the message shall list them.

    Raises:
        InputError: When it is missing or cannot be told; the message lists what there is.
    """
    if named is not None:
        require(named, columns, "--label_column_name", origin=origin, describe=describe)
        return named
    found = [name for name in columns if name in LABELS]
    if "label" in found:
        return ("label",)
    if len(found) == 1:
        return (found[0],)
    if found:
        raise InputError(
            f"--label_column_name: {origin} has several columns that may be the label:"
            f" {', '.join(map(shown, found))}. Say which."
        )
    raise InputError(
        f"--label_column_name: {origin} has no column called label. Its columns:"
        f" {describe()}. Say which is the label; if these are not names, the file lacks a header:"
        f" put a first line with names above it.{separator_hint(columns)}"
    )


def text_columns(
    columns: Sequence[str],
    named: tuple[str, ...] | None,
    *,
    labels: tuple[str, ...],
    origin: str,
    describe: Describe,
) -> tuple[str, ...]:
    """Return one column of texts, or two for pairs.

    The ones named; else a pair or a single name that is usual; else the only other column.

    Raises:
        InputError: When one is missing, when several choices are left, or when more than two are
            named.
    """
    if named is not None:
        if len(named) not in (1, 2) or len(set(named) - {*labels, "label"}) < len(named):
            raise InputError(
                f"--text_column_names: received {','.join(named)}. Name one column of texts, or "
                f"two different ones for pairs (a,b); neither may be a column of labels "
                f"({', '.join(labels)}) or be called 'label'."
            )
        require(named, columns, "--text_column_names", origin=origin, describe=describe)
        return named
    others = [name for name in columns if name not in (*labels, "label")]
    pairs = [pair for pair in PAIRS if set(pair) <= set(others)]
    paired = set(chain.from_iterable(pairs))
    choices = [*pairs, *((name,) for name in TEXTS if name in others and name not in paired)]
    if not choices and len(others) == 1:
        return (others[0],)
    if len(choices) == 1:
        return choices[0]
    what = "several columns that may be the text" if choices else "no column with a usual name"
    raise InputError(
        f"--text_column_names: {origin} has {what}. Its columns: {describe()}. Say which, for"
        " example --text_column_names text, or a,b for pairs. If these are not names, the file"
        f" lacks a header: put a first line with names above it.{separator_hint(columns)}"
    )


def require(
    names: Sequence[str], columns: Sequence[str], flag: str, *, origin: str, describe: Describe
) -> None:
    """Raise InputError, listing what is there, when a column is missing."""
    missing = [name for name in names if name not in columns]
    if missing:
        raise InputError(
            f"{flag}: {origin} has no column {', '.join(map(shown, missing))}. Its columns:"
            f" {describe()}.{nearest(missing[0], columns)} If these are not names, the file lacks a"
            f" header: put a first line with names above it.{separator_hint(columns)}"
        )


def separator_hint(columns: Sequence[str]) -> str:
    """Say so when the only column's name holds what looks like another separator."""
    if len(columns) == 1:
        for separator, name in SEPARATORS.items():
            if separator in columns[0]:
                return f" It seems to be separated by {name}; .csv wants commas, .tsv tabs."
    return ""
