"""A command of `ampft`: a dataclass of flags and a function, and the two sides of ` -- `."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import ConfigFlag, GivenFlag, fields_and_hints, given_flags, parse_flags
from ampft.arguments.help_text import Help, spelled
from ampft.arguments.parsing import parse_classify_arguments, translated
from ampft.errors import InputError
from ampft.flag import SETTINGS

T = TypeVar("T", covariant=True)
R = TypeVar("R")
TRAINER = "ampft train"


@dataclass(frozen=True)
class TrainingSettings:
    """Says that settings of a training follow after ` -- `."""

    # Settings that the command chooses itself, and what to do instead. An empty text moves a flag
    # that the command has too to its side of ` -- `.
    chosen: Mapping[str, str] = field(default_factory=dict)
    is_script: bool = False  # Whether a script and its flags may follow instead.


@dataclass(frozen=True)
class CommandLine(Generic[T]):
    """A parsed command line of a command."""

    flags: T  # Settings of the command.
    given: frozenset[str]  # Names of the settings that the user set.
    program: str  # Program name in messages.
    trainer: str  # Program of the settings after ` -- `.
    has_dashes: bool  # Whether ` -- ` was there.
    after: list[str]  # Words after ` -- `.
    parsed: ClassifyArguments | None  # These, parsed; None if they are not for a training.

    @property
    def training(self) -> ClassifyArguments:
        """The settings of the training after ` -- `."""
        assert self.parsed is not None, "the command takes settings of a training"
        return self.parsed


@dataclass(frozen=True)
class Command(Generic[T, R]):
    """A command: its flags, what it does with them, and what its help says."""

    flags: type[T]  # Dataclass whose fields were made with `flag` or `positional`.
    run: Callable[[CommandLine[T]], R]
    shown: Help
    settings: TrainingSettings | None = None  # What follows after ` -- `; None for nothing.
    reads_config: bool = False  # Whether --config FILE reads the settings of the command.
    is_training: bool = False  # Whether the flags of transformers' scripts are understood too.

    def __call__(self, argv: Sequence[str] | None, program: str, trainer: str = TRAINER) -> R:
        """Parse a command line, and run the command."""
        return self.run(self.parse(argv, program, trainer))

    def parse(
        self, argv: Sequence[str] | None, program: str, trainer: str = TRAINER
    ) -> CommandLine[T]:
        """Return a parsed command line.

        Args:
            argv: Command line arguments of the command; `sys.argv[1:]` if None.
            trainer: Program of the settings after ` -- `.

        Raises:
            InputError: A flag is unknown, has an invalid value, is on the wrong side of ` -- `, or
                is set by the command.
        """
        words = list(sys.argv[1:] if argv is None else argv)
        at = words.index("--") if "--" in words and self.settings else len(words)
        before, after = words[:at], words[at + 1 :]
        if self.settings is not None:
            _refuse_misplaced(self, before, words[at:], program, trainer)
        flags, given = parse_flags(
            self.flags,
            translated(before, program) if self.is_training else before,
            program=program,
            shown=self.shown,
            reads_config=self.reads_config,
            others=fields_and_hints(ClassifyArguments)[0] if self.settings else (),
            combines=not self.is_training,
        )
        for f in fields_and_hints(self.flags)[0].values():
            reason = f.metadata["excludes"].get(SETTINGS)
            if reason and f.name in given and at < len(words):
                raise InputError(
                    f"{spelled(f, getattr(flags, f.name))} and settings after ` -- `: {reason}. "
                    "Remove one of them."
                )
        training = None
        if self.settings and not (self.settings.is_script and not _are_flags(after)):
            evaluates = {
                "evaluate_only": f"{program} needs a training. Add --do_train; ampft train "
                "evaluates a model as it is"
            }
            refuse_chosen = partial(_refuse_chosen, chosen={**evaluates, **self.settings.chosen})
            start = [*program.split(), *before, "--"]
            after = translated(after, trainer, start, refuse_chosen)
            training = parse_classify_arguments(after, program=trainer)
            refuse_chosen(training)
        return CommandLine(flags, given, program, trainer, at < len(words), after, training)


def _are_flags(words: Sequence[str]) -> bool:
    return bool(words) and words[0].startswith("-")


def _refuse_chosen(training: ClassifyArguments, chosen: Mapping[str, str]) -> None:
    """Reject settings of the training that the command chooses, from a flag or a --config file."""
    for name, remedy in chosen.items():
        value = getattr(training, name)
        if value not in (None, False) and value != getattr(ClassifyArguments, name):
            text = "" if value is True else f" {value}"
            raise InputError(f"--{name}{text} after ` -- `: {remedy or 'remove it from the file'}.")


def _refuse_misplaced(
    command: Command[Any, Any],
    before: Sequence[str],
    rest: Sequence[str],
    program: str,
    trainer: str,
) -> None:
    """Reject flags on the wrong side of ` -- `, and print the command that is meant."""
    settings, after = command.settings, list(rest[1:])
    assert settings is not None, "the command has two sides"
    if "--" in after:
        raise InputError(
            f"` -- ` appears twice: the settings of {trainer} follow after the first one. Remove "
            "the other."
        )
    own, _ = fields_and_hints(command.flags)
    theirs, _ = fields_and_hints(ClassifyArguments)
    only_own = {n for n in own if n not in theirs or settings.chosen.get(n) == ""}
    left = list(
        given_flags(before, *fields_and_hints(ConfigFlag, ClassifyArguments, command.flags))
    )
    right = list(
        given_flags(after, *fields_and_hints(ConfigFlag, command.flags, ClassifyArguments))
    )
    # With a script, everything from its name on is its own.
    is_loose = [settings.is_script and not each.name and bool(each.values) for each in left]
    script = is_loose.index(True) if True in is_loose else len(left)
    is_training = script == len(left) and not (settings.is_script and not _are_flags(after))
    late = [
        each for position, each in enumerate(left)
        if each.name in theirs.keys() - own.keys()
        or (position >= script and each.name not in only_own)
    ]  # fmt: skip
    early = [
        each for each in right
        if each.name in only_own and (is_training or each.name in settings.chosen)
    ]  # fmt: skip
    if not late and not early:
        return
    without = {n: f for n, f in own.items() if SETTINGS in f.metadata["excludes"]}
    loose = next((n for n in without if own[n].metadata["positional"]), "")
    for each in left if late else ():
        f = without.get(each.name or loose)
        if f is not None and each.values and each not in late:
            raise InputError(
                f"{late[0].words[0]} is a setting of {trainer}, and has no effect with "
                f"{spelled(f, each.values)}: {f.metadata['excludes'][SETTINGS]}. Remove it."
            )
    for each in late if is_training else ():
        if remedy := settings.chosen.get(each.name):
            raise InputError(f"{each.words[0]} is a setting of {trainer}: {remedy}.")
    sentences = [
        _belongs(each, *where) for each, *where in (
            (late, trainer, "after"), (early, program, "before")) if each
    ]  # fmt: skip
    moved = shlex.join([
        *program.split(),
        *_with_moved(left, late, early, own),
        "--",
        *_with_moved(right, early, late, theirs),
    ])  # fmt: skip
    raise InputError(f"{' '.join(sentences)} Write: {moved}")


def _belongs(flags: Sequence[GivenFlag], owner: str, side: str) -> str:
    names = list(dict.fromkeys(each.words[0].split("=")[0] for each in flags))
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    are, belong = ("are settings", "belong") if len(names) > 1 else ("is a setting", "belongs")
    return f"{listed} {are} of {owner} and {belong} {side} ` -- `."


def _with_moved(
    side: Sequence[GivenFlag],
    away: Sequence[GivenFlag],
    here: Sequence[GivenFlag],
    known: Mapping[str, Field[Any]],
) -> list[str]:
    """Return the words of a side without what moves away, and with what moves here."""
    replaced = {each.name for each in here if each.name and not known[each.name].metadata["joined"]}
    kept = [each for each in side if each not in away and each.name not in replaced]
    return [word for each in (*kept, *here) for word in each.words]
