"""Kinds of data: what the rows of a data set are, and all that follows from it.

A `Kind` is the only place that knows its kind: training, prediction, model card, errors,
comparison and doctor ask it. It is light; its modules are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ampft.text.page import ShownCase

if TYPE_CHECKING:
    from datasets import DatasetDict

    from ampft.data.dataset import ClassificationData
    from ampft.data.request import DataRequest
    from ampft.kinds.inputs import KindModule
    from ampft.kinds.prediction import InputRows, PredictRequest, RowOutput, TrainingInfo
    from ampft.kinds.views import Case

LONGEST_TEXT = 1200  # characters of a text in a page
MANY_TRUNCATED = 0.1  # share of truncated training texts from which a note advises another length


def import_object(name: str) -> Any:
    """Return the object `module:name`."""
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)


def lazy_function(name: str, *first: Any) -> Any:
    """Return the function `module:name`, whose module is imported when it is called."""
    return lambda *others: import_object(name)(*first, *others)


_LOAD_DATA = lazy_function("ampft.data.load:load_data")
_TEXT_ROW = lazy_function("ampft.kinds.receipt:text_row")
_LABEL_OUTPUT = lazy_function("ampft.kinds.prediction:label_output")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of data."""

    name: str  # Name in records and messages, such as "token".
    case: str  # Noun for one case, such as "sentence".
    module: str  # Module with the functions of `inputs.KindModule`, which make tensors.
    # Function that returns the rows that a prediction request names.
    open_rows: Callable[[PredictRequest, TrainingInfo], InputRows]
    # Function that returns the inputs of each row of one input or of a list.
    rows_in_memory: Callable[[Any, TrainingInfo], Sequence[tuple[Any, ...]]]
    # Function that reads, checks and splits the data of a request, or those in memory.
    load: Callable[[DataRequest, DatasetDict | None], ClassificationData] = _LOAD_DATA
    # Function that returns whether a folder shows by its layout that it holds this kind.
    holds: Callable[[Path], object] = lambda folder: False
    # Function that returns four inputs in memory, of unequal lengths if the kind has any, from the
    # number of input columns: a model is traced with them. None if models of the kind cannot be
    # exported.
    samples: Callable[[int], Sequence[Any]] | None = None
    # Function that shows a case, or returns None if it cannot be read; None if cases are shown as
    # their texts.
    view: Callable[[Case], ShownCase | None] | None = None
    # Function that returns what a prediction adds to its rows, from the request and the
    # configuration of the model.
    new_output: Callable[[PredictRequest, Any], RowOutput] = _LABEL_OUTPUT
    # Function that returns what a pipeline of transformers answers, from a `served.Question`; None
    # if no pipeline reads the kind.
    ask: Callable[[Any], Any] | None = None
    # Function that returns where a training row was read, its label and its input, in short.
    receipt_row: Callable[[ClassificationData, int], tuple[str, str, str]] = _TEXT_ROW
    # Largest number of rows of a forward pass of prediction; None for no limit.
    max_rows: int | None = None
    # Parts of a case that have classes, in words; None if whole cases have classes.
    units: str | None = None
    # Flags that have an effect on this kind, and not on all kinds.
    flags: frozenset[str] = frozenset()
    # Settings with another default than for other kinds.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_default_data: bool = False  # Whether the data set that is used by default is of this kind.
    # Whether a case consists of words, and has as many tokens as its length says.
    has_words: bool = False
    has_texts: bool = False  # Whether a case consists of one or two texts, and of nothing else.
    # Input of a pipeline for one input column, and for two, as Python source.
    examples: tuple[str, ...] = ("...",)
    processor: str = "tokenizer"  # Argument of a pipeline for the tokenizer or another processor.
    # Whether long cases are always split into windows, which a pipeline does not.
    has_windows: bool = False
    # Whether cases are files, which take time to decode and much room in a page.
    has_files: bool = False

    def example(self, columns: int) -> str:
        """Return an input of a pipeline as Python source.

        Args:
            columns: Number of input columns.
        """
        return self.examples[min(columns, len(self.examples)) - 1]

    def show(self, case: Case) -> ShownCase:
        """Return how a page shows a case; as texts if it cannot be read."""
        shown = None if self.view is None else self.view(case)
        return shown or ShownCase(texts={name: _cut(text) for name, text in case.inputs.items()})

    @property
    def tensors(self) -> KindModule:
        """The functions that make tensors; the models of the kind are registered then."""
        return cast("KindModule", import_module(self.module))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


OF_TOKENS = ("max_seq_length", "long_text", "stride", "padding", "pad_to_multiple_of")
OF_WORDS = frozenset({*OF_TOKENS, "token_buckets"})

TEXT = Kind(
    name="text",
    case="text",
    module="ampft.kinds.text",
    open_rows=lazy_function("ampft.kinds.rows:text_rows"),
    rows_in_memory=lazy_function("ampft.kinds.rows:rows_in_memory", "text"),
    ask=lazy_function("ampft.integrations.pipeline_answers:ask_text"),
    samples=lazy_function("ampft.kinds.rows:sample_texts"),
    flags=OF_WORDS,
    has_default_data=True,
    has_words=True,
    has_texts=True,
    examples=('"a text"', '{"text": "one text", "text_pair": "another"}'),
)
