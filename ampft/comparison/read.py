"""comparison.json back to the `Comparison` that it was written from."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ampft.comparison.findings import COMPARISON_NAME, SCHEMA, Comparison
from ampft.errors import InputError

T = TypeVar("T")


def read_comparison(path: Path) -> Comparison:
    """Read a comparison; equal to what was written, non-finite numbers aside, which become NaN.

    Args:
        path: The file, or the folder that holds it.

    Raises:
        InputError: The file is not there, is no comparison, or is of another version's layout.
    """
    file = path / COMPARISON_NAME if path.is_dir() else path
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"COMPARISON {file}: cannot be read ({error.strerror}); name the --output_dir of a "
            f"comparison, which holds {COMPARISON_NAME}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"COMPARISON {file}: is no JSON ({error}); compare again") from error
    schema = values.get("schema") if isinstance(values, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"COMPARISON {file}: its layout is {schema!r}, this ampft reads {SCHEMA}; name a "
            f"{COMPARISON_NAME} of this version, or compare again"
        )
    try:
        found = _record(Comparison, values, "comparison")
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"COMPARISON {file}: is no comparison as ampft writes it ({error}); compare again"
        ) from error
    if not found.arms:
        raise InputError(f"COMPARISON {file}: has no arms; compare again")
    if not 0 < found.margin < 1:
        raise InputError(
            f"COMPARISON {file}: its margin is {found.margin:g}, not between 0 and 1; compare again"
        )
    return found


def _record(kind: type[T], values: object, where: str) -> T:
    """Return a dataclass made of a mapping with its fields; those with a default may be missing."""
    assert is_dataclass(kind)
    if not isinstance(values, dict):
        raise ValueError(f"{where} is {_kind(values)}, not an object")
    names = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    odd = sorted((needed - values.keys()) | (values.keys() - names))
    if odd:
        state = "is missing" if odd[0] in names else "is unknown"
        raise ValueError(f"{where}.{odd[0]} {state}")
    hints = get_type_hints(kind)
    return kind(
        **{name: _value(hints[name], item, f"{where}.{name}") for name, item in values.items()}
    )


def _value(hint: Any, value: object, where: str) -> Any:
    """Return `value` as the annotation has it: lists as tuples, objects as dataclasses."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return _optional(parts, value, where)
    if origin is tuple:
        return _tuple(parts, value, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {_kind(value)}, not an object")
        return {key: _value(parts[1], item, f"{where}.{key}") for key, item in value.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        return _record(hint, value, where)
    return _plain(hint, value, where)


def _optional(parts: tuple[Any, ...], value: object, where: str) -> Any:
    inner = [part for part in parts if part is not type(None)]
    if len(inner) > 1:  # a JSON value, kept as it is
        return value
    return None if value is None else _value(inner[0], value, where)


def _tuple(parts: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is {_kind(value)}, not a list")
    hints = [parts[0]] * len(value) if parts[-1] is Ellipsis else list(parts)
    if len(hints) != len(value):
        raise ValueError(f"{where} has {len(value)} entries, not {len(hints)}")
    pairs = zip(hints, value, strict=True)
    return tuple(_value(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(pairs))


def _plain(hint: Any, value: object, where: str) -> Any:
    if not isinstance(hint, type):  # a name for JSON values, kept as they are
        return value
    if hint is float:
        if value is None:
            return float("nan")
        allowed: tuple[type, ...] = (float, int)
    else:
        allowed = (hint,)
    is_disguised = isinstance(value, bool) and hint is not bool
    if not isinstance(value, allowed) or is_disguised:
        raise ValueError(f"{where} is {_kind(value)}, not {hint.__name__}")
    return float(value) if hint is float and isinstance(value, int) else value


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", type(None): "null"}.get(
        type(value), type(value).__name__
    )
