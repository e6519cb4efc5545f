"""Exit codes of commands and scripts, and what they print when they fail."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType

from ampft.errors import (
    OTHER_ENVIRONMENT,
    AlreadyFinished,
    EngineLost,
    InputError,
    OtherProcessFailed,
    PartsFailed,
    Preempted,
    TrainingStopped,
)
from ampft.files import is_disk_error, is_path_error
from ampft.machine import refuse_old_versions
from ampft.processes import follow
from ampft.signals import STOPPING, handling, hearing, raise_if_heard
from ampft.text.escaping import printable
from ampft.text.terminal import print_line, quiet_optional_packages

SECONDS_BEFORE_OTHER_RANKS = 5.0
LEAST_FREE_BYTES = 1 << 20  # of a disk that may be full: others free some of it meanwhile
# Of failures. An ending that is not a failure has its own `exit_code`, in `ampft.errors`.
EXIT_CODES: dict[type[Exception], int] = {
    OtherProcessFailed: 1,
    InputError: 2,
    TrainingStopped: 3,
    PartsFailed: 7,
}

# Torch and transformers raise plain errors, which only their text tells apart. Where a message has
# {reason}, it is their first sentence: a second one guesses the cause.
_KNOWN = (
    (
        "DataLoader worker (pid",
        "a process of --dataloader_num_workers ended early ({reason}). Remove the flag, so that "
        "the training reads its examples itself, or start again; with --checkpointing_steps, a run "
        "continues with --resume_from_checkpoint latest.",
    ),
    (
        "Expected more than 1 value per channel when training",
        "the model has batch norm, which cannot train on a micro-batch of one example. Raise "
        "--per_device_train_batch_size, lower --gradient_accumulation_steps, or remove examples so "
        "that the last batch of an epoch has more than one.",
    ),
    (
        "Kernel size can't be greater than actual input size",
        "an input is shorter than the model can read, such as a text of one character for CANINE. "
        "Remove or lengthen such inputs.",
    ),
    (
        "Input language unknown",
        "the model has an adapter for each language and does not know which to use. Call "
        "model.set_default_language, such as with 'en_XX', save the model, and pass its folder.",
    ),
)


@dataclass
class _Command:
    """The command that this process runs."""

    started: float | None = None  # `time.perf_counter()` at its start; None outside one.


_command = _Command()


def command_started() -> float:
    """Return `time.perf_counter()` at the start of the command; now, if Python code calls."""
    return time.perf_counter() if _command.started is None else _command.started


def run_main(main: Callable[[], None]) -> int:
    """Call `main` and turn the errors of `ampft.errors` into a message on stderr and an exit code.

    Args:
        main: Body of a script or command. Any other exception is a bug and is not caught.

    Returns:
        0 if `main` returned, 75 if the run can continue, 130 after Ctrl-C without a checkpoint, and
        otherwise the exit code of the error.
    """
    _command.started = time.perf_counter()
    _prepare_streams()
    atexit.register(gc.freeze)  # or Python looks for garbage in torch for seconds before it ends
    follow()
    # A launcher of several processes ends them by SIGTERM while they wait for each other in C++,
    # where nothing could be heard.
    names = STOPPING if os.environ.get("WORLD_SIZE", "1") == "1" else ("SIGINT",)
    try:
        with hearing(names, ends_imports=True):
            quiet_optional_packages()
            try:
                _refuse_stripped_docstrings()
                refuse_old_versions()
                main()
            except Exception as error:
                return _reported(error)
            return 0
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 128 + signal.SIGINT  # as shells count
    finally:
        _command.started = None


def _refuse_stripped_docstrings() -> None:
    if sys.flags.optimize > 1:
        raise InputError(
            "python -OO or PYTHONOPTIMIZE=2 removes docstrings, without which transformers loads no"
            " model. Use python, or python -O."
        )


def _reported(error: Exception) -> int:
    """Print what is wrong and return the exit code; raise the error again if it is a bug."""
    rank = os.environ.get("RANK", "0")
    if isinstance(error, AlreadyFinished | Preempted):
        if rank == "0":
            print(printable(str(error)), flush=True)
        return error.exit_code
    for kind, code in EXIT_CODES.items():
        if isinstance(error, kind):
            if rank != "0":
                # If rank 0 reports the same error, the launcher ends this process before it prints.
                time.sleep(SECONDS_BEFORE_OTHER_RANKS)
            where = f"[rank {rank}] " if rank != "0" else ""
            print(f"{where}error: {printable(str(error))}", file=sys.stderr)
            return code
    raise_if_heard()  # a library has turned an interruption into its own error
    known = failure_message(error)
    if isinstance(error, ModuleNotFoundError) and is_required(error.name or ""):
        known = f"{error} ({sys.executable}). {OTHER_ENVIRONMENT}"
    if known is None:
        raise error
    print(f"error: {printable(known)}", file=sys.stderr)
    return EXIT_CODES[InputError]


def is_required(module: str) -> bool:
    """Return whether a module belongs to a package without which ampft does not run."""
    names = {"sklearn": "scikit-learn", "yaml": "pyyaml", "PIL": "pillow"}
    top = module.partition(".")[0]
    try:
        needed = metadata.requires("ampft") or []
    except metadata.PackageNotFoundError:  # a checkout on the path
        return not top.startswith("ampft")
    wanted = names.get(top, top).replace("_", "-").lower()
    packages = [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in needed]
    return wanted in [each.replace("_", "-").lower() for each in packages]


def failure_message(error: Exception) -> str | None:
    """Return what is wrong and what to do; None if the error is a bug of this program.

    Args:
        error: Error that no code of this program raised.
    """
    if isinstance(error, BrokenPipeError):
        return None
    # datasets closes its file after a full disk, and fails again because it is closed.
    for failure in (error, error.__context__):
        if failure is not None and is_disk_error(failure):
            remedy = ", or set TMPDIR to a folder on another disk" if _is_temporary(failure) else ""
            return f"{failure}. Free disk space{remedy}."
    if isinstance(error, OSError | ValueError) and is_path_error(error):
        return f"{error}. Choose another path."
    if isinstance(error, RuntimeError | ValueError):
        reason = re.split(r"\.(?:\s|$)", str(error))[0]
        found = (each.format(reason=reason) for text, each in _KNOWN if text in str(error))
        return next(found, None)
    return None


def _is_temporary(failure: BaseException) -> bool:
    """Return whether the disk of temporary files may be the one that is full."""
    place, named = tempfile.gettempdir(), getattr(failure, "filename", None)
    if isinstance(named, str) and Path(named).is_relative_to(place):
        return True
    is_full = getattr(failure, "errno", None) in (errno.ENOSPC, None)
    return not is_full or shutil.disk_usage(place).free < LEAST_FREE_BYTES


def _print_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an error as Python does, but without secrets, which paths can contain."""
    print(printable("".join(traceback.format_exception(kind, error, trace))), file=sys.stderr)


def _prepare_streams() -> None:
    """Make sure that printing never raises, and that a traceback contains no secrets."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_traceback
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            # Without Unicode support the terminal shows escapes.
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def interruptible(how_to_continue: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM, SIGHUP and `EngineLost` into one message on stderr and an exit code.

    Runs are in separate sessions, so they receive none of these signals themselves.

    Args:
        how_to_continue: Returns what has been done so far and how to continue.

    Raises:
        SystemExit: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, following the convention
            of shells; 75 after `EngineLost`.
    """

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    raise_if_heard()
    try:
        with handling(("SIGTERM", "SIGHUP"), stop):
            yield
    except KeyboardInterrupt:
        print_line(f"\ninterrupted: {how_to_continue()}", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except EngineLost as error:
        print_line(f"\nlost: {error} {how_to_continue()}", file=sys.stderr)
        raise SystemExit(Preempted.exit_code) from None
    except SystemExit as end:
        names = {128 + getattr(signal, name, 0): name for name in ("SIGTERM", "SIGHUP")}
        if end.code in names:
            print_line(f"\nterminated by {names[end.code]}: {how_to_continue()}", file=sys.stderr)
        raise
