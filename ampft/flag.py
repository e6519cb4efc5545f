"""A field of a settings dataclass that becomes a command line flag.

Every layer declares the settings that it reads, so that one object travels from the flag to where
it is used. `ampft.arguments` joins them for a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, field
from typing import Any

MAX_SEED = 2**32 - 1  # NumPy seeds have 32 bits
REQUIRED = MISSING
"""Default of a flag that must be passed; the dataclass needs `kw_only=True`."""
SETTINGS = "--"
"""Stands for settings after ` -- ` in `excludes`."""

# Headings in the help output, in their order.
MODEL, TRAINED, DATA, PIXELS = "model", "what is trained", "data", "pixels"
BATCH, OPTIMIZER = "batches and precision", "optimizer and schedule"
EVALUATION, OUTPUT = "evaluation", "output"
GROUPS = (MODEL, TRAINED, DATA, PIXELS, BATCH, OPTIMIZER, EVALUATION, OUTPUT)
OPTIONS = "options"


def flag(
    default: Any,
    text: str,
    *,
    group: str = OPTIONS,
    metavar: str | None = None,
    choices: Collection[str] | None = None,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    bare: str | None = None,
    joined: bool = False,
    many: bool = False,
    check: Callable[[str, Any], object] | None = None,
    needs: Collection[str] = (),
    excludes: Mapping[str, str] | None = None,
) -> Any:
    """Return a dataclass field that becomes a command line flag.

    A flag that is repeated is refused, unless its type is a tuple or it is `joined`.

    Args:
        default: Value if the user sets none.
        text: Help text, with the unit.
        group: Heading in the help output.
        metavar: Name of the value in the help; None derives one.
        choices: Allowed values; None allows all.
        above: Lower limit of a number, exclusive.
        at_least: Minimum of a number, inclusive.
        at_most: Maximum of a number, inclusive.
        below: Upper limit of a number, exclusive.
        bare: Value of a text if the flag is passed without one; None demands a value.
        joined: Whether a repeated flag joins its values with commas.
        many: Whether the flag takes several values at once, as `--best A B C`.
        check: Called with the name of the flag and a value that the user set; raises InputError.
        needs: Names of flags one of which must be on for this one to have an effect.
        excludes: Flags that cannot be combined with this one, and why, as a clause.
    """
    limits = {"above": above, "at_least": at_least, "at_most": at_most, "below": below}
    metadata = {
        "help": text, "group": group, "metavar": metavar, "choices": choices, "limits": limits,
        "bare": bare, "joined": joined, "many": many, "check": check, "needs": tuple(needs),
        "excludes": excludes or {}, "positional": False,
    }  # fmt: skip
    return field(default=default, metadata=metadata)


def positional(
    default: Any,
    metavar: str,
    text: str,
    *,
    choices: Collection[str] | None = None,
    excludes: Mapping[str, str] | None = None,
) -> Any:
    """Return a dataclass field that becomes an argument without a flag; a tuple takes any number.

    Args:
        default: Value if the user passes none; `REQUIRED` demands one.
        metavar: Name in the help and in messages.
        choices: Allowed values; None allows all.
        excludes: Flags that cannot be combined with this argument, and why, as a clause.
    """
    made = flag(default, text, metavar=metavar, choices=choices, excludes=excludes)
    return field(default=default, metadata={**made.metadata, "positional": True})


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Return the names in a comma-separated list; None if there is no list."""
    return None if text is None else tuple(part.strip() for part in text.split(","))
