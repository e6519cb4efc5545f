"""Completion of `ampft` in the shell, if argcomplete is installed and the shell asks for it."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import fields

from ampft.arguments.classify import ClassifyArguments


def print_completions(make_parser: Callable[[], ArgumentParser]) -> None:
    """Print the completions that a shell asks for with Tab, and end the process.

    Do nothing if no shell asks.

    Args:
        make_parser: Function that returns the parser with its commands. `train` has no flags in
            it; this function adds them.
    """
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    parser = make_parser()
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for each in fields(ClassifyArguments):
                choices = each.metadata["choices"]
                action.choices["train"].add_argument(f"--{each.name}", choices=choices)
    argcomplete.autocomplete(parser)
