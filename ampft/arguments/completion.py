"""Completion of `ampft` in the shell, if argcomplete is installed and the shell asks for it."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import fields

from ampft.arguments.classify import ClassifyArguments


def complete(make_parser: Callable[[], ArgumentParser]) -> None:
    """Answer the shell and end the process; do nothing if no shell asks.

    Args:
        make_parser: Function that returns the parser with its commands; `train` gets its flags
            here.
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
