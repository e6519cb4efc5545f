"""What a record keeps to itself: secrets, and the folders of its owner."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

WITHHELD = "(not recorded)"

_SECRET_NAME = re.compile(
    r"(^|[_-])(token|secret|password|passwd|api[_-]?key|auth)$", re.IGNORECASE
)
_USER_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+@")


def withhold_secrets(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without values whose name or form says that they are secret."""
    return {
        name: WITHHELD if value is not None and _SECRET_NAME.search(name) else _no_user(value)
        for name, value in arguments.items()
    }


def command_words(words: Sequence[str]) -> list[str]:
    """Return a command line fit for a record: no folder of the program, no secret values."""
    program = PurePath(words[0]) if words else None
    # Under a home folder, an absolute path names its owner.
    kept = [] if program is None else [program.name if program.is_absolute() else str(program)]
    for previous, word in pairwise(words):
        name, equals, _ = word.partition("=")
        if previous.startswith("-") and "=" not in previous and _SECRET_NAME.search(previous):
            kept.append(WITHHELD)
        elif word.startswith("-") and equals and _SECRET_NAME.search(name):
            kept.append(f"{name}={WITHHELD}")
        else:
            kept.append(_no_user(word))
    return kept


def _no_user(value: Any) -> Any:
    return _USER_IN_ADDRESS.sub("", value) if isinstance(value, str) else value
