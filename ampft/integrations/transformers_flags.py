"""Command lines of transformers' scripts and `TrainingArguments`, converted by value to ampft's."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ampft.arguments.extension_points import OwnFlags, Translation
from ampft.errors import InputError
from ampft.integrations.transformers_rows import (
    FALSE,
    HARMLESS,
    ROWS,
    SWITCH,
    TAKEN,
    TRUE,
    VALUE,
    RefusedError,
)
from ampft.processes import LAUNCHER_VARIABLES

_FLAG = re.compile(r"--\S|-[A-Za-z]\S*$")
_Item = tuple[str, str, tuple[str, ...]]  # Name, value and words of a flag.
CONFIG = "config"
_SOURCES = {"dataset_name", "train_file", CONFIG}  # flags without which built-in data are read


def translate(argv: Sequence[str], own: OwnFlags, *, command: Sequence[str] | None) -> Translation:
    """Convert a command line of transformers' scripts into ampft's.

    Args:
        argv: Command line arguments, without the program name.
        command: Words before the flags in the corrected command; None for none.

    Raises:
        InputError: Some flags are unknown, wrong, or cannot be converted. The message lists all.
            If there are several or one of another script, it ends with a corrected command.
    """
    translation, problems = _checked(argv, own)
    if not problems:
        return translation
    lines = list(problems.values())
    is_simple = len(lines) == 1 and lines[0] not in problems  # its own message is advice enough
    if CONFIG not in problems:
        words, is_whole, is_renamed = _corrected(argv, own)
        conflict = own.conflict(words) if words else None
        if conflict is not None:
            lines += conflict.splitlines()
        elif words and command is not None and not is_simple:
            command = launch_command(argv) or command
            without = "Without it" if len(lines) == 1 else "Without them"
            without = "Corrected, without the others" if is_renamed else without
            lines.append(
                f"{'Corrected' if is_whole else without}: {shlex.join([*command, *words])}"
            )
    raise InputError("\n".join(lines))


def launch_command(argv: Sequence[str]) -> list[str] | None:
    """Return the words before the flags, if a launcher such as torchrun started this process.

    Args:
        argv: The flags, with which the launcher's own command line ends.
    """
    if not any(name in os.environ for name in LAUNCHER_VARIABLES):
        return None
    import psutil

    try:
        words = psutil.Process().parent().cmdline()
    except (AttributeError, psutil.Error):  # it has ended, or belongs to another user
        return None
    head = words[: len(words) - len(argv)]
    if not head or words[len(head) :] != list(argv):
        return None
    if len(head) > 1 and Path(head[0]).name.startswith("python") and head[1] != "-m":
        head = head[1:]  # the interpreter in the first line of the launcher's script
    return [Path(head[0]).name, *head[1:]]


def _corrected(argv: Sequence[str], own: OwnFlags) -> tuple[list[str], bool, bool]:
    """Return the command line without what is wrong, and unknown flags under what is meant.

    It is empty if it would train on the built-in data.

    Returns:
        The words, whether they replace all that was wrong, and whether a flag was renamed.
    """
    words, is_renamed = list(argv), False
    for old in argv:
        new = _meant(old, own)
        renamed = [new if new and word == old else word for word in words]
        if new and len(_checked(renamed, own)[1]) < len(_checked(words, own)[1]):
            words, is_renamed = renamed, True
    # Other unknown flags go before the rest is converted, which may depend on what is set.
    unknown = [_name(word) for word in words if _FLAG.match(word) and not _is_known(word, own)]
    flags = _by_flag(words)
    words = [word for name, group in flags.items() if name not in unknown for word in group]
    translation, problems = _checked(words, own)
    flags = {k: v for k, v in _by_flag(translation.words).items() if k not in problems}
    is_whole = not unknown and not problems
    if not is_whole and _SOURCES.isdisjoint(flags):
        return [], False, False
    return [word for group in flags.values() for word in group], is_whole, is_renamed


def _checked(argv: Sequence[str], own: OwnFlags) -> tuple[Translation, dict[str, str]]:
    """Return a command line in ampft's flags, and what is wrong with flags by their names."""
    translation, refused = _translate(argv, own.switches)
    found = {name: own.problem(group) for name, group in _by_flag(translation.words).items()}
    wrong = {name: text for name, text in found.items() if text is not None}
    return translation, {text: text for text in refused} | wrong


