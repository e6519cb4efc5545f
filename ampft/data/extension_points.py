"""What add-ons add to reading data: formats, kinds of files, words, masks, and checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ampft.registry import ExtensionPoint

if TYPE_CHECKING:
    from json import JSONDecoder

    import numpy as np
    import numpy.typing as npt
    from datasets import DatasetDict, Features

    from ampft.data.columns import DataColumns
    from ampft.data.dataset import ClassificationData
    from ampft.data.labelled_rows import LabelledRows
    from ampft.data.media_kind import MediaKind
    from ampft.data.request import DataRequest
    from ampft.data.sources.source_table import SourceTable

    Loaded = tuple[dict[str, LabelledRows], DataColumns, list[str]]  # As in `table_rows`.


class TextNotes(Protocol):
    """Returns notes on training texts that a program seems to have changed."""

    def __call__(self, train: LabelledRows, columns: DataColumns) -> list[str]: ...


class ContradictionNotes(Protocol):
    """Returns notes on rows with equal inputs and different labels."""

    def __call__(self, train: LabelledRows, digests: npt.NDArray[np.uint64]) -> list[str]: ...


class HiddenCellNotes(Protocol):
    """Returns notes on hidden rows, columns and sheets of a workbook."""

    def __call__(
        self, worksheet: Any, columns: Mapping[str, int], path: Path, sheets: Sequence[str]
    ) -> tuple[str, ...]: ...


class FileReader(Protocol):
    """Opens a file of one format."""

    def __call__(self, path: Path, *, encoding: str) -> SourceTable:
        """Read the header of `path` and return the table."""
        ...


class WordFiles(Protocol):
    """Recognizes and reads files with a word and its tag per line."""

    def has_line_per_word(self, path: Path, encoding: str) -> bool:
        """Return whether the first lines of a file are words with tags."""
        ...

    def read_as_conll(self, path: Path, *, encoding: str) -> SourceTable:
        """Open such a file, whatever its name ends in; a note says so."""
        ...


@dataclass(frozen=True)
class TaggedWords:
    """How rows of words with a tag each are recognized and read."""

    are_columns: Callable[[SourceTable], bool]  # Whether columns show that they hold them.
    are_files: Callable[[DataRequest], bool]  # Whether the files of a request do.
    read_files: Callable[[DataRequest], Loaded]
    # Reads the tables of each split, given the request and earlier notes.
    read_tables: Callable[[Mapping[str, Sequence[SourceTable]], DataRequest, Sequence[str]], Loaded]


@dataclass(frozen=True)
class Masks:
    """How images with masks are recognized and read."""

    column_names: Collection[str]  # In lower case.
    # Return the folders of images and masks by split; empty without masks.
    find_folders: Callable[[Path], Mapping[str, object]]
    # Reads, checks and splits them; returns None if a request is for other data.
    load: Callable[[DataRequest, DatasetDict | None], ClassificationData | None]


class OtherFormats(Protocol):
    """Says what files are that no reader reads, and what to do with them."""

    def is_refused(self, path: Path) -> bool:
        """Return whether a file with this ending is not even read as words with tags."""
        ...

    def advice(self, path: Path, encoding: str) -> str | None:
        """Return what to do with a file whose ending no reader has; None if it is not known."""
        ...

    def check_content(self, path: Path, flag: str) -> None:
        """Check that a file is not of another format than its ending says."""
        ...


class JsonObjects(Protocol):
    """Reads JSON files that hold one object, or several that span lines."""

    def rows_of_object(self, item: Mapping[str, Any], path: Path) -> tuple[list[Any], str] | None:
        """Return the rows that an object holds, and a note; None if it is a row."""
        ...

    def consecutive_objects(self, text: str, decoder: JSONDecoder) -> list[Any] | None:
        """Return the objects of a text that has them one after another; None for another text."""
        ...


FILE_KINDS: ExtensionPoint[Mapping[str, MediaKind]] = ExtensionPoint(
    "media", "reads images and sounds"
)
FILE_READERS = ExtensionPoint[Mapping[str, FileReader]]("words", "reads files of words")
WORD_FILES = ExtensionPoint[WordFiles]("words", "reads files of words")
TAGGED_WORDS = ExtensionPoint[TaggedWords]("words", "reads words with tags")
MASKS = ExtensionPoint[Masks]("media", "reads images with masks")
OTHER_FORMATS = ExtensionPoint[OtherFormats]("checks", "recognizes files of other formats")
JSON_OBJECTS = ExtensionPoint[JsonObjects]("integrations", "reads JSON objects that span lines")
# Returns the task that the types of columns show; None if they show none.
DECLARED_TASK: ExtensionPoint[Callable[[Features, DataRequest], str | None]] = ExtensionPoint(
    "labels", "reads the task of a data set from the types of its columns"
)
TEXT_NOTES = ExtensionPoint[TextNotes]("checks", "finds garbled texts")
CONTRADICTION_NOTES = ExtensionPoint[ContradictionNotes]("checks", "finds contradicting labels")
HIDDEN_CELL_NOTES = ExtensionPoint[HiddenCellNotes]("checks", "finds hidden cells")
