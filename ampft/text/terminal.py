"""Terminal output: progress bars, lines above them, wrapped text, errors, quiet libraries."""

from __future__ import annotations

import errno
import io
import logging
import os
import shutil
import signal
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ampft.errors import AlreadyFinished, InputError, OtherProcessFailed, Preempted, TrainingStopped
from ampft.files import is_disk_error, is_path_error
from ampft.machine import refuse_old_versions
from ampft.processes import follow
from ampft.signals import STOPPING, hearing, raise_if_heard
from ampft.text.escaping import inert_lines, without_credentials

WIDTH, INDENT = 100, 11
SECONDS_BEFORE_OTHER_RANKS = 5.0
LEAST_FREE_BYTES = 1 << 20  # of a disk that may be full: others free some of it meanwhile
EXIT_CODES: dict[type[Exception], int] = {OtherProcessFailed: 1, InputError: 2, TrainingStopped: 3}

# Torch and transformers raise plain errors, which only their text tells apart.
_KNOWN = (
    (
        "DataLoader worker (pid",
        "a process of --dataloader_num_workers was killed, usually because memory or shared memory "
        "ran out. Lower --dataloader_num_workers, or free memory, and start again; with "
        "--checkpointing_steps, a run continues with --resume_from_checkpoint latest.",
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
        "Remove or lengthen such inputs, or choose another model.",
    ),
    (
        "Input language unknown",
        "the model has an adapter for each language and does not know which to use. Call "
        "model.set_default_language, such as with 'en_XX', save the model, and pass its folder.",
    ),
)


def run_main(main: Callable[[], None]) -> int:
    """Call `main` and turn the errors of `ampft.errors` into a message on stderr and an exit code.

    Args:
        main: Body of a script or command. Any other exception is a bug and is not caught.

    Returns:
        0 if `main` returned, 75 if the run can continue, 130 after Ctrl-C without a checkpoint, and
        otherwise the exit code of the error.
    """
    _prepare_streams()
    follow()
    # A launcher of several processes ends them by SIGTERM while they wait for each other in C++,
    # where nothing could be heard.
    names = STOPPING if os.environ.get("WORLD_SIZE", "1") == "1" else ("SIGINT",)
    try:
        with hearing(names, ends_imports=True):
            return _exit_code(main)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 128 + signal.SIGINT  # as shells count


def quiet_optional_packages() -> None:
    """Silence what packages that peft and transformers import say about this machine."""
    for name in ("bitsandbytes", "torchao"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("torch.utils._pytree").addFilter(_is_no_enumeration)


def _is_no_enumeration(record: logging.LogRecord) -> bool:
    # torchao registers its enumerations in a way that torch calls deprecated.
    return "is an Enum subclass" not in str(record.msg)


def _exit_code(main: Callable[[], None]) -> int:
    quiet_optional_packages()
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
        raise_if_heard()  # a library has turned an interruption into its own error
        known = failure_message(error)
        if known is None:
            raise
        print(f"error: {inert_lines(known)}", file=sys.stderr)
        return EXIT_CODES[InputError]
    return 0


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
            remedy = ", or set TMPDIR to a folder on another disk" * _is_temporary(failure)
            return f"{failure}. Free disk space{remedy}."
    if isinstance(error, OSError | ValueError) and is_path_error(error):
        return f"{error}. Choose another path."
    if isinstance(error, RuntimeError | ValueError):
        return next((message for text, message in _KNOWN if text in str(error)), None)
    return None


def _is_temporary(failure: BaseException) -> bool:
    """Return whether the disk of temporary files may be the one that is full."""
    place, named = tempfile.gettempdir(), getattr(failure, "filename", None)
    if isinstance(named, str) and Path(named).is_relative_to(place):
        return True
    is_full = getattr(failure, "errno", None) in (errno.ENOSPC, None)
    return not is_full or shutil.disk_usage(place).free < LEAST_FREE_BYTES


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
    """Print what the main process does next, so that a long start is not silent.

    A signal that a library has swallowed is heard here.
    """
    raise_if_heard()
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


def progress_bar(*, shown: bool = True, **options: Any) -> Any:
    """Return a progress bar of tqdm; its attribute `disable` says whether it is hidden.

    Args:
        shown: Whether to show it on a terminal or in a notebook with ipywidgets; elsewhere it is
            always hidden.
        options: Arguments of `tqdm.tqdm`.
    """
    if shown and in_notebook():
        # Without ipywidgets, a bar of characters would be a new line of errors at each update.
        shown = find_spec("ipywidgets") is not None
        if shown:
            from tqdm.notebook import tqdm

            return tqdm(**options)
    from tqdm import tqdm as bar_of_characters

    # With None, tqdm shows the bar only on a terminal.
    disable = None if shown else True
    return bar_of_characters(disable=disable, file=sys.stderr, dynamic_ncols=True, **options)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
