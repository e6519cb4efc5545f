"""Names and colours of classes from a file, for masks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampft.data.masks import MAX_CLASSES, Color
from ampft.errors import InputError, quoted

FLAG = "--class_names_file"
FORMATS = (
    "Write one name per line, with an optional colour (Road 128 64 128), or JSON: "
    '["Sky", "Road"] or [{"name": "Road", "color": [128, 64, 128]}, ...]; "ignore": true marks '
    "colours that do not count."
)


@dataclass(frozen=True)
class ClassEntry:
    """A class of the file: its name, its colour in colour masks, and whether it is ignored."""

    name: str
    color: Color | None = None
    ignore: bool = False


def read_class_names(path: Path) -> tuple[ClassEntry, ...]:
    """Read the classes of a file; without `ignore`, the n-th is the value n - 1 of masks.

    Raises:
        InputError: The file cannot be read, has another format, or has a name or a colour twice;
            the message names the line or entry.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{FLAG} {path}: cannot be read ({error}).") from error
    entries = _json_entries(path, text) if path.suffix.lower() == ".json" else _lines(path, text)
    _check(path, entries)
    return tuple(entries)


def _lines(path: Path, text: str) -> list[ClassEntry]:
    entries = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = re.fullmatch(r"\s*(.+?)(?:[\s,:]+(\d+)[\s,]+(\d+)[\s,]+(\d+))?\s*", line)
        assert found is not None, "a line that is not blank has a name"
        name, *channels = found.groups()
        color = None if channels[0] is None else _color(path, f"line {number}", channels)
        entries.append(ClassEntry(name, color))
    return entries


def _json_entries(path: Path, text: str) -> list[ClassEntry]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{FLAG} {path}: not valid JSON ({error}). {FORMATS}") from None
    if not isinstance(values, list):
        raise InputError(f"{FLAG} {path}: the JSON is not a list. {FORMATS}")
    return [_entry(path, f"entry {i}", value) for i, value in enumerate(values, start=1)]


def _entry(path: Path, where: str, value: Any) -> ClassEntry:
    entry = {"name": value} if isinstance(value, str) else value
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InputError(f"{FLAG} {path}, {where}: received {quoted(value)}. {FORMATS}")
    unknown = entry.keys() - {"name", "color", "ignore"}
    if unknown:
        raise InputError(f"{FLAG} {path}, {where}: unknown key {quoted(min(unknown))}. {FORMATS}")
    color = entry.get("color")
    return ClassEntry(
        entry["name"],
        None if color is None else _color(path, where, color),
        entry.get("ignore") is True,
    )


def _color(path: Path, where: str, channels: Any) -> Color:
    try:
        red, green, blue = (int(channel) for channel in channels)
    except (TypeError, ValueError):
        red = green = blue = -1
    if not all(0 <= channel <= 255 for channel in (red, green, blue)):
        raise InputError(
            f"{FLAG} {path}, {where}: the colour must be three whole numbers from 0 to 255, "
            f"received {quoted(channels)}."
        )
    return red, green, blue


def _check(path: Path, entries: list[ClassEntry]) -> None:
    counted = [entry for entry in entries if not entry.ignore]
    if not 2 <= len(counted) <= MAX_CLASSES:
        raise InputError(
            f"{FLAG} {path}: {len(counted)} classes; there must be 2 to {MAX_CLASSES}. {FORMATS}"
        )
    for what, values in (
        ("name", [entry.name for entry in entries]),
        ("colour", [entry.color for entry in entries if entry.color is not None]),
    ):
        twice = [value for value in values if values.count(value) > 1]  # type: ignore[arg-type]
        if twice:
            raise InputError(f"{FLAG} {path}: the {what} {quoted(twice[0])} occurs twice.")
    without = [entry.name for entry in entries if entry.color is None]
    if 0 < len(without) < len(entries):
        raise InputError(
            f"{FLAG} {path}: {quoted(without[0])} has no colour, and other classes have one. Give "
            "every class a colour, or none."
        )
