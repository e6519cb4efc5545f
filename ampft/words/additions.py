"""What this add-on adds to the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ampft.data.extension_points import (
    FILE_READERS,
    TAGGED_WORDS,
    WORD_FILES,
    FileReader,
    TaggedWords,
    WordFiles,
)
from ampft.tasks.extension_points import TASK_ROWS

if TYPE_CHECKING:
    from ampft.tasks import TaskRow


@TASK_ROWS.add
def tasks() -> Mapping[str, TaskRow]:
    """Return the task of words with tags."""
    from ampft.words.tasks import TASKS

    return TASKS


@FILE_READERS.add
def readers() -> Mapping[str, FileReader]:
    """Return the readers of CoNLL files, by ending."""
    from ampft.words.conll import READERS

    return READERS


@WORD_FILES.add
def word_files() -> WordFiles:
    """Return what recognizes and reads files with a word and its tag per line."""
    from ampft.words import conll

    return conll


@TAGGED_WORDS.add
def tagged_words() -> TaggedWords:
    """Return what recognizes and reads rows of words with tags."""
    from ampft.words.reading import are_token_files, read_token_files, read_token_tables
    from ampft.words.word_columns import are_token_columns

    return TaggedWords(are_token_columns, are_token_files, read_token_files, read_token_tables)
