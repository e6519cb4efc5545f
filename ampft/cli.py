"""The command `ampft`: it finds the command that the first word names, and lists all of them."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ampft.arguments.commands import Command
from ampft.arguments.help_text import entry, terminal_width
from ampft.arguments.suggestions import choice_hint
from ampft.commands.all_commands import all_commands
from ampft.commands.extension_points import COMPLETION, GROUPS
from ampft.errors import InputError
from ampft.exit_codes import run_main
from ampft.text.terminal import discard_output


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if print_completions := COMPLETION.get():
        print_completions(names(), find_command)
    try:
        return run_main(partial(_run, words))
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        discard_output()
        return 0


def names() -> list[str]:
    """Return the names of all commands."""
    return list(all_commands())


def find_command(name: str, argv: Sequence[str] = ()) -> Command[Any, Any]:
    """Return the `Command` of a name, and import what it needs.

    Args:
        argv: Its arguments, which may decide between several of the same name.
    """
    return all_commands()[name].load(argv)


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
        if Path(name).suffix in (".yaml", ".yml", ".json") and Path(name).is_file():
            raise InputError(
                f"{name}: the command is missing before this file. If it holds settings of a "
                f"training: ampft train --config {shlex.quote(name)}. See ampft --help."
            )
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
    for title in GROUPS:
        entries = [each for each in all_commands().values() if each.group == title]
        if entries:
            yield from ("", f"{title}:")
        for each in entries:
            yield from entry(each.name, each.summary, width, 16)
    yield ""
    yield "ampft COMMAND --help lists the settings of a command."


if __name__ == "__main__":
    sys.exit(main())
