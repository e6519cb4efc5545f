"""Texts that a program changed before they came here: notes on what most likely happened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np

from ampft.data.columns import DataColumns
from ampft.data.dataset import cells
from ampft.data.labelled_rows import LabelledRows
from ampft.data.media import MEDIA
from ampft.data.row_labels import NUMBER
from ampft.errors import InputError, quoted
from ampft.text.numbers import counted

MOST_ROWS = 100_000  # rows that are examined
PLAIN_TEXT = (".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson", ".txt", ".conll")
_OF_FILES = "Read the file with its encoding (--encoding), or repair it: ftfy FILE > NEW."
_OF_TABLES = "Repair the texts with ftfy.fix_text of the package ftfy."
LEAST_SHARE = 0.5  # of the texts, for what single texts can have
# Characters that the bytes 0x80 to 0xbf are in Windows-1252, which continue a character of UTF-8.
_CONTINUES = "".join(bytes([b]).decode("cp1252", "ignore") for b in range(0x80, 0xC0)) + "\x81\x9d"
_IN_TWO = re.compile(rf"[ÂÃ][{re.escape(_CONTINUES)}]|â€[{re.escape(_CONTINUES)}]|ðŸ|ï¿½")
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|nbsp|#\d{1,5});")
_BYTES = re.compile(r"b'.*'|b\".*\"", re.DOTALL)
# Recordings and films, which need ffmpeg, and documents: files that are not read.
_UNREAD = re.compile(
    r"[^\s]{1,255}\.(?:m4a|aac|wma|amr|webm|mp4|mkv|mov|avi|3gp|heic|heif|svg|pdf|docx?|npy|dcm)",
    re.IGNORECASE,
)
_SOUND = re.compile(r".*\.(?:m4a|aac|wma|amr|webm|mp4|mkv|mov|avi|3gp)", re.IGNORECASE)


def text_notes(train: LabelledRows, columns: DataColumns) -> list[str]:
    """Return notes on training texts that a program seems to have changed.

    Raises:
        InputError: All texts are names of files of a kind that is not read.
    """
    if columns.kind in MEDIA or not len(train.inputs):
        return []
    notes = []
    for column in columns.inputs:
        notes += _garbled(train, column)
        if not columns.labels.per_unit:
            notes += _unfit(train, column)
    return notes


def _texts(train: LabelledRows, column: str) -> Iterator[str]:
    for (value,) in islice(cells(train.inputs, (column,)), MOST_ROWS):
        yield " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _garbled(train: LabelledRows, column: str) -> list[str]:
    """Return notes on characters that were decoded wrongly, or lost."""
    in_two, lost = list[int](), list[int]()
    example = ""
    for row, text in enumerate(_texts(train, column)):
        if text.isascii():
            continue
        if found := _IN_TWO.search(text):
            in_two.append(row)
            example = example or found[0]
        if "\ufffd" in text:
            lost.append(row)
    notes = []
    if in_two:
        is_plain = Path(train.origin).suffix.lower() in PLAIN_TEXT
        meant = ""
        with suppress(UnicodeError):
            meant = example.encode("cp1252").decode("utf-8")
        notes.append(
            f"{counted(len(in_two), 'training text')} with characters such as {quoted(example)}"
            f"{meant and f' for {quoted(meant)}'}: UTF-8 that a program read as Windows-1252, first"
            f" in {train.location(np.array(in_two[:1]))}. "
            f"{_OF_FILES if is_plain else _OF_TABLES}"
        )
    if lost:
        notes.append(
            f"{counted(len(lost), 'training text')} with \\ufffd, which stands for a lost "
            f"character, first in {train.location(np.array(lost[:1]))}. Write the texts again from "
            "their source."
        )
    return notes


def _unfit(train: LabelledRows, column: str) -> Iterator[str]:
    """Yield notes on what most texts are written in, or are instead of texts."""
    count = numbers = entities = of_bytes = in_quotes = files = 0
    first = ""
    for text in _texts(train, column):
        stripped = text.strip()
        first = first or stripped
        count += 1
        numbers += NUMBER.fullmatch(stripped) is not None
        entities += "&" in text and _ENTITY.search(text) is not None
        of_bytes += _BYTES.fullmatch(stripped) is not None
        in_quotes += len(stripped) > 1 and stripped[0] == stripped[-1] == "'"
        files += _UNREAD.fullmatch(stripped) is not None
    if files == count:
        advice = "Convert each with a program that reads it."
        if _SOUND.fullmatch(first):
            advice = "Convert them to sounds, such as: ffmpeg -i IN.m4a -ac 1 OUT.wav"
        raise InputError(
            f"{train.origin}: the texts in column {quoted(column)} are names of files, such as "
            f"{quoted(first)}, which are not read. {advice}"
        )
    if numbers == count:
        yield (
            f"{quoted(column)} contains only numbers, which a text model reads as words, not as "
            "quantities. If the texts are in another column, pass --text_column_names."
        )
    for found, what in (
        (entities, "character references of HTML, such as &amp; (html.unescape of Python)"),
        (of_bytes, "Python's bytes, such as b'a text' (decode them before they are written)"),
        (in_quotes, "single quotes around the text, which are kept"),
    ):
        if found > LEAST_SHARE * count:
            yield f"{found:,} of {counted(count, 'training text')} have {what}."
