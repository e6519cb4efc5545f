"""Files of class names, of words with tags and of masks: `--class_names_file`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampft.errors import InputError, quoted

MAX_CLASSES = 255
SIGN = "#"  # begins a comment; alone in its line it is a class, as among the Penn Treebank's tags
Color = tuple[int, int, int]
FLAG = "--class_names_file"
FORMATS = (
    "Write one name per line, with an optional colour (Road 128 64 128), or JSON: "
    '["Sky", "Road"] or [{"name": "Road", "color": [128, 64, 128]}, ...]; "ignore": true marks '
    "colours that do not count."
)


# First lines of the tables that CamVid has at Kaggle, and that Roboflow writes beside masks.
_HEADER = re.compile(r"\s*name\s*,\s*r(?:ed)?\s*,\s*g(?:reen)?\s*,\s*b(?:lue)?\s*", re.IGNORECASE)
_NUMBERED_HEADER = re.compile(r"\s*pixel value\s*,\s*class\s*", re.IGNORECASE)


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
    classes = [entry for entry in entries if not entry.ignore]
    if not 2 <= len(classes) <= MAX_CLASSES:
        raise InputError(
            f"{FLAG} {path}: {len(classes)} classes; there must be 2 to {MAX_CLASSES}. {FORMATS}"
        )
    names = [entry.name for entry in entries]
    colors = [entry.color for entry in entries if entry.color is not None]
    twice: list[tuple[str, object]] = [("name", name) for name in names if names.count(name) > 1]
    twice += [("colour", color) for color in colors if colors.count(color) > 1]
    if twice:
        what, value = twice[0]
        raise InputError(f"{FLAG} {path}: the {what} {quoted(value)} occurs twice.")
    without = [entry.name for entry in entries if entry.color is None]
    if 0 < len(without) < len(entries):
        raise InputError(
            f"{FLAG} {path}: {quoted(without[0])} has no colour, and other classes have one. Give "
            "every class a colour, or none."
        )
    return tuple(entries)


def _lines(path: Path, text: str) -> list[ClassEntry]:
    entries = list[ClassEntry]()
    are_numbered = False
    for number, line in enumerate(text.splitlines(), start=1):
        is_comment = line.lstrip().startswith("#") and line.strip() != SIGN
        if not line.strip() or is_comment or _HEADER.fullmatch(line):
            continue
        if _NUMBERED_HEADER.fullmatch(line):
            are_numbered = True
            continue
        if are_numbered:
            value, _, name = line.partition(",")
            if value.strip() != str(len(entries)):
                raise InputError(
                    f"{FLAG} {path}, line {number}: received {quoted(line)}; the values of the "
                    f"classes must be 0, 1, 2, ..., so {len(entries)} is the next. {FORMATS}"
                )
            line = name
        found = re.fullmatch(r"\s*(.+?)(?:[\s,:]+(\d+)[\s,]+(\d+)[\s,]+(\d+)[\s:]*)?\s*", line)
        assert found is not None, "a line that is not blank has a name"
        name, *channels = found.groups()
        color = None if channels[0] is None else _color(f"{FLAG} {path}, line {number}", channels)
        entries.append(ClassEntry(name, color))
    return entries


def _json_entries(path: Path, text: str) -> list[ClassEntry]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{FLAG} {path}: not valid JSON ({error}). {FORMATS}") from None
    if not isinstance(values, list):
        raise InputError(f"{FLAG} {path}: the JSON is not a list. {FORMATS}")
    entries = []
    for number, value in enumerate(values, start=1):
        where = f"{FLAG} {path}, entry {number}"
        entry = {"name": value} if isinstance(value, str) else value
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InputError(f"{where}: received {quoted(value)}. {FORMATS}")
        unknown = entry.keys() - {"name", "color", "ignore"}
        if unknown:
            raise InputError(f"{where}: unknown key {quoted(min(unknown))}. {FORMATS}")
        color = entry.get("color")
        color = None if color is None else _color(where, color)
        entries.append(ClassEntry(entry["name"], color, entry.get("ignore") is True))
    return entries


def _color(where: str, channels: Any) -> Color:
    try:
        red, green, blue = (int(channel) for channel in channels)
    except (TypeError, ValueError):
        red = green = blue = -1
    if not all(0 <= channel <= 255 for channel in (red, green, blue)):
        raise InputError(
            f"{where}: the colour must be three whole numbers from 0 to 255, received"
            f" {quoted(channels)}."
        )
    return red, green, blue
