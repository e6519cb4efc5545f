"""Writes JSON without NaN or hidden characters, and reads it into dataclasses."""

from __future__ import annotations

import hashlib
import json
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from ampft.errors import InputError
from ampft.text.escaping import is_hostile

MAX_DEPTH = 50  # levels; what this program writes has at most a dozen
_BRACKETS_OR_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_UNUSUAL = re.compile(r"[^\n -~]")  # the others are harmless
JSONValue: TypeAlias = "bool | int | float | str | list[JSONValue] | dict[str, JSONValue] | None"
T = TypeVar("T")


@dataclass(frozen=True)
class ValueRule:
    """A condition on a value, in `Annotated[type, ValueRule(...)]`."""

    # Function that returns whether a value, converted to its type, is allowed.
    holds: Callable[[Any], bool]
    allowed: str  # What is allowed, as it follows "must be".


def one_of(values: Sequence[str]) -> ValueRule:
    """Return the rule that a value is one of `values`."""
    return ValueRule(lambda value: value in values, f"one of {', '.join(values)}")


def is_ascending(values: Sequence[int]) -> bool:
    """Return whether there are values, each larger than the one before."""
    return len(values) > 0 and all(a < b for a, b in pairwise(values))


_COUNT = ValueRule(lambda value: 0 <= value < 2**63, "at least 0")
Count: TypeAlias = Annotated[int, _COUNT]
Positive: TypeAlias = Annotated[int, ValueRule(lambda value: 0 < value < 2**63, "at least 1")]
NotNegative: TypeAlias = Annotated[float, ValueRule(lambda value: not value < 0, "at least 0")]


def json_values(value: object) -> JSONValue:
    """Return `value` as JSON values: non-finite numbers as `None`, arrays as lists.

    Args:
        value: Mappings, sequences, sets (sorted), dataclasses, paths, numpy scalars and arrays,
            strings, numbers, booleans and `None`, in any nesting.

    Raises:
        TypeError: `value` contains anything else.
    """
    import numpy as np  # later than the flags, which use only the rules

    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return _json_container(value)


def json_text(value: object) -> str:
    """Return what `json_values` accepts as JSON text that ends with a newline.

    Letters of every script stay readable. Control and direction characters are escaped, so that a
    terminal shows the contents of the file unchanged.
    """
    text = json.dumps(json_values(value), indent=2, ensure_ascii=False, allow_nan=False)
    return _UNUSUAL.sub(lambda c: _escaped(c[0]) if is_hostile(c[0]) else c[0], text) + "\n"


def values_hash(values: Mapping[str, JSONValue]) -> str:
    """Return the SHA-256 of JSON values, which a record states and so proves that it is whole."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It does not contain a JSON object that this program could have written.
    """
    return parse_json_object(path.read_bytes())


def read_json_lines(content: bytes, name: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON object in each line.

    Raises:
        ValueError: A line does not contain one; the message names the line.
    """
    for number, line in enumerate(content.splitlines(), 1):
        try:
            yield parse_json_object(line)
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from None


def parse_json_object(content: bytes, *, finite: bool = True) -> dict[str, Any]:
    """Return the JSON object in a text in UTF-8.

    Args:
        finite: Whether all numbers must be finite; otherwise NaN and Infinity are read too.

    Raises:
        ValueError: It is not a JSON object, repeats a key, is nested more than `MAX_DEPTH` levels
            deep, or has a number that is not finite or an integer of more than 128 bits.
    """
    text = content.decode("utf-8")
    if _depth(text) > MAX_DEPTH:
        raise ValueError(f"its values are nested more than {MAX_DEPTH} levels deep")
    value = json.loads(
        text,
        parse_constant=_refused_number if finite else float,
        parse_float=_finite if finite else float,
        parse_int=_bounded,
        object_pairs_hook=_without_repeated_keys,
    )
    if not isinstance(value, dict):
        raise ValueError(f"it contains {_json_type(value)}, not an object")
    if "\\u" in text:  # half of a surrogate pair cannot be printed
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _depth(text: str) -> int:
    """Return the largest number of open brackets outside strings."""
    depth = largest = 0
    for token in _BRACKETS_OR_STRINGS.findall(text):
        if token in "[{":
            depth += 1
            largest = max(largest, depth)
        elif token in "]}":
            depth -= 1
    return largest


def _refused_number(text: str) -> float:
    raise ValueError(f"it contains the number {text}, which is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refused_number(text)


def _bounded(text: str) -> int:
    if len(text) > len(str(-(2**128))):
        raise ValueError(f"it contains an integer of {len(text)} digits")
    return int(text)


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it contains {repeated!r} twice in one object")
    return values


def check_schema(path: Path, values: Mapping[str, Any], schema: int, remedy: str) -> None:
    """Check that a file has the schema version that this version of ampft reads.

    Args:
        path: Path of the file, for the error message.
        schema: Expected schema version.
        remedy: Sentence that tells the user what to do.

    Raises:
        InputError: The file has another schema version.
    """
    actual = values.get("schema")
    if actual != schema:
        version = "no schema version" if actual is None else f"schema version {actual!r}"
        raise InputError(
            f"{path}: the file has {version}, but this version of ampft reads {schema}. {remedy}"
        )


def from_json(kind: type[T], values: object, where: str = "value") -> T:
    """Return an instance of the dataclass `kind` from JSON values; the inverse of `json_values`.

    Lists become tuples and objects become the dataclasses that the annotations name. Fields with a
    default may be missing. `None` where a float is annotated becomes NaN. A plain `int` is a count,
    at least 0; another range needs `Annotated`.

    Args:
        kind: A dataclass whose fields are annotated with plain types, `tuple`, `Sequence`,
            `Mapping`, optional types, other dataclasses and `Annotated[type, ValueRule(...)]`.
            `Any` accepts every value unchanged.
        values: JSON values, as `json.loads` returns them.
        where: Name of `values` in error messages.

    Raises:
        ValueError: A field is missing, unknown, of another type or breaks its rule; the message
            names it.
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
    hints = get_type_hints(kind, include_extras=True)
    parts = {name: _value(hints[name], item, f"{where}.{name}") for name, item in values.items()}
    try:
        return kind(**parts)
    except (ValueError, TypeError) as error:  # values that contradict each other
        raise ValueError(f"{where}: {error}") from None


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
    if origin is Annotated:
        return _checked(parts, value, where)
    if origin in (types.UnionType, Union):
        return _union(parts, value, where)
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
    if hint is int:
        return _checked((int, _COUNT), value, where)
    return _plain(hint, value, where)


_SCALARS = (bool, int, float, str)


def _checked(parts: tuple[Any, ...], value: object, where: str) -> Any:
    kind, *rules = parts
    converted = _plain(kind, value, where) if kind is int else _value(kind, value, where)
    for rule in rules:
        if not rule.holds(converted):
            raise ValueError(f"{where} is {str(value)[:60]!r}, but must be {rule.allowed}")
    return converted


def _union(parts: tuple[Any, ...], value: object, where: str) -> Any:
    member_types = [part for part in parts if part is not type(None)]
    if value is None and len(member_types) < len(parts):
        return None
    if len(member_types) == 1:
        return _value(member_types[0], value, where)
    # Unions of several types are not converted.
    if all(part in _SCALARS for part in member_types) and type(value) not in member_types:
        names = " or ".join(part.__name__ for part in member_types)
        raise ValueError(f"{where} is {_json_type(value)}, not {names}")
    return value


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