def _is_known(word: str, own: OwnFlags) -> bool:
    name = _name(word)
    return word.startswith("--") and bool({name, name.removeprefix("no_")} & {*own.switches, *ROWS})


def _meant(word: str, own: OwnFlags) -> str | None:
    """Return an unknown flag under the name that is meant; None for other words."""
    if not word.startswith("--") or _is_known(word, own):
        return None
    new, (_, equals, value) = own.meant(_name(word)), word.partition("=")
    return None if new is None else f"--{new}{equals}{value}"


def _name(flag: str) -> str:
    """Return the name of a flag as a word of a command line."""
    return flag.lstrip("-").partition("=")[0].replace("-", "_")


def _by_flag(words: Sequence[str]) -> dict[str, list[str]]:
    """Return a command line by the names of its flags; words before the first have no name."""
    groups: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if _FLAG.match(word):
            name = _name(word.replace("--no-", "--", 1))
        groups.setdefault(name, []).append(word)
    return groups


def split_config_settings(
    settings: Mapping[str, Any], switches: Mapping[str, bool]
) -> tuple[dict[str, Any], Translation, list[str]]:
    """Return ampft's settings in a file, and what settings of transformers' scripts are here.

    Args:
        switches: Own flags by name, and whether each is a switch.

    Returns:
        The own settings, the others as words, and a sentence for each that cannot be converted.
    """
    foreign = {n for n, row in ROWS.items() if row.convert is not None or n not in switches}
    words = _words_of({name: value for name, value in settings.items() if name in foreign})
    context = _words_of(settings)
    translation, problems = _translate(words, switches, _items(context, switches))
    return {n: v for n, v in settings.items() if n not in foreign}, translation, problems


def _translate(
    argv: Sequence[str], switches: Mapping[str, bool], context: Iterable[_Item] = ()
) -> tuple[Translation, list[str]]:
    """Return a command line in ampft's flags, and a sentence for each flag that has no counterpart.

    Args:
        argv: Command line arguments.
        switches: Own flags by name, and whether each is a switch.
        context: Flags that are set too, on which a conversion can depend.
    """
    items = list(_items(argv, switches))
    given = {name: value for name, value, _ in (*context, *items) if name}
    words: list[str] = []
    converted, harmless, problems = [], [], list(_set_twice(items, switches))
    for name, value, typed in items:
        row = ROWS.get(name) if name else None
        is_bare = len(typed) == 1 and "=" not in typed[0]
        if row is not None and row.takes != SWITCH and row.kind != TAKEN and is_bare:
            problems.append(f"{typed[0]}: the value is missing. Write {typed[0]} VALUE.")
            continue
        if row is None or row.convert is None:
            if row is not None and row.kind == HARMLESS:
                harmless.append(typed[0].partition("=")[0])  # the value may be a token
            else:
                words += _own_words(name, value, typed, switches)
            continue
        try:
            new = row.convert(value, given)
        except RefusedError as error:
            problems.append(f"{' '.join(typed)}: {error}")
            continue
        words += new
        if row.kind == HARMLESS or not new:
            harmless.append(" ".join(typed))
        elif " ".join(new) != " ".join(typed).replace("=", " ", 1):
            converted.append((" ".join(typed), " ".join(new)))
    return Translation(words, converted, harmless), problems


def _set_twice(items: Sequence[_Item], switches: Mapping[str, bool]) -> Iterator[str]:
    """Yield a sentence for each converted flag with two values; the parser finds own flags."""
    seen: dict[str, tuple[str, tuple[str, ...]]] = {}
    for name, value, typed in items:
        if name not in ROWS or ROWS[name].convert is None:
            continue
        key = "eval_strategy" if name == "evaluation_strategy" else name
        first = seen.setdefault(key, (value, typed))
        values = {first[0].lower(), value.lower()}
        if len(values) > 1 and (name not in switches or "none" in values):
            yield f"{' '.join(first[1])} and {' '.join(typed)}: only one can hold. Remove one."


