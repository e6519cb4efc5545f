"""The command `ampft`: which commands there are, and where each has its room."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from ampft.arguments.help_text import entry, terminal_width
from ampft.arguments.suggestions import choice_hint
from ampft.errors import InputError
from ampft.exit_codes import run_main
from ampft.registry import found
from ampft.text.terminal import discard_output

# The commands by group: where each is, as `module:name` in this package, and what it does. A name
# is a `Command`, or a function that chooses one for the arguments.
COMMANDS = {
    "start here": {
        "env": (
            "commands.installation:ENVIRONMENT",
            "show hardware, versions, and how each precision would run on this machine",
        ),
        "train": ("commands.training:TRAIN", "fine-tune a classifier"),
        "predict": (
            "commands.predicting:PREDICT",
            "predict files, texts, images or sounds with a trained model",
        ),
        "report": ("commands.run_folders:REPORT", "print the report of a run or a comparison"),
        "compare": (
            "commands.comparing:COMPARE",
            "train in several precisions or with several settings and compare, or compare runs",
        ),
    },
    "around a training": {
        "estimate": (
            "commands.training:ESTIMATE",
            "say how long a training will take, and what it needs, from a few steps",
        ),
        "checkpoint": (
            "commands.run_folders:CHECKPOINT",
            "list or verify the checkpoints of a run",
        ),
        "export": (
            "export.certificate.export_command:EXPORT",
            "write a model for onnxruntime, OpenVINO or PyTorch, and verify it",
        ),
        "push": ("commands.run_folders:PUSH", "push a model and its card to the Hugging Face hub"),
        "recipe": ("commands.installation:RECIPE", "print a training script to copy and change"),
    },
    "laboratory: why a precision fails": {
        "doctor": (
            "lab.doctor.doctor:DOCTOR",
            "find what breaks a precision for a model and its data, and a cure",
        ),
        "yardstick": (
            "lab.yardstick.yardstick:YARDSTICK",
            "measure the gradient error of each precision relative to batch noise",
        ),
        "ops": ("lab.operations.ops:OPS", "show which operations autocast casts to which dtype"),
    },
    "laboratory: a better model": {
        "errors": (
            "lab.mistakes.errors_command:ERRORS",
            "show the most confident errors of a run, and the classes that it confuses",
        ),
        "search": (
            "lab.search.search:SEARCH",
            "choose learning rate and length within a time, and say what that gained",
        ),
        "curve": ("lab.curve.curve:CURVE", "say what twice the labels would add to the score"),
        "judge": (
            "lab.referee.judge_command:JUDGE",
            "keep or drop each of many changes tried on one test set",
        ),
    },
    "laboratory: proof": {
        "accept": (
            "lab.accept.accept:ACCEPT",
            "say which promises hold on this machine, by commands as users type them",
        ),
        "audit": (
            "lab.audit.audit_command:audit_command",
            "repeat a run, an export or a ledger from its record, and confirm it or not",
        ),
        "resume-check": (
            "lab.resume_check:RESUME_CHECK",
            "prove that a training continues exactly after being killed",
        ),
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if completion := found("completion"):
        completion.print_completions(names(), find_command)
    try:
        return run_main(lambda: _run(words))
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        discard_output()
        return 0


def names() -> list[str]:
    """Return the names of all commands."""
    return [name for group in COMMANDS.values() for name in group]


def find_command(name: str, argv: Sequence[str] = ()) -> Any:
    """Return the `Command` of a name, and import what it needs.

    Args:
        argv: Its arguments, which may decide between several of the same name.
    """
    place = next(group[name] for group in COMMANDS.values() if name in group)[0]
    module, _, item = place.partition(":")
    command = getattr(import_module(f"ampft.{module}"), item)
    return command(argv) if item.islower() else command


def _run(words: Sequence[str]) -> None:
    name = words[0] if words else None
    if name == "help" and words[1:2] and words[1] in names():
        name, words = words[1], [words[1], "--help"]
    if name in ("-h", "--help", "help"):
        print("\n".join(_help()))
    elif name == "--version":
        from ampft.machine import installed_versions

        print(f"ampft {installed_versions(['ampft']).get('ampft', '(a checkout, not installed)')}")
    elif name in names():
        find_command(name, words[1:])(words[1:], f"ampft {name}")
    elif name is None:
        raise InputError("the command is missing, such as ampft train. See ampft --help.")
    else:
        what = "unknown flag" if name.startswith("-") else "unknown command"
        hint = choice_hint(name, names())
        raise InputError(f"{what} {name}.{hint} See ampft --help.")


def _help() -> Iterator[str]:
    width = terminal_width()
    yield "usage: ampft COMMAND ..."
    yield ""
    yield from textwrap.wrap(
        "Fine-tune classifiers in mixed precision, predict with them and compare them, with "
        "evidence.",
        width,
    )
    for title, group in COMMANDS.items():
        yield from ("", f"{title}:")
        for name, (_, summary) in group.items():
            yield from entry(name, summary, width, 16)
    yield ""
    yield "ampft COMMAND --help lists the settings of a command."


if __name__ == "__main__":
    sys.exit(main())
