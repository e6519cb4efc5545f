"""The errors that a user can cause or fix."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from types import NoneType
from typing import Any, NoReturn

MAX_LISTED = 12
MAX_QUOTED = 40  # characters
_ERRNO = re.compile(r"\[(?:Errno|WinError) -?\d+\] ")


class InputError(Exception):
    """Invalid input: an argument, a file or a setting that the user must correct.

    The message names the argument, what was received, what is allowed and what to do. The entry
    points (`recipes/`, `ampft.cli`) print it without a traceback and exit with code 2.
    """

    def __str__(self) -> str:
        """Return the message, without the numbers that the system gives its errors."""
        return without_error_numbers(super().__str__())


def check_type(function: str, name: str, value: object, allowed: type | tuple[type, ...]) -> None:
    """Check the type of an argument of a public function.

    Raises:
        InputError: It has another type.
    """
    if isinstance(value, allowed) and not (isinstance(value, bool) and allowed is int):
        return
    kinds = allowed if isinstance(allowed, tuple) else (allowed,)
    wanted = " or ".join(_type_name(kind) for kind in kinds if kind is not NoneType)
    received = f"a value of the type {_type_name(type(value))}"
    if value is None:
        received = "no value"
    elif isinstance(value, str | int | float):
        received = f"{quoted(value)} of the type {_type_name(type(value))}"
    raise InputError(f"{function}: {name} must be of the type {wanted}; received {received}.")


def _type_name(kind: type) -> str:
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


class EncodingError(InputError):
    """A text file is not in the encoding that it is read in; the message advises `--encoding`.

    Attributes:
        problem: The message without its advice, for what reads a file without such a flag.
        likely: Encoding that the file probably has.
    """

    def __init__(self, message: str, problem: str, likely: str) -> None:
        super().__init__(message)
        self.problem, self.likely = problem, likely

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self.args[0]), self.problem, self.likely)  # for pickle


def without_error_numbers(text: str) -> str:
    """Return a message without the numbers that the system gives its errors."""
    return _ERRNO.sub("", text)


class TrainingStopped(Exception):
    """Training cannot continue, for example because a gradient is not finite.

    The run folder is kept and marked with `status`. The entry points print the message and exit
    with code 3.
    """

    status = "diverged"


class Preempted(Exception):
    """A run stopped because of a signal, and can continue from its checkpoint.

    The entry points print the message.
    """

    # EX_TEMPFAIL of sysexits.h: try again later. Schedulers can be told to queue such a job again.
    exit_code = 75


class OtherProcessFailed(Exception):
    """Another process of the training has failed, so that this one cannot continue.

    The entry points print the message, which has the other's reason, and exit with code 1.
    """


class PartsFailed(Exception):
    """The training has ended and its model is saved, but something after it failed.

    A repeat of the command does what is missing. The entry points print the message and exit with
    code 7.
    """


class EngineLost(Exception):
    """What trains the runs is gone; the message says what. The same command continues."""


class AlreadyFinished(Exception):
    """The run to continue has finished already. Commands print the message and exit with code 0."""

    exit_code = 0


class PrecisionContradicted(TrainingStopped):
    """What ran is not what was requested: other dtypes, or an update that did not move weights."""

    status = "contradicted"


OTHER_ENVIRONMENT = "Activate the environment in which ampft is installed, or install it with pip."


def refuse_environment(problem: str) -> NoReturn:
    """Refuse a Python in which ampft cannot run: one line for commands, an error for programs.

    Args:
        problem: What is wrong, such as "No module named 'lazy_loader'".

    Raises:
        ImportError: A program imports ampft.
        SystemExit: This is `ampft` or `python -m ampft`.
    """
    message = f"{problem} ({sys.executable}). {OTHER_ENVIRONMENT}"
    program = sys.argv[0].replace("\\", "/").rpartition("/")[2] if sys.argv else ""
    if program not in ("-m", "ampft", "ampft.exe"):
        raise ImportError(message)
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the allowed name closest to `name`, or an empty string."""
    near = closest_name(name, allowed)
    return "" if near is None else f" Did you mean {near!r}?"


def closest_name(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that is closest to `name`; None if none is close."""
    short = [other for other in allowed if len(other) <= MAX_QUOTED]
    matches = get_close_matches(name, short, n=1) if len(name) <= MAX_QUOTED else []
    if not matches:  # `f1` for `macro_f1`
        matches = [other for other in short if name and name in other.split("_")]
    return matches[0] if matches else None


def listed(names: Sequence[str], *, limit: int = MAX_LISTED, separator: str = ", ") -> str:
    """Return the first names for a message, and how many more there are."""
    more = len(names) - limit
    return separator.join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def quoted_list(values: Iterable[object], *, separator: str = ", ") -> str:
    """Return the first values in quotes, and how many more there are."""
    every = list(values)
    texts = [quoted(value) for value in every[:MAX_LISTED]]
    return listed([*texts, *[""] * (len(every) - len(texts))], separator=separator)


def quoted(value: object) -> str:
    """Return a value as Python writes it, shortened: a text can be in the place of a name."""
    if isinstance(value, str):
        return repr(value if len(value) <= MAX_QUOTED else value[: MAX_QUOTED - 3] + "...")
    text = repr(value)
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 3] + "..."
