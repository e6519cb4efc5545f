"""Terminal output: lines above a progress bar, wrapped text, errors, libraries kept quiet."""

from __future__ import annotations

import io
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Callable

from ampft.errors import AlreadyFinished, InputError, Preempted, TrainingStopped
from ampft.machine import refuse_old_versions
from ampft.text.escaping import inert_lines, without_credentials
from ampft.text.failures import failure_message

WIDTH, INDENT = 100, 11
SECONDS_BEFORE_OTHER_RANKS = 5.0
EXIT_CODES: dict[type[Exception], int] = {InputError: 2, TrainingStopped: 3}


def run_main(main: Callable[[], None]) -> int:
    """Call `main` and turn the errors of `ampft.errors` into a message on stderr and an exit code.

    Args:
        main: Body of a script or command. Any other exception is a bug and is not caught.

    Returns:
        0 if `main` returned, 75 if the run can continue, 130 after Ctrl-C without a checkpoint, and
        otherwise the exit code of the error.
    """
    _prepare_streams()
    try:
        if sys.flags.optimize > 1:
            raise InputError(
                "python -OO or PYTHONOPTIMIZE=2 removes docstrings, without which transformers"
                " loads no model. Use python, or python -O."
            )
        refuse_old_versions()
        main()
    except (AlreadyFinished, Preempted) as ending:
        if os.environ.get("RANK", "0") == "0":
            print(inert_lines(without_credentials(str(ending))), flush=True)
        return ending.exit_code
    except tuple(EXIT_CODES) as error:
        rank = os.environ.get("RANK", "0")
        if rank != "0":
            # If rank 0 reports the same error, the launcher ends this process before it prints.
            time.sleep(SECONDS_BEFORE_OTHER_RANKS)
        message = inert_lines(without_credentials(str(error)))
        print(f"{f'[rank {rank}] ' if rank != '0' else ''}error: {message}", file=sys.stderr)
        return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
    except Exception as error:
        known = failure_message(error)
        if known is None:
            raise
        print(f"error: {inert_lines(known)}", file=sys.stderr)
        return EXIT_CODES[InputError]
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130  # 128 + SIGINT, as shells count
    return 0


def _prepare_streams() -> None:
    """Make sure that printing never raises."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            # Without Unicode support the terminal shows escapes.
            stream.reconfigure(errors="backslashreplace")


def print_line(text: str) -> None:
    """Print `text` on standard output, above any progress bar, with hostile characters escaped.

    If the reader of a pipe has closed it, as `head` does, output stops and the program continues.
    """
    from tqdm import tqdm

    try:
        tqdm.write(inert_lines(text), file=sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def print_phase(text: str) -> None:
    """Print what the main process does next, so that a long start is not silent."""
    if os.environ.get("RANK", "0") == "0":
        print_line(labelled("start", f"{text} ..."))


def discard_output() -> None:
    """Discard all further standard output, including the flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def labelled(label: str, *texts: str) -> str:
    """Return a line such as `device     CPU, 2 threads`; each further text starts a new line.

    Long texts wrap and stay indented. Words such as paths are never broken, so that they can be
    copied.
    """
    wrapper = textwrap.TextWrapper(
        WIDTH,
        initial_indent=" " * INDENT,
        subsequent_indent=" " * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return label.ljust(INDENT) + "\n".join(map(wrapper.fill, texts))[INDENT:]


def quiet_libraries() -> None:
    """Silence third-party output that a user of a recipe cannot act on.

    Progress bars of `datasets` remain if stderr is a terminal. Errors are not affected.
    """
    import datasets
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.logging.set_verbosity_error()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    # These warnings are about how ampft uses a library, never about the user's settings.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore", category=FutureWarning, module="(transformers|datasets)")
