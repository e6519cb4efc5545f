"""Completion of `ampft` in the shell, if argcomplete is installed and the shell asks for it."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any


def print_completions(names: Sequence[str], find_command: Callable[[str], Any]) -> None:
    """Print the completions that a shell asks for with Tab, and end the process.

    Do nothing if no shell asks.

    Args:
        find_command: Function that returns the `Command` of a name.
    """
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    parser = ArgumentParser()
    commands = parser.add_subparsers()
    typed = os.environ.get("COMP_LINE", "").split()[1:2]
    for name in names:
        command = commands.add_parser(name)
        for each in fields(find_command(name).flags) if [name] == typed else ():
            if not each.metadata["positional"]:
                command.add_argument(f"--{each.name}", choices=each.metadata["choices"])
    argcomplete.autocomplete(parser)
