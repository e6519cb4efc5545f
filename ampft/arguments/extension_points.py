"""What add-ons add to the command line: the flags and names of other programs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ampft.registry import ExtensionPoint
from ampft.text.terminal import labelled


@dataclass(frozen=True)
class OtherNames:
    """What other programs call flags, commands, tasks and choices, and what the same is here."""

    # Advice on a flag, and the flag with the same values here if there is one.
    advice: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    of_every_command: Collection[str] = ()  # Flags on which any command advises.
    settings: Collection[str] = ()  # Of a training, which other commands lack.
    transformers: Mapping[str, str] = field(default_factory=dict)  # What its flags do here.
    names: Mapping[str, str] = field(default_factory=dict)  # Of commands and tasks.
    choices: Mapping[str, str] = field(default_factory=dict)  # Advice on a choice.


@dataclass(frozen=True)
class Translation:
    """A command line in ampft's flags."""

    words: list[str]
    converted: list[tuple[str, str]]  # Words before and after.
    harmless: list[str]  # Flags without effect here.

    @property
    def lines(self) -> list[str]:
        """One line on what was converted, and one on what has no effect."""
        lines = []
        if self.converted:
            pairs = (f"{old} -> {new}" for old, new in self.converted)
            lines.append(labelled("read as", "; ".join(pairs)))
        if self.harmless:
            lines.append(labelled("unused", f"{', '.join(self.harmless)}: not needed here"))
        return lines


@dataclass(frozen=True)
class OwnFlags:
    """What is asked of ampft's own parser."""

    switches: Mapping[str, bool]  # Its flags by name, and whether each is a switch.
    # What is wrong with the words of one flag, which may be unknown; None if nothing is.
    problem: Callable[[Sequence[str]], str | None]
    # What is wrong with a command line without such problems; None if nothing is.
    conflict: Callable[[Sequence[str]], str | None]
    # The flag that an unknown one stands for, with the same values.
    meant: Callable[[str], str | None]


class OtherFlags(Protocol):
    """Converts flags and settings of transformers' scripts."""

    def translate(
        self, argv: Sequence[str], own: OwnFlags, *, command: Sequence[str] | None
    ) -> Translation:
        """Convert a command line of transformers' scripts into ampft's."""
        ...

    def arguments_of_json(self, path: str) -> list[str]:
        """Return the settings in a JSON file as words."""
        ...

    def split_config_settings(
        self, settings: Mapping[str, Any], switches: Mapping[str, bool]
    ) -> tuple[dict[str, Any], Translation, list[str]]:
        """Return ampft's settings in a file, the others converted, and what is wrong with them."""
        ...


NAMES_OF_OTHERS = ExtensionPoint[OtherNames]("integrations", "knows the names of other programs")
FLAGS_OF_TRANSFORMERS = ExtensionPoint[OtherFlags]("integrations", "reads flags of transformers")
