"""The errors that a user can cause or fix."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(Exception):
    """Invalid input: an argument, a file or a setting that the user must correct.

    The message names the argument, what was received, what is allowed and what to do. The entry
    points (`recipes/`, `ampft.cli`) print it without a traceback and exit with code 2.
    """


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


class AlreadyFinished(Exception):
    """The run that would continue has finished. The entry points say so."""

    exit_code = 0


class PrecisionContradicted(TrainingStopped):
    """What ran is not what was requested: other dtypes, or an update that did not move weights."""

    status = "contradicted"


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the allowed name closest to `name`, or an empty string."""
    matches = get_close_matches(name, list(allowed), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""
