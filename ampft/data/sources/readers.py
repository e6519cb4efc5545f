"""Opens CSV, TSV, JSON, JSON Lines, Parquet, Excel and CoNLL files as tables."""

from __future__ import annotations

import codecs
import re
from dataclasses import replace
from pathlib import Path

from ampft.data.extension_points import FILE_READERS, OTHER_FORMATS, WORD_FILES, FileReader
from ampft.data.request import DataRequest
from ampft.data.sources.binary_files import WORKBOOK_SUFFIXES, read_parquet, read_workbook
from ampft.data.sources.file_names import check_file
from ampft.data.sources.source_table import SourceTable
from ampft.data.sources.text_files import read_csv, read_json, read_tsv
from ampft.errors import EncodingError, InputError

# Byte-order marks; UTF-32's begins with UTF-16's.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_CONTROLS = re.compile(rb"[\x80-\x9f]")


def stated_encoding(path: Path, encoding: str) -> tuple[str, tuple[str, ...]]:
    """Return the encoding to read a file in, and a note if it is another or seems wrong.

    A byte-order mark of UTF-16 or UTF-32 counts if no encoding is requested.

    Raises:
        InputError: The byte-order mark is of another encoding than the requested one, or the text
            is UTF-16 without such a mark.
    """
    try:
        asked = codecs.lookup(encoding).name
    except (LookupError, ValueError):
        return encoding, ()  # whoever opens the file reports it
    with path.open("rb") as file:
        start = file.read(4)
        marked = next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)
    if marked is None:
        order = {start[1::2]: "utf-16-le", start[::2]: "utf-16-be"}.get(b"\0\0")
        if order is not None and asked == "utf-8":
            raise EncodingError(
                f"{path}: seems to be UTF-16. Pass --encoding {order}.",
                problem=f"{path}: seems to be UTF-16",
                likely=order,
            )
        return encoding, _notes_on_controls(path, asked)
    if asked.removesuffix("-sig").startswith(marked):  # such as utf-16-le, which keeps the mark
        return marked, ()
    if asked == "utf-8":
        return marked, (f"{path}: read as {marked.upper()}, as its byte-order mark says.",)
    raise InputError(
        f"--encoding {encoding}: {path} begins with the byte-order mark of {marked.upper()}. Remove"
        f" the flag, or pass --encoding {marked}."
    )


def _notes_on_controls(path: Path, asked: str) -> tuple[str, ...]:
    """Return a note on bytes that are control characters in Latin-1 and signs in Windows-1252."""
    if asked != "iso8859-1":
        return ()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if found := _CONTROLS.search(line):
                sign = found[0].decode("cp1252", "replace")
                return (
                    f"{path}, line {number}: the byte 0x{found[0][0]:02x} is a control character in"
                    f" {asked} and {sign!r} in Windows-1252. If that is meant, pass"
                    " --encoding cp1252.",
                )
    return ()


READERS: dict[str, FileReader] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".tab": read_tsv,
    ".json": read_json,
    ".jsonl": read_json,
    ".ndjson": read_json,
    ".parquet": read_parquet,
}
for _added in FILE_READERS.all():
    READERS |= _added
FLAGS = {"train": "--train_file", "validation": "--validation_file", "test": "--test_file"}
WITHOUT_ENCODING = (".parquet",)  # endings of formats whose texts are always UTF-8
OF_TABLES = (".tsv", ".tab")  # endings that files with a line per word have too


def open_table(
    path: Path,
    *,
    flag: str,
    encoding: str | None,
    sheet: str | None = None,
    other_reader: FileReader | None = None,
) -> SourceTable:
    """Open a file with the reader of its extension.

    Args:
        flag: The flag that named it, for the messages.
        encoding: Character encoding of CSV, TSV and JSON files; None if no flag chooses it: UTF-8.
        sheet: Sheet of an Excel workbook; None takes the first one.
        other_reader: Reader of files with any other extension; None refuses them.

    Raises:
        InputError: The file does not exist, its extension is unknown, or it cannot be read.
    """
    if encoding is None:
        try:
            return open_table(
                path, flag=flag, encoding="utf-8", sheet=sheet, other_reader=other_reader
            )
        except EncodingError as error:
            raise InputError(
                f"{error.problem}. Save the file in UTF-8, or convert it:"
                f" iconv -f {error.likely} -t utf-8 {path.name} > new{path.suffix}"
            ) from None
    if path.is_dir():
        check_file(path, flag=flag)
    suffix = path.suffix.lower()
    others = OTHER_FORMATS.get()
    known = (*READERS, *WORKBOOK_SUFFIXES)
    is_refused = other_reader is None or (others is not None and others.is_refused(path))
    if suffix not in known and is_refused:
        advice = None if others is None else others.advice(path, encoding)
        raise InputError(
            f"{flag}: received {path}; the name must end in one of {', '.join(known)}."
            f" {advice or 'Convert the file, and name it by its format.'}"
        )
    check_file(path, flag=flag)
    if suffix in WORKBOOK_SUFFIXES:
        return read_workbook(path, flag=flag, sheet=sheet)
    if others is not None:
        others.check_content(path, flag)
    if sheet is not None:
        raise InputError(
            f"--sheet_name: {path} is not an Excel workbook. Remove the flag, or pass"
            f" {' or '.join(WORKBOOK_SUFFIXES)} files."
        )
    reader = READERS.get(suffix, other_reader)
    words = WORD_FILES.get() if suffix in OF_TABLES else None
    if words is not None and words.has_line_per_word(path, encoding):
        reader = words.read_as_conll
    assert reader is not None, "other extensions were refused"
    if suffix in WITHOUT_ENCODING:
        return reader(path, encoding=encoding)
    encoding, notes = stated_encoding(path, encoding)
    table = reader(path, encoding=encoding)
    return replace(table, notes=(*notes, *table.notes))


def open_tables(
    request: DataRequest, other_reader: FileReader | None = None
) -> dict[str, list[SourceTable]]:
    """Open the files of a request, by split; for `other_reader` see `open_table`."""
    return {
        split: [
            open_table(
                path,
                flag=request.flag_of(split),
                encoding=request.encoding,
                sheet=request.sheet_name,
                other_reader=other_reader,
            )
            for path in paths
        ]
        for split, paths in request.paths().items()
    }
