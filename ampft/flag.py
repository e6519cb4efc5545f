"""A field of a settings dataclass that becomes a command line flag.

Every layer declares the settings that it reads, so that one object travels from the flag to where
it is used. `ampft.arguments` joins them for a command line.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import Any

MAX_SEED = 2**32 - 1  # NumPy seeds have 32 bits

# Headings in the help output, in their order.
MODEL, TRAINED, DATA, PIXELS = "model", "what is trained", "data", "pixels"
BATCH, OPTIMIZER = "batches and precision", "optimizer and schedule"
EVALUATION, OUTPUT = "evaluation", "output"
GROUPS = (MODEL, TRAINED, DATA, PIXELS, BATCH, OPTIMIZER, EVALUATION, OUTPUT)


def flag(
    default: Any,
    text: str,
    *,
    group: str,
    choices: Collection[str] | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    bare: str | None = None,
) -> Any:
    """Return a dataclass field that becomes a command line flag.

    Args:
        default: Value if the user sets none.
        text: Help text, with the unit.
        group: Heading in the help output.
        choices: Allowed values; None allows all.
        at_least: Minimum of a number, inclusive.
        at_most: Maximum of a number, inclusive.
        below: Upper limit of a number, exclusive.
        bare: Value of a text if the flag is passed without one; None demands a value.
    """
    limits = {"at_least": at_least, "at_most": at_most, "below": below}
    metadata = {"help": text, "group": group, "choices": choices, "limits": limits, "bare": bare}
    return field(default=default, metadata=metadata)


def split_names(text: str | None) -> tuple[str, ...] | None:
    """Return the names in a comma-separated list; None if there is no list."""
    return None if text is None else tuple(part.strip() for part in text.split(","))
