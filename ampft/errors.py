"""The errors that a user can cause or fix, and their exit codes."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterable
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


class PrecisionContradicted(TrainingStopped):
    """A step or an evaluation used other dtypes than the requested mode."""

    status = "contradicted"


SECONDS_BEFORE_OTHER_RANKS = 5.0
EXIT_CODES: dict[type[Exception], int] = {InputError: 2, TrainingStopped: 3}


def run_main(main: Callable[[], None]) -> int:
    """Call `main` and turn the errors above into a message on stderr and an exit code.

    Args:
        main: Body of a script or command. Any other exception is a bug and is not caught.

    Returns:
        0 if `main` returned, 130 after Ctrl-C, and otherwise the exit code of the error.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Without Unicode support the terminal shows escapes, so that printing never raises.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if sys.flags.optimize > 1:
            raise InputError(
                "python -OO or PYTHONOPTIMIZE=2 removes docstrings, without which transformers"
                " loads no model. Use python, or python -O."
            )
        main()
    except tuple(EXIT_CODES) as error:
        rank = os.environ.get("RANK", "0")
        if rank != "0":
            # If rank 0 reports the same error, the launcher ends this process before it prints.
            time.sleep(SECONDS_BEFORE_OTHER_RANKS)
        print(f"{f'[rank {rank}] ' if rank != '0' else ''}error: {error}", file=sys.stderr)
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130  # 128 + SIGINT, as shells count
    return 0


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the allowed name closest to `name`, or an empty string."""
    matches = get_close_matches(name, list(allowed), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""
