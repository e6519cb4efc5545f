"""The settings of a comparison of user-defined arms, and after `--` the settings of all runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.commands import Command, CommandLine, TrainingSettings
from ampft.arguments.flags import later_wins, parse_flags
from ampft.arguments.help_text import Help
from ampft.arguments.parsing import parse_classify_arguments
from ampft.comparison.settings import (
    COMPARISON,
    PLACEBO,
    SET_BY_COMPARISON,
    SET_BY_MODES,
    ArmSettings,
    CompareCommand,
    ComparisonFlags,
    comparison_command,
)
from ampft.errors import InputError
from ampft.flag import flag
from ampft.precision.modes import BASELINE, MODES
from ampft.tasks.table import TASKS
from ampft.text.escaping import without_credentials
from ampft.text.numbers import counted

PROGRAM = "compare.py"
EXAMPLE = '--arm base --arm "low: --learning_rate 1e-5"'
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")

# Settings that an arm may not have, in addition to those that the comparison sets.
SHARED = {
    "seed": "all arms train with the same seeds; write the first one after ` -- `",
    "config": "write the settings of an arm as flags, because a file would be overridden by the "
    "shared flags",
}


@dataclass(frozen=True)
class ArmFlags:
    """The arms of a comparison."""

    arm: tuple[str, ...] = flag(
        (),
        'name of an arm and the settings in which it differs, such as "low: --learning_rate '
        '1e-5"; repeat the flag for each arm, the baseline first',
        group=COMPARISON,
        metavar="NAME:FLAGS",
        excludes={
            "modes": "the precision of an arm is one of its settings, --mixed_precision",
            "yardstick": "it compares precisions, and not other settings",
        },
    )
    select: str | None = flag(
        None,
        "validation: choose the arm with the best mean validation metric, with separate seeds, and "
        "compare only that one with the baseline, on the test data (an arm that the test data "
        "choose would seem better than it is)",
        group=COMPARISON,
        choices=("validation",),
        needs=("arm",),
        excludes={"folds": "folds do not choose between arms"},
    )
    select_seeds: int = flag(
        2,
        "number of seeds that choose the arm, before those of --seeds",
        group=COMPARISON,
        at_least=1,
        needs=("select",),
    )


@dataclass(frozen=True)
class CompareArmsArguments(ComparisonFlags, ArmFlags):
    """The settings of a comparison of arms."""


def parse_compare_arms_arguments(
    argv: Sequence[str] | None = None, *, program: str = PROGRAM, trainer: str = "classify.py"
) -> CompareCommand:
    """Parse the command line of `recipes/compare.py` or of `ampft compare --arm`.

    Takes the same arguments as `parse_compare_arguments`.

    Raises:
        InputError: A flag of the comparison, of an arm or of all runs is unknown, has an invalid
            value or conflicts with another; or an arm has no name, or equals another.
    """
    return ARMS(argv, program=program, trainer=trainer)


def command_of_arms(line: CommandLine[CompareArmsArguments]) -> CompareCommand:
    """Return the comparison of arms that a command line asks for.

    Raises:
        InputError: An arm has no name, equals another or has an invalid setting, or another
            setting has an invalid value.
    """
    settings, shared_argv = line.flags, line.after
    named = [_split(text) for text in settings.arm]
    _check_names([name for name, _ in named])
    parsed = [_parse_arm(name, flags, shared_argv, line.trainer) for name, flags in named]
    _refuse_equal(parsed)
    arms = tuple(arm for arm, _ in parsed)
    if settings.select and len(arms) < 3:
        raise InputError(
            "--select validation: there is nothing to choose between two arms. Remove the flag, "
            "or add an arm."
        )
    select_seeds = settings.select_seeds if settings.select else 0
    return comparison_command(
        settings, shared_argv, parsed[0][1], arms=arms, select_seeds=select_seeds
    )


def _split(text: str) -> tuple[str, list[str]]:
    """Return the name and the flags in a text such as "low: --learning_rate 1e-5"."""
    name, _, flags = text.partition(":")
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise InputError(
            f"--arm {text!r}: the name of the arm is {'missing' if not name else 'invalid'}. "
            "Begin with a name of up to 40 letters, digits, dots, dashes and underscores, and a "
            f"colon: {EXAMPLE}."
        )
    try:
        return name, shlex.split(flags)
    except ValueError as error:
        raise InputError(f"--arm {text!r}: the flags cannot be split ({error}).") from None


def _check_names(names: Sequence[str]) -> None:
    if len(names) < 2:
        raise InputError(
            f"--arm: received {counted(len(names), 'arm')}, but a comparison needs at least two, "
            f"the baseline first: {EXAMPLE}."
        )
    if PLACEBO in names:
        raise InputError(f"--arm {PLACEBO}: this name is reserved. Choose another name.")
    lower = [name.lower() for name in names]  # some file systems ignore case
    for name in names:
        if lower.count(name.lower()) > 1:
            raise InputError(f"--arm {name}: two arms have this name. Give each its own name.")


def _parse_arm(
    name: str, flags: Sequence[str], shared_argv: Sequence[str], trainer: str
) -> tuple[ArmSettings, ClassifyArguments]:
    """Return the settings of an arm, and all settings of its runs."""
    for word in (name, *flags):
        if without_credentials(word) != word:
            raise InputError(
                f"--arm {without_credentials(name)}: a token or a password is in its settings, "
                "which the plan and the report state. Set it in the environment, such as HF_TOKEN."
            )
    try:
        if any(each.split("=")[0] == "--config" for each in flags):
            raise InputError(f"--config: {SHARED['config']}.")
        _, changed = parse_flags(
            ClassifyArguments, flags, program=trainer, shown=Help(""), combines=False
        )
        for setting in changed & {*SHARED, *SET_BY_COMPARISON, "check_precision"}:
            remedy = (SHARED | SET_BY_COMPARISON | SET_BY_MODES)[setting]
            raise InputError(f"--{setting}: {remedy or 'give it before ` -- `'}.")
        together = later_wins(ClassifyArguments, shared_argv, flags)
        arguments = parse_classify_arguments(together, program=trainer)
    except InputError as error:
        raise InputError(f"--arm {name}: {error}") from None
    mode = arguments.mixed_precision or BASELINE
    mode = BASELINE if mode == "no" else mode
    if name in MODES and name != mode:
        raise InputError(
            f"--arm {name}: the arm has the name of a precision, but trains in {mode}. Choose "
            f"another name, or add --mixed_precision {name}."
        )
    return ArmSettings(name, tuple(flags), mode), arguments


def _refuse_equal(parsed: Sequence[tuple[ArmSettings, ClassifyArguments]]) -> None:
    """Reject arms with equal settings, or with other kinds of labels than the baseline."""
    seen: dict[str, str] = {}
    for arm, arguments in parsed:
        settings = repr(asdict(arguments) | {"mixed_precision": arm.mode})
        if settings in seen:
            raise InputError(
                f"--arm {arm.name}: its settings are the same as {seen[settings]}'s. Change a "
                "setting, or remove the arm; the placebo already repeats the baseline."
            )
        seen[settings] = arm.name
    baseline, problem = parsed[0][0].name, _problem(parsed[0][1])
    for arm, arguments in parsed:
        if _problem(arguments) != problem:
            raise InputError(
                f"--arm {arm.name}: --task {_task(arguments)} has other labels than {baseline} "
                f"({_problem(arguments)} and {problem}). Compare arms with the same kind of labels."
            )


def _task(arguments: ClassifyArguments) -> str:
    return arguments.task or next(iter(TASKS))


def _problem(arguments: ClassifyArguments) -> str:
    return TASKS[_task(arguments)].problem_type().name


ARMS = Command(
    CompareArmsArguments,
    command_of_arms,
    Help(
        "Compare settings statistically: train every arm with several seeds, one process per run, "
        "and write a report. Settings of a training that all arms share follow after ` -- `."
    ),
    TrainingSettings(SET_BY_COMPARISON),
    reads_config=True,
)
