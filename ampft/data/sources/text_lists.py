"""Lists that a program wrote as text into a cell: by Python, NumPy or as JSON."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

# A list of Python or NumPy in brackets, with commas or, as NumPy writes it, blanks between values.
_OUTSIDE = re.compile(r"([\[({])(.*)([\])}])", re.S)
_QUOTED = r"""[uU]?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_BARE = r"True|False|None|nan|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_VALUE = re.compile(rf"\s*(?:np\.\w+\()?({_QUOTED}|{_BARE})\)?\s*(,?)", re.S)
# Also a list of R, c("a", "b"), an array of Postgres, {a,b}, and a list within a text of JSON.
_ALMOST = re.compile(r"\[.*[,;\s'\"].*\]$|\{.*\}$|[\[({\"]\s*['\"\[]|[\w.]+\(\s*[\[{'\"]", re.S)
_JOINED = re.compile(rf"{_QUOTED}\s+(?=[uU]?['\"])")  # strings that Python would join
_CHOICES = re.compile(r'\{\s*"choices"\s*:\s*(\[.*\])\s*\}', re.S)
_PAIRS = {"[": "]", "(": ")", "{": "}"}
_WORDS = {"True": True, "False": False, "None": None, "nan": None}


def list_in_text(cell: str) -> list[object] | None:
    """Return the values of a list that is written as text, or None if the text is no list.

    Args:
        cell: Text such as `['anger', 'joy']`, `["anger", "joy"]`, `[0 0 1]` or `{'joy'}`. Quotes
            around names are needed; `[anger, joy]` is no list.
    """
    text = cell.strip()
    if text in ("set()", "frozenset()"):
        return []
    outside = _OUTSIDE.fullmatch(text)
    if outside is None or _PAIRS[outside[1]] != outside[3]:
        return None
    if outside[1] == "[":
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    elif of_label_studio := _CHOICES.fullmatch(text):
        return list_in_text(of_label_studio[1])
    elif "'" not in text and '"' not in text:
        return None  # words in brackets
    try:
        found = list(_values(outside[2]))
    except SyntaxError:  # such as 007
        return None
    return None if None in found else [value for pair in found if pair for value in pair]


def list_or_cell(cell: Any) -> Any:
    """Return the list that a text or an object holds; any other cell unchanged."""
    if isinstance(cell, dict) and cell:
        if [*cell] == ["choices"]:  # of Label Studio
            return cell["choices"]
        if all(isinstance(value, bool | int | float) for value in cell.values()):  # of spaCy
            return [name for name, share in cell.items() if share >= 0.5]
        lengths = {len(value) if isinstance(value, list) else None for value in cell.values()}
        if len(lengths) == 1 and None not in lengths:  # columns, of `datasets`
            return [dict(zip(cell, row, strict=True)) for row in zip(*cell.values(), strict=True)]
    if not isinstance(cell, str) or not cell.lstrip().startswith("["):
        return cell
    found = list_in_text(cell)
    if found is None and not _JOINED.search(cell):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            found = ast.literal_eval(cell.strip())
    return cell if found is None else found


def seems_to_be_list(cell: str) -> bool:
    """Return whether a text that is no list has the brackets and separators of one."""
    return _ALMOST.match(cell.strip()) is not None


def _values(text: str) -> Iterator[tuple[object] | None]:
    """Yield each value of a list as a tuple, and None where the text is no list."""
    position, commas, count = 0, set[bool](), 0
    while text[position:].strip():
        match = _VALUE.match(text, position)
        if match is None:
            yield None
            return
        position, count = match.end(), count + 1
        if text[position:].strip():
            commas.add(bool(match[2]))
        word = match[1]
        yield (_WORDS[word] if word in _WORDS else ast.literal_eval(word.lstrip("uU")),)
    if len(commas) > 1:  # with and without commas, Python would join strings
        yield None
