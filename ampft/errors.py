"""The errors that a user can cause or cure, and the exit code of each."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterable
from difflib import get_close_matches


class InputError(Exception):
    """Bad input: an argument, a file or a setting that has to be mended by the user.

    The message names the argument, what was received, what is allowed and what to do. A door
    (`recipes/`, `ampft.cli`) prints it without a traceback and exits with code 2.
    """


class TrainingStopped(Exception):
    """Training cannot go on: not finite, or a loss scale that fell through the floor.

    The run folder is kept and marked with `status`. A door prints the message, with exit code 3.
    """

    status = "diverged"


class PrecisionContradicted(TrainingStopped):
    """The first step multiplied in other dtypes than the mode that was asked for."""

    status = "contradicted"


SECONDS_BEFORE_REPEATING = 5.0
EXIT_CODES: dict[type[Exception], int] = {InputError: 2, TrainingStopped: 3}


def run_main(main: Callable[[], None]) -> int:
    """Call `main` and turn the errors above into one message on stderr and an exit code.

    Args:
        main: The body of a script or command. Any other exception is a bug and passes through.

    Returns:
        0 when `main` returned, 130 after Ctrl-C, else the exit code of the error.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without Unicode shows escapes: printing never ends a run.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        main()
    except tuple(EXIT_CODES) as error:
        rank = os.environ.get("RANK", "0")
        if rank != "0":
            # Where rank 0 says the same, the launcher ends this process before it repeats it.
            time.sleep(SECONDS_BEFORE_REPEATING)
        print(f"{f'[rank {rank}] ' if rank != '0' else ''}error: {error}", file=sys.stderr)
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130  # 128 + SIGINT, as shells count
    return 0


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the allowed name nearest to `name`, or an empty string."""
    found = get_close_matches(name, list(allowed), n=1)
    return f" Did you mean {found[0]!r}?" if found else ""
