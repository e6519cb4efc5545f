"""Labels as strings: their order, and which of them may mean the same class."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
TRUTH = {"true": "true", "yes": "true", "false": "false", "no": "false"}


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort label names: numbers by their value, first, then the rest by their characters."""

    def key(name: str) -> tuple[bool, float, str]:
        is_number = NUMBER.fullmatch(name.strip()) is not None
        return (not is_number, float(name) if is_number else 0.0, name)

    return tuple(sorted(names, key=key))


def canonical(name: str) -> str:
    """Return what a label may mean: equal for `1` and `1.0`, `007` and `7`, `Pos` and ` pos`.

    `True` and `yes` are one, `False` and `no` are one. Labels are never merged by this.
    """
    folded = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    if NUMBER.fullmatch(folded):
        return repr(float(folded))
    return TRUTH.get(folded, folded)


def near_duplicates(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of labels that differ in spelling alone, each in order."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[canonical(name)].append(name)
    return [in_order(group) for group in groups.values() if len(group) > 1]
