"""Kinds of data: what the rows of a data set are, and all that follows from it.

A `Kind` is the only place that knows its kind: training, prediction, model card, errors,
comparison and doctor ask it. It is light; its modules are imported when they are needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ampft.text.shown_case import ShownCase

if TYPE_CHECKING:
    from datasets import DatasetDict

    from ampft.data.dataset import ClassificationData
    from ampft.data.request import DataRequest
    from ampft.kinds.inputs import KindModule
    from ampft.kinds.prediction import InputRows, PredictRequest, RowOutput, Trained
    from ampft.kinds.views import Case

LONGEST_TEXT = 1200  # characters of a text in a page


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of data.

    Attributes:
        name: Name in records and messages, such as "token".
        case: Noun for one case, such as "sentence".
        module: Module with the functions of `inputs.KindModule`, which make tensors.
        reader: Module and, after a colon, the function that reads the data of a request.
        folders: Module and function that return what a folder holds of this kind, which is nothing
            if the folder holds something else; None if a folder does not show its kind.
        rows: Module and the function that returns the rows that a prediction request names.
        memory: Module and the function that returns the rows of inputs in memory.
        view: Module and function that show a case; None if it is shown as its texts.
        output: Module and the function of what `ampft predict` adds, see `prediction.RowOutput`.
        max_rows: Largest number of rows of a forward pass of prediction; None for no limit.
        units: Parts of a case that have classes, in words; None if whole cases have classes.
        flags: Flags that have an effect on this kind, and not on all kinds.
        defaults: Settings with another default than for other kinds.
        has_default_data: Whether the data set that is used by default is of this kind.
        has_words: Whether a case consists of words, and has as many tokens as its length says.
        has_texts: Whether a case consists of one or two texts, and of nothing else.
        examples: Input of a pipeline for one input column, and for two, as Python source.
        processor: Argument of a pipeline for the tokenizer or another processor.
        has_windows: Whether long cases are always split into windows, which a pipeline does not.
        has_files: Whether cases are files, which take time to decode and much room in a page.
    """

    name: str
    case: str
    module: str
    rows: str
    memory: str
    reader: str = "ampft.data.load:load_data"
    folders: str | None = None
    view: str | None = None
    output: str = "ampft.kinds.prediction:label_output"
    max_rows: int | None = None
    units: str | None = None
    flags: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_default_data: bool = False
    has_words: bool = False
    has_texts: bool = False
    examples: tuple[str, ...] = ("...",)
    processor: str = "tokenizer"
    has_windows: bool = False
    has_files: bool = False

    def load(self, request: DataRequest, data: DatasetDict | None = None) -> ClassificationData:
        """Read, check and split the data of a request.

        Args:
            request: The user's choices.
            data: Data in memory, by split; None reads those that the request names.

        Raises:
            InputError: The data or the options must be corrected.
        """
        loaded: ClassificationData = imported(self.reader)(request, data)
        return loaded

    def example(self, columns: int) -> str:
        """Return an input of a pipeline as Python source.

        Args:
            columns: Number of input columns.
        """
        return self.examples[min(columns, len(self.examples)) - 1]

    def show(self, case: Case) -> ShownCase:
        """Return how a page shows a case; as texts if it cannot be read."""
        shown: ShownCase | None = None if self.view is None else imported(self.view)(case)
        return shown or ShownCase(texts={name: _cut(text) for name, text in case.inputs.items()})

    def open_rows(self, request: PredictRequest, trained: Trained) -> InputRows:
        """Return the rows that a request names.

        Raises:
            InputError: They cannot be read, or an option does not fit.
        """
        rows: InputRows = imported(self.rows)(request, trained)
        return rows

    def rows_in_memory(self, inputs: Any, trained: Trained) -> Sequence[tuple[Any, ...]]:
        """Return the inputs of each row of one input, or of a list.

        Raises:
            InputError: A row is not one that the model reads.
        """
        rows: Sequence[tuple[Any, ...]] = imported(self.memory)(inputs, trained)
        return rows

    def new_output(self, request: PredictRequest, config: Any) -> RowOutput:
        """Return what a prediction adds to its rows.

        Args:
            request: The user's choices.
            config: Configuration of the model.
        """
        output: RowOutput = imported(self.output)(request, config)
        return output

    def holds(self, folder: Path) -> bool:
        """Return whether the layout of a folder shows that it holds data of this kind."""
        return self.folders is not None and bool(imported(self.folders)(folder))

    @property
    def tensors(self) -> KindModule:
        """The functions that make tensors; the models of the kind are registered then."""
        return cast("KindModule", import_module(self.module))


def imported(name: str) -> Any:
    """Return the object `module:name`."""
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


_OF_TOKENS = ("max_seq_length", "long_text", "stride", "padding", "pad_to_multiple_of")
_OF_WORDS = frozenset({*_OF_TOKENS, "token_buckets"})

TEXT = Kind(
    name="text",
    case="text",
    module="ampft.kinds.text",
    rows="ampft.kinds.rows:text_rows",
    memory="ampft.kinds.rows:texts_in_memory",
    flags=_OF_WORDS,
    has_default_data=True,
    has_words=True,
    has_texts=True,
    examples=('"a text"', '{"text": "one text", "text_pair": "another"}'),
)
WORDS = Kind(
    name="token",
    case="sentence",
    module="ampft.kinds.words",
    rows="ampft.kinds.sentences:open_rows",
    memory="ampft.kinds.sentences:rows_in_memory",
    view="ampft.kinds.views:sentence",
    output="ampft.kinds.sentences:sentence_output",
    units="words, which have a class each",
    flags=_OF_WORDS,
    has_words=True,
    examples=('"a text"',),
    has_windows=True,
)
IMAGES = Kind(
    name="image",
    case="image",
    module="ampft.kinds.images",
    rows="ampft.kinds.rows:image_rows",
    memory="ampft.kinds.rows:images_in_memory",
    view="ampft.kinds.views:picture",
    flags=frozenset({"augment", "channels_last"}),
    examples=('"a picture.png"',),
    processor="image_processor",
    has_files=True,
)
SOUNDS = Kind(
    name="sound",
    case="sound",
    module="ampft.kinds.sounds",
    rows="ampft.kinds.rows:sound_rows",
    memory="ampft.kinds.rows:sounds_in_memory",
    view="ampft.kinds.views:sound",
    flags=frozenset({"augment"}),
    examples=('"a sound.wav"',),
    processor="feature_extractor",
    has_files=True,
)
PIXELS = Kind(
    name="pixels",
    case="image",
    module="ampft.kinds.pixels",
    rows="ampft.kinds.rows:mask_rows",
    memory="ampft.kinds.rows:images_in_memory",
    view="ampft.kinds.views:masks",
    output="ampft.kinds.predicted_masks:mask_output",
    max_rows=4,  # logits are as large as the images
    units="masks, which have a class per pixel",
    folders="ampft.data.sources.masks:find_mask_folders",
    flags=frozenset({"augment", "image_size", "multi_scale"}),
    # Images with a logit per pixel are large.
    defaults={"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4},
    examples=('"a picture.png"',),
    processor="image_processor",
    has_files=True,
)
