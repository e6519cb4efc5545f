"""Writes JSON without NaN or hidden characters, and reads it into dataclasses."""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from ampft.errors import InputError
from ampft.text.escaping import is_hostile

JSONValue: TypeAlias = "bool | int | float | str | list[JSONValue] | dict[str, JSONValue] | None"
T = TypeVar("T")


def json_values(value: object) -> JSONValue:
    """Return `value` as JSON values: non-finite numbers as `None`, arrays as lists.

    Args:
        value: Mappings, sequences, sets (sorted), dataclasses, paths, numpy scalars and arrays,
            strings, numbers, booleans and `None`, in any nesting.

    Raises:
        TypeError: `value` contains anything else.
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
    """Return `value` as JSON text that ends with a newline.

    Letters of every script stay readable. Control and direction characters are escaped, so that a
    terminal shows the contents of the file unchanged.

    Args:
        value: Anything that `json_values` accepts.
        indent: Spaces per level; `None` writes one line.
    """
    text = json.dumps(json_values(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return "".join(_escaped(c) if c != "\n" and is_hostile(c) else c for c in text) + "\n"


def values_hash(values: Mapping[str, JSONValue]) -> str:
    """Return the SHA-256 of JSON values, which a record states and so proves that it is whole."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It does not contain a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it contains {_json_type(value)}, not an object")
    return value


def check_schema(path: Path, values: Mapping[str, Any], schema: int, remedy: str) -> None:
    """Check that a file has the schema version that this version of ampft reads.

    Args:
        path: Path of the file, for the error message.
        values: Contents of the file.
        schema: Expected schema version.
        remedy: Sentence that tells the user what to do.

    Raises:
        InputError: The file has another schema version.
    """
    actual = values.get("schema")
    if actual != schema:
        raise InputError(
            f"{path}: the file has schema version {actual!r}, but this version of ampft reads "
            f"{schema}. {remedy}"
        )


def from_json(kind: type[T], values: object, where: str = "value") -> T:
    """Return an instance of the dataclass `kind` from JSON values; the inverse of `json_values`.

    Lists become tuples and objects become the dataclasses that the annotations name. Fields with a
    default may be missing. `None` where a float is annotated becomes NaN.

    Args:
        kind: A dataclass whose fields are annotated with plain types, `tuple`, `Sequence`,
            `Mapping`, optional types and other dataclasses. `Any` accepts every value unchanged.
        values: JSON values, as `json.loads` returns them.
        where: Name of `values` in error messages.

    Raises:
        ValueError: A field is missing, unknown or of another type; the message names it.
    """
    assert is_dataclass(kind)
    if not isinstance(values, dict):
        raise ValueError(f"{where} is {_json_type(values)}, not an object")
    names = {field.name for field in fields(kind)}
    required = {
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    }
    invalid = sorted((required - values.keys()) | (values.keys() - names))
    if invalid:
        state = "is missing" if invalid[0] in names else "is unknown"
        raise ValueError(f"{where}.{invalid[0]} {state}")
    hints = get_type_hints(kind)
    return kind(
        **{name: _value(hints[name], item, f"{where}.{name}") for name, item in values.items()}
    )


def _json_container(value: object) -> JSONValue:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return [json_values(item) for item in value]
    raise TypeError(f"{type(value).__name__} is not a JSON value: {value!r}")


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"


def _value(hint: Any, value: object, where: str) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        member_types = [part for part in parts if part is not type(None)]
        if len(member_types) > 1:  # unions of several types are not converted
            return value
        return None if value is None else _value(member_types[0], value, where)
    if origin is tuple:
        return _tuple(parts, value, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {_json_type(value)}, not an object")
        return {key: _value(parts[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is not None and issubclass(origin, Sequence):
        return _tuple((parts[0], ...), value, where)
    if is_dataclass(hint) and isinstance(hint, type):
        return from_json(hint, value, where)
    return _plain(hint, value, where)


def _tuple(parts: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is {_json_type(value)}, not a list")
    hints = [parts[0]] * len(value) if parts[-1] is Ellipsis else list(parts)
    if len(hints) != len(value):
        raise ValueError(f"{where} has {len(value)} entries, not {len(hints)}")
    pairs = zip(hints, value, strict=True)
    return tuple(_value(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(pairs))


def _plain(hint: Any, value: object, where: str) -> Any:
    if hint is Any or not isinstance(hint, type):  # a type alias such as JSONValue
        return value
    if hint is float and value is None:
        return float("nan")
    allowed = (float, int) if hint is float else (hint,)
    is_wrong_bool = isinstance(value, bool) and hint is not bool  # bool is a subclass of int
    if not isinstance(value, allowed) or is_wrong_bool:
        raise ValueError(f"{where} is {_json_type(value)}, not {hint.__name__}")
    return float(value) if hint is float and isinstance(value, int) else value


def _json_type(value: object) -> str:
    return {dict: "an object", list: "a list", type(None): "null"}.get(
        type(value), type(value).__name__
    )