def arguments_of_json(path: str) -> list[str]:
    """Return the settings in a JSON file as words; it is the only argument of such a command.

    Raises:
        InputError: The file is missing, or holds no object.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: the file cannot be read as JSON ({error}).") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: the file must map flag names to values.")
    return _words_of(content)


def _words_of(settings: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in settings.items():
        if isinstance(value, dict | list) and (isinstance(value, dict) or not value):
            words.append(f"--{name}={json.dumps(value)}")
        elif isinstance(value, list):
            words.append(f"--{name}={','.join(map(str, value))}")
        elif value is not None:
            words.append(f"--{name}={value}")
    return words


# Fields of a `TrainingArguments` that only scripts read, not the Trainer.
OF_SCRIPTS = ("do_train", "do_eval", "do_predict")


def settings_of(training_arguments: Any) -> dict[str, Any]:
    """Return what a `TrainingArguments` sets to other values than its defaults, by name.

    Its own constructor fills some fields, such as the device's; these are left out. The learning
    rate and the epochs are kept: a value that a user wrote may equal the default there, and the
    defaults here are others.

    Raises:
        InputError: It is not a `TrainingArguments`.
    """
    kind: Any = type(training_arguments)
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else []
    if "per_device_train_batch_size" not in names:
        raise InputError(
            f"training_arguments: received {kind.__name__}; it must be a "
            "TrainingArguments of transformers."
        )
    plain = kind(output_dir=training_arguments.output_dir)
    kept = {"output_dir", "num_train_epochs"}
    if training_arguments.optim != "adafactor":  # whose rate is relative to the weights here
        kept.add("learning_rate")
    found = {}
    for name in (name for name in names if name not in OF_SCRIPTS):
        value = getattr(training_arguments, name)
        if value is not None and (value != getattr(plain, name) or name in kept):
            found[name] = value.value if isinstance(value, Enum) else value
    if found.get("greater_is_better") == (
        not str(found.get("metric_for_best_model")).endswith("loss")
    ):
        del found["greater_is_better"]  # as its constructor fills it in
    return found


def _items(argv: Sequence[str], switches: Mapping[str, bool]) -> Iterator[_Item]:
    """Yield the name, the value and the words of each flag; other words have no name."""
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        if not word.startswith("--"):
            yield "", "", (word,)
            continue
        spelled, equals, value = word[2:].partition("=")
        name = spelled.replace("-", "_")
        if name.startswith("no_") and name not in (*ROWS, *switches) and not equals:
            name = name.removeprefix("no_")  # as --no-padding, or transformers' --no_padding
            if name in (*ROWS, *switches):
                yield name, "false", (word,)
                continue
        row = ROWS.get(name)
        if row is None and name not in switches:
            yield "", "", (word,)
            continue
        takes = row.takes if row is not None and row.kind != TAKEN else None
        if takes is None:
            takes = SWITCH if switches.get(name, row is not None and row.takes == SWITCH) else VALUE
        following = [] if equals else _values(argv[position:], takes)
        position += len(following)
        if not equals:
            value = " ".join(following)
            if not following and takes == SWITCH:
                value = "true"
        yield name, value, (word, *following)


def _values(following: Sequence[str], takes: str) -> list[str]:
    """Return the words after a flag that are its values."""
    if takes in (SWITCH, VALUE):  # no other word can follow a switch, because all are flags
        return [each for each in following[:1] if not each.startswith("--")]
    end = next((k for k, each in enumerate(following) if each.startswith("--")), len(following))
    return list(following[:end])


def _own_words(
    name: str, value: str, typed: tuple[str, ...], switches: Mapping[str, bool]
) -> list[str]:
    """Return a flag of ampft as it is parsed: a switch has no value."""
    if typed[0].startswith(("--no-", "--no_")):
        return [f"--no-{name}"] if name in switches else list(typed)
    if not switches.get(name, False) or (len(typed) == 1 and "=" not in typed[0]):
        return [f"--{name}", *typed[1:]] if name and "=" not in typed[0] else list(typed)
    if value.lower() not in (*TRUE, *FALSE):
        return list(typed)
    return [f"--{name}" if value.lower() in TRUE else f"--no-{name}"]
