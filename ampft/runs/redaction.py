"""Removes secrets from what is recorded, and folders of a machine from what is published."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from pathlib import PurePath
from typing import Any, TypeVar

from ampft.text.escaping import REPLACEMENT, without_credentials

Part = TypeVar("Part", bound=Any)
REDACTED = "(not recorded)"

_PATH = re.compile(r"(_path|_file|_dir|_checkpoint|^dataset_name)$")  # settings with paths
_URL = re.compile(r"\w\w+:/")

_SECRET_NAME = re.compile(
    r"(^|[_-])(token|secret|password|passwd|api[_-]?key|auth)$", re.IGNORECASE
)


def redact_secrets(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without secret values and without credentials in URLs."""
    return {
        name: REDACTED if value is not None and _SECRET_NAME.search(name) else redacted_value(value)
        for name, value in arguments.items()
    }


def redact_command(words: Sequence[str]) -> list[str]:
    """Return a command line without the program's folder and without secret values."""
    redacted: list[str] = []
    for program in map(PurePath, words[:1]):  # an absolute path often contains the user's name
        redacted.append(program.name if program.is_absolute() else str(program))
    for previous, word in pairwise(words):
        name, equals, _ = word.partition("=")
        if previous.startswith("-") and "=" not in previous and _SECRET_NAME.search(previous):
            redacted.append(REDACTED)
        elif word.startswith("-") and equals and _SECRET_NAME.search(name):
            redacted.append(f"{name}={REDACTED}")
        else:
            redacted.append(redacted_value(word))
    return redacted


def is_redacted(word: str) -> bool:
    """Return whether a word of a redacted command line lacks a secret."""
    return REDACTED in word or REPLACEMENT in word


def redacted_value(value: Any) -> Any:
    """Return a value without credentials in its texts, also in lists and mappings."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {redacted_value(key): redacted_value(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(redacted_value, value))
    return value


def without_secrets(part: Part) -> Part:
    """Return a frozen dataclass without credentials in its texts."""
    return replace(part, **{name: redacted_value(v) for name, v in vars(part).items()})


def without_folders(name: str) -> str:
    """Return the last part of a path, whose folders can contain a user's name."""
    return PurePath(name).name


def published_record(record: Part) -> Part:
    """Return the record of a run without its command, its hardware and the folders of its files.

    Args:
        record: A `RunRecord`.
    """
    ids = {record.model.hub_id, record.data.hub_id}
    settings = [v for k, v in record.arguments.items() if isinstance(v, str) and _PATH.search(k)]
    parts = (part.strip() for text in (*settings, record.data.name) for part in text.split(","))
    names = {*record.data.files, record.model.name, *parts} - ids
    folders = {
        name: without_folders(name)
        for name in sorted(names, key=len, reverse=True)
        if without_folders(name) and not _URL.match(name)
    }

    def shown(value: Any) -> Any:
        if isinstance(value, str):
            return reduce(lambda text, name: text.replace(name, folders[name]), folders, value)
        if isinstance(value, Mapping):
            return {shown(key): shown(each) for key, each in value.items()}
        return [shown(each) for each in value] if isinstance(value, list | tuple) else value

    changed = {name: shown(getattr(record, name)) for name in ("arguments", "reason", "warnings")}
    for name in ("data", "model"):
        part = getattr(record, name)
        changed[name] = replace(part, **{key: shown(value) for key, value in vars(part).items()})
    return replace(record, command=(), hardware={}, **changed)
