"""What the bytes of a text file say of its encoding, held against the requested one."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from ampft.errors import InputError

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
            raise InputError(f"{path}: seems to be UTF-16. Pass --encoding {order}.")
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
