"""Removes secrets from settings and command lines before they are recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath
from typing import Any, TypeVar

from ampft.text.escaping import without_credentials

Part = TypeVar("Part", bound=Any)
REDACTED = "(not recorded)"

_SECRET_NAME = re.compile(
    r"(^|[_-])(token|secret|password|passwd|api[_-]?key|auth)$", re.IGNORECASE
)


def redact_secrets(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without secret values and without credentials in URLs."""
    return {
        name: REDACTED
        if value is not None and _SECRET_NAME.search(name)
        else _without_credentials(value)
        for name, value in arguments.items()
    }


def redact_command(words: Sequence[str]) -> list[str]:
    """Return a command line without the program's folder and without secret values."""
    program = PurePath(words[0]) if words else None
    # An absolute path often contains the user's name.
    redacted = [] if program is None else [program.name if program.is_absolute() else str(program)]
    for previous, word in pairwise(words):
        name, equals, _ = word.partition("=")
        if previous.startswith("-") and "=" not in previous and _SECRET_NAME.search(previous):
            redacted.append(REDACTED)
        elif word.startswith("-") and equals and _SECRET_NAME.search(name):
            redacted.append(f"{name}={REDACTED}")
        else:
            redacted.append(_without_credentials(word))
    return redacted


def _without_credentials(value: Any) -> Any:
    """Return a value without credentials in its texts, also in lists and mappings."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {_without_credentials(key): _without_credentials(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_without_credentials, value))
    return value


def without_secrets(part: Part) -> Part:
    """Return a frozen dataclass without credentials in its texts."""
    return replace(part, **{name: _without_credentials(v) for name, v in vars(part).items()})
