"""Settings as keyword arguments of Python, which have the names of the flags."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ampft.errors import InputError, Preempted, TrainingStopped

_HELP = re.compile(r"See \S+( \S+)? --help\.")
_FLAG = re.compile(r"(?<![\w-])--(no-)?([a-z]\w*)")


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments as words of a command line.

    Args:
        settings: Values by name of the flag. None leaves a flag out; a list of names stands for the
            names separated by commas.
    """
    words = []
    for name, value in settings.items():
        if isinstance(value, bool):
            # A switch such as no_placebo can only be set.
            words += [f"--{name}"] if value else [f"--no-{name}"] * (not name.startswith("no_"))
        elif value is not None:
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            words.append(f"--{name}={text}")
    return words


@contextlib.contextmanager
def messages_for_python() -> Iterator[None]:
    """Raise errors of a command without its traceback; their messages name keyword arguments."""
    try:
        yield
    except (InputError, TrainingStopped, Preempted) as error:
        error.args = (in_python(str(error)), *error.args[1:])
        raise error.with_traceback(None) from None


def in_python(message: str) -> str:
    """Return a message with keyword arguments in place of flags."""
    message = _HELP.sub("`ampft train --help` lists all settings.", message)
    parts = re.split(r"(`[^`]*`)", message)  # commands in backquotes stay commands
    parts[::2] = [
        _FLAG.sub(lambda flag: flag[2] + "=False" * bool(flag[1]), part) for part in parts[::2]
    ]
    return "".join(parts)
