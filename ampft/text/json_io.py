"""JSON that has no NaN, hides nothing and reads back anywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ampft.text.escaping import is_hostile

JSONValue: TypeAlias = "bool | int | float | str | list[JSONValue] | dict[str, JSONValue] | None"


def json_values(value: object) -> JSONValue:
    """Return `value` as JSON values: non-finite numbers as `None`, arrays as lists.

    Args:
        value: Mappings, sequences, sets (sorted), dataclasses, paths, numpy scalars and arrays,
            strings, numbers, booleans and `None`, nested at will.

    Raises:
        TypeError: For anything else: what a record holds is chosen, never guessed with `str`.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return _json_container(value)


def json_text(value: object, *, indent: int | None = 2) -> str:
    """Return `value` as JSON text with a newline at its end.

    Letters of every script stay readable; control and direction characters are escaped, so that
    the file shows on a terminal what it holds.

    Args:
        value: What `json_values` takes.
        indent: Spaces per level; `None` for one line.
    """
    text = json.dumps(json_values(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return "".join(_escaped(c) if c != "\n" and is_hostile(c) else c for c in text) + "\n"


def _json_container(value: object) -> JSONValue:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    raise TypeError(f"{type(value).__name__} is no JSON value: {value!r}")


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"
