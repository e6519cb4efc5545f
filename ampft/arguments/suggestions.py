"""Advice on names that are unknown here: of flags, commands and choices."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import SequenceMatcher

from ampft.arguments.extension_points import NAMES_OF_OTHERS, OtherNames
from ampft.errors import MAX_QUOTED, did_you_mean
from ampft.precision.modes import OTHER_NAMES

# Hints for values of the wrong type, by the name of the flag.
INVALID_VALUES = {"num_train_epochs": " For part of an epoch, set --max_train_steps instead."}
WORD, WHOLE = 0.87, 0.84  # how alike words and whole names are that differ by a typo
_NAMES_OF_FILES = ("input", "input_file", "inputs", "file", "data", "data_file", "test_file")
_NAMED = re.compile(r"--(\w+)")
BOOLEAN_WORDS = ("true", "false", "yes", "no", "1", "0")


def suggestion(name: str, known: Collection[str], *, dashes: str = "--") -> str:
    """Return advice on the unknown setting `name`, or an empty string.

    Args:
        name: Name of the setting, without leading dashes.
        dashes: Prefix of a similar name in the advice.
    """
    of_training = "train_file" in known
    if name in _NAMES_OF_FILES and "model" in known and not of_training:
        return " Give the file without a flag."
    others = NAMES_OF_OTHERS.get() or OtherNames()
    name = _without_typo(name, known, others.advice)
    if name in others.advice:
        advice = others.advice[name]
        is_known = any(other in known for other in _NAMED.findall(advice))
        if of_training or name in others.of_every_command or is_known:
            return f" {advice}"
    transformers = others.transformers if of_training else {}
    if name in transformers and name not in transformers[name]:
        return f" Here it is: {transformers[name]}."
    near = closest(name, [*known, *transformers])
    if near:
        return f" Did you mean '{dashes}{near}'?"
    if dashes and name in others.settings and not of_training:
        return " It is a setting of ampft train, and has no effect here: remove it."
    return ""


def meant_flag(name: str, known: Collection[str]) -> str | None:
    """Return the flag whose value an unknown one has, by another name or a typo."""
    others = NAMES_OF_OTHERS.get() or OtherNames()
    name = _without_typo(name, known, others.advice)
    if name in others.advice:
        return others.flags.get(name)
    return closest(name, [*known, *others.transformers])


def _without_typo(name: str, known: Collection[str], others: Collection[str]) -> str:
    """Return the name of another program that differs by a typo, unless one here is as near."""

    def alike(other: str) -> float:
        return SequenceMatcher(None, name, other).ratio()

    if len(name) > MAX_QUOTED or not others:
        return name
    near = max(others, key=alike)
    return near if alike(near) > max((WORD, *map(alike, known))) else name


def closest(name: str, known: Collection[str]) -> str | None:
    """Return the name that is meant: one with all words of `name`, or one that differs by a typo.

    Names that share letters, but neither words nor a meaning, are not offered: `use_amp` is not
    `use_cpu`.
    """

    def alike(first: str, second: str) -> float:
        return SequenceMatcher(None, first, second).ratio()

    def has_words(other: str) -> bool:
        parts = other.split("_")
        return all(any(alike(word, part) >= WORD for part in parts) for word in name.split("_"))

    if len(name) > MAX_QUOTED:
        return None
    near = [other for other in known if has_words(other) or alike(name, other) >= WHOLE]
    return max(near, key=lambda other: alike(name, other), default=None)


def choice_hint(text: str, choices: Collection[str]) -> str:
    """Return advice on a value that is not one of the choices, or an empty string."""
    name = text.lower()
    others = NAMES_OF_OTHERS.get() or OtherNames()
    if name in others.choices:
        return others.choices[name]
    other = OTHER_NAMES.get(name) or others.names.get(name)
    return f" Did you mean {other!r}?" if other in choices else did_you_mean(name, choices)
