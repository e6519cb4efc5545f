"""Parse a command line into a dataclass whose fields were made with `flag`, with one-line errors.

Values come from three sources, each overriding those before it: the defaults of the dataclass, a
YAML or JSON file (`--config`), and the command line.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from ampft.arguments.extension_points import FLAGS_OF_TRANSFORMERS
from ampft.arguments.help_text import Help, metavar_of, print_help, spelled
from ampft.arguments.suggestions import (
    BOOLEAN_WORDS,
    INVALID_VALUES,
    choice_hint,
    closest,
    suggestion,
)
from ampft.errors import InputError
from ampft.flag import flag
from ampft.text.terminal import print_once

T = TypeVar("T")
Fields = Mapping[str, Field[Any]]

KIND_NAMES: dict[type, str] = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false",
}  # fmt: skip
LIMITS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "above": ("above {:g}", operator.gt),
    "at_least": ("at least {:g}", operator.ge),
    "at_most": ("at most {:,.0f}", operator.le),
    "below": ("below {:g}", operator.lt),
}
_DURATION = re.compile(r"(?:([0-9]+)h)?(?:([0-9]+)min)?(?:([0-9]+)s)?")
_FLAG = re.compile(r"--\S|-[A-Za-z]\S*$")
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2212"  # what editors and web pages make of --
MAY_BE_BLANK = ("label_separator",)


def parse_duration(name: str, text: str) -> float:
    """Return the seconds of a duration such as 2h, 15min, 90s or 1h30min.

    Args:
        name: Name of the flag, for the message.
        text: Value of the flag.

    Raises:
        InputError: `text` is not a duration, or is 0.
    """
    match = _DURATION.fullmatch(text.strip().lower().replace(" ", ""))
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if total == 0:
        raise InputError(
            f"--{name}: received {text!r}; use hours, minutes or seconds with their unit, such as "
            "2h, 15min, 90s or 1h30min."
        )
    return float(total)


@dataclass(frozen=True)
class GivenFlag:
    """A flag, or a word without one, as a user typed it."""

    name: str  # Name of the field; empty for a positional word, and for an unknown flag.
    words: tuple[str, ...]  # The words on the command line.
    values: tuple[str, ...] = ()  # Its values; empty for a switch, and for a flag without one.
    is_off: bool = False  # Whether the spelling was --no-NAME.


def given_flags(
    words: Sequence[str], known: Fields, hints: Mapping[str, Any]
) -> Iterator[GivenFlag]:
    """Yield the flags and positional words of a command line, with the values that belong to them.

    Args:
        words: Command line arguments, without the program name.
    """
    position = 0
    has_positional = any(f.metadata["positional"] for f in known.values())
    while position < len(words):
        word, following = words[position], words[position + 1 :]
        position += 1
        if not _FLAG.match(word):
            yield GivenFlag("", (word,), (word,))
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        is_off = name.startswith("no-") and not name.startswith("no-no_")
        name = name.removeprefix("no-") if is_off else name
        metadata = known[name].metadata if name in known and word.startswith("--") else None
        if (
            metadata is None
            or metadata["positional"]
            or (is_off and not (metadata["bare"] or value_type(hints[name]) is bool))
        ):
            yield GivenFlag("", (word,))
        elif equals:
            yield GivenFlag(name, (word,), (value,), is_off)
        elif is_off or value_type(hints[name]) is bool:
            # The transformers scripts allow --flag true; it is refused with its name.
            values = tuple(
                each
                for each in following[:1]
                if each.lower() in BOOLEAN_WORDS
                or not (has_positional or each == "--" or each.startswith((*_DASHES, "-")))
            )
            position += len(values)
            yield GivenFlag(name, (word, *values), values, is_off)
        else:
            values = tuple(
                takewhile(lambda each: each != "--" and not _FLAG.match(each), following)
            )
            values = values if metadata["many"] else values[:1]
            position += len(values)
            yield GivenFlag(name, (word, *values), values)


CONFIG_SUFFIXES = (".yaml", ".yml")  # .json can be data, too


@dataclass(frozen=True)
class ConfigFlag:
    """The file of settings."""

    config: str | None = flag(
        None, "YAML or JSON file with these settings; flags override it", metavar="FILE"
    )


def fields_and_hints(*kinds: type[Any]) -> tuple[dict[str, Field[Any]], dict[str, Any]]:
    """Return the fields of dataclasses and their types, by name; of equal names the last."""
    known = {f.name: f for kind in kinds for f in fields(cast("Any", kind))}
    hints = [_hints(cast("Any", kind)) for kind in kinds]
    return known, {name: hint for part in hints for name, hint in part.items()}


@cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind)


def without_flags(kind: type[Any], words: Sequence[str], names: Collection[str]) -> list[str]:
    """Return a command line without some of its flags, by the names of their settings."""
    given = given_flags(words, *fields_and_hints(ConfigFlag, kind))
    return [word for each in given if each.name not in names for word in each.words]


def later_wins(kind: type[Any], *parts: Sequence[str]) -> list[str]:
    """Return command lines joined, without the flags that a later part sets again.

    Args:
        parts: Command lines; a later one overrides an earlier one.
    """
    known, hints = fields_and_hints(ConfigFlag, kind)
    joined: list[GivenFlag] = []
    for part in parts:
        flags = list(given_flags(part, known, hints))
        again = {each.name for each in flags} - {""}
        joined = [each for each in joined if each.name not in again] + flags
    return [word for each in joined for word in each.words]


def flag_values(kind: type[Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the values that a part of a command line sets, by name."""
    known, hints = fields_and_hints(kind)
    values: dict[str, Any] = {}
    for each in given_flags(words, known, hints):
        if each.name:
            _store(values, known[each.name], hints[each.name], each)
    return values


def parse_flags(
    kind: type[T],
    argv: Sequence[str],
    *,
    program: str,
    shown: Help,
    reads_config: bool = True,
    others: Collection[str] = (),
    combines: bool = True,
) -> tuple[T, frozenset[str]]:
    """Parse a command line into a dataclass whose fields were made with `flag` or `positional`.

    Args:
        argv: Command line arguments, without the program name.
        program: Program name in messages and in the help.
        shown: What `--help` prints besides the flags.
        reads_config: Whether `--config FILE` reads settings from a file.
        others: Further settings whose names are suggested for an unknown flag.
        combines: Whether to check which flags go together.

    Returns:
        The values, and the names of the settings that the user set by a flag or in a file.

    Raises:
        InputError: A flag or key is unknown, is set twice, has the wrong type, is not one of the
            choices, has no effect, or contradicts another.
    """
    known, hints = fields_and_hints(kind)
    accepted = fields_and_hints(*([ConfigFlag] if reads_config else []), kind)
    at = argv.index("--") if "--" in argv else len(argv)
    print_help(kind, argv[:at], program, shown, reads_config=reads_config)
    values: dict[str, Any] = {}
    loose: list[str] = []
    for given in given_flags(argv[:at], *accepted):
        if given.name:
            _store(values, accepted[0][given.name], accepted[1][given.name], given)
        elif not given.values:
            names = {n for n, f in known.items() if not f.metadata["positional"]} | {*others}
            raise InputError(unknown_flag_message(given.words[0], names, program))
        else:
            loose += given.words
    if at < len(argv) and not any(f.metadata["positional"] for f in known.values()):
        raise InputError(f"` -- ` is not expected: {program} takes its settings without it.")
    _store_positional(values, [*loose, *argv[at + 1 :]], known, hints, program)
    config = values.pop("config", None)
    from_file: dict[str, Any] = {}
    if config is not None:
        from_file, lines = _read_config(config, known, hints)
        print_once(lines)
    user_values = from_file | values
    missing = [f for f in known.values() if f.default is MISSING and f.name not in user_values]
    if missing:
        wanted = " and ".join(
            metavar_of(f) if f.metadata["positional"] else f"--{f.name} {metavar_of(f)}"
            for f in missing
        )
        is_are = "are" if len(missing) > 1 else "is"
        raise InputError(f"{wanted} {is_are} missing. See {program} --help.")
    parsed = kind(**user_values)
    for name, f in known.items():
        _check_value(f, getattr(parsed, name))
    if combines:
        check_combinations(parsed, user_values)
    return parsed, frozenset(user_values)


def flag_problem(kind: type[Any], words: Sequence[str], program: str) -> str | None:
    """Return what is wrong with a flag and its values, apart from other flags; None if nothing."""
    known, hints = fields_and_hints(ConfigFlag, kind)
    values: dict[str, Any] = {}
    try:
        for given in given_flags(words, known, hints):
            if given.name:
                _store(values, known[given.name], hints[given.name], given)
            elif given.values:
                _store_positional({}, given.words, known, hints, program)
            else:
                return unknown_flag_message(given.words[0], known, program)
        for name, value in values.items():
            _check_value(known[name], value)
        if "config" in values:
            _read_config(values["config"], *fields_and_hints(kind))
    except InputError as error:
        return str(error)
    return None


def check_combinations(parsed: Any, names: Collection[str]) -> None:
    """Reject flags that have no effect without another one, or that exclude each other.

    Args:
        names: Names of the settings that the user set.

    Raises:
        InputError: A flag must be removed or added.
    """
    problems = dict(_wrong_combinations(parsed, names))
    if problems:
        raise InputError("\n".join(problems.values()))


def _wrong_combinations(parsed: Any, names: Collection[str]) -> Iterator[tuple[Any, str]]:
    """Yield the flags that do not go together, and why."""
    known = {f.name: f for f in fields(parsed)}
    off: tuple[object, ...] = (None, False)
    on = {n for n in known if (v := getattr(parsed, n)) != () and not any(v is e for e in off)}
    set_by_user = [
        n for n in known if n in names and n in on and getattr(parsed, n) != known[n].default
    ]
    for name in set_by_user:
        f = known[name]
        needed = f.metadata["needs"]
        text = spelled(f, getattr(parsed, name))
        if needed and not on.intersection(needed):
            listed = " or ".join(spelled(known[each]) for each in needed)
            if known[needed[0]].default is True:
                yield name, f"{text} has no effect with --no-{needed[0]}. Remove one of them."
                continue
            yield (
                name,
                f"{spelled(f)} has no effect without {listed}. Add it, or remove the flag.",
            )
        for other, reason in f.metadata["excludes"].items():
            if other in set_by_user:
                both = f"{text} and {spelled(known[other], getattr(parsed, other))}"
                yield frozenset((name, other)), f"{both}: {reason}. Remove one of them."


def _store(values: dict[str, Any], f: Field[Any], hint: Any, given: GivenFlag) -> None:
    """Add the value of a flag, converted to its type.

    Raises:
        InputError: The flag is set twice, or its value is missing or has the wrong type.
    """
    name, metadata = f.name, f.metadata
    if value_type(hint) is bool or given.is_off:
        if given.values:
            raise InputError(
                f"{given.words[0].split('=')[0]} {given.values[0]}: this flag is a switch and "
                f"takes no value. Use --{name} or --no-{name}."
            )
        value: Any = not given.is_off if value_type(hint) is bool else None
    elif not given.values and metadata["bare"]:
        value = metadata["bare"]
    elif not given.values:
        raise InputError(
            f"--{name}: the value is missing. Write --{name} {metavar_of(f)}, or "
            f"--{name}=VALUE for a value that begins with dashes."
        )
    else:
        converted = tuple(_converted(f, hint, text) for text in given.values)
        value = converted if get_origin(hint) is tuple else converted[0]
    if name not in values:
        values[name] = value
    elif get_origin(hint) is tuple:
        values[name] = (*values[name], *value)
    elif metadata["joined"]:
        values[name] = f"{values[name]},{value}"
    elif values[name] != value:
        first, second = (_shown(name, each) for each in (values[name], value))
        raise InputError(f"--{name} is set twice, to {first} and {second}. Remove one of them.")


def _shown(name: str, value: object) -> str:
    """Return a value as the message about a repeated flag shows it."""
    if value is None or isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return repr(value) if isinstance(value, str) else str(value)


def _store_positional(
    values: dict[str, Any],
    words: Sequence[str],
    known: Fields,
    hints: Mapping[str, Any],
    program: str,
) -> None:
    """Add the words without a flag to their fields, in the order of the fields."""
    rest = list(words)
    for name, f in known.items():
        if f.metadata["positional"] and rest:
            is_tuple = get_origin(hints[name]) is tuple
            taken = [rest.pop(0) for _ in range(len(rest) if is_tuple else 1)]
            converted = tuple(_converted(f, hints[name], word) for word in taken)
            values[name] = converted if is_tuple else converted[0]
    if not rest:
        return
    word = rest[0]
    if word[:1] and word[0] in _DASHES:
        hint = f" It begins with a typographic dash; write --{word.lstrip(_DASHES + '-')}."
    elif "train_file" in known and Path(word).suffix.lower() in CONFIG_SUFFIXES:
        hint = f" If it is a file of settings: --config {shlex.quote(word)}."
    elif "train_file" in known and Path(word).is_file():
        hint = (
            " To pass several files, separate them by commas, or quote a pattern: --train_file"
            " 'part-*.csv'."
        )
    elif "train_file" in known:
        hint = " Separate several values of a flag by commas, without blanks: a,b."
    else:
        hint = ""
    takes = [metavar_of(f) for f in known.values() if f.metadata["positional"]]
    expected = f"besides {' and '.join(takes)} " if takes else ""
    raise InputError(
        f"{word!r} is not expected: {expected}every setting is a flag.{hint} See {program} --help."
    )


def flag_switches(kind: type[Any]) -> dict[str, bool]:
    """Return the flags of a dataclass by name, and whether each is a switch."""
    known, hints = fields_and_hints(ConfigFlag, kind)
    return {name: value_type(hints[name]) is bool for name in known}


def _check_value(f: Field[Any], value: object) -> None:
    """Reject a blank string, a number out of range, and what the field's own check rejects."""
    if f.metadata["check"] and value is not None and value != f.default:
        f.metadata["check"](f.name, value)
    name = metavar_of(f) if f.metadata["positional"] else f"--{f.name}"
    values = value if isinstance(value, tuple) else (value,)
    blank = [each for each in values if isinstance(each, str) and not each.strip()]
    may_be_blank = value != "" and f.name in MAY_BE_BLANK
    if blank and value != f.default and not may_be_blank:
        raise InputError(f"{name}: received {blank[0]!r}. Pass a value or remove the flag.")
    limits = f.metadata["limits"].items()
    given = [(*LIMITS[kind], limit) for kind, limit in limits if limit is not None]
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    # A number must be finite. NaN fails because every comparison with it is false.
    if abs(value) < float("inf") and all(holds(value, limit) for _, holds, limit in given):
        return
    allowed = " and ".join(text.format(limit) for text, _, limit in given) or "finite"
    raise InputError(f"{name}: received {value}; it must be {allowed}.")


def value_type(hint: Any) -> type:
    """Return the type of a hint such as `int | None` or `tuple[str, ...]`, without None."""
    (kind,) = [t for t in get_args(hint) or (hint,) if t not in (type(None), Ellipsis)]
    return cast("type", kind)


def _converted(f: Field[Any], hint: Any, text: str) -> Any:
    """Return the text of a value as the type of its field, if it is one of the choices.

    Raises:
        InputError: It has another type, or is not one of the choices.
    """
    kind, choices = value_type(hint), f.metadata["choices"]
    name = metavar_of(f) if f.metadata["positional"] else f"--{f.name}"
    if choices and text not in choices:
        hinted = choice_hint(text, choices)
        raise InputError(f"{name}: received {text!r}.{hinted} Choose from {', '.join(choices)}.")
    try:
        return kind(text)
    except ValueError:
        advice = INVALID_VALUES.get(f.name, "")
        raise InputError(
            f"{name}: received {text!r}; it must be {KIND_NAMES[kind]}.{advice}"
        ) from None


def unknown_flag_message(argument: str, names: Collection[str], program: str) -> str:
    """Return the message for a flag that is none of the names, with advice if it is similar."""
    typed = argument.removeprefix("--").split("=")[0]
    name = typed.replace("-", "_")
    switched = closest(name.removeprefix("no_"), names) if name.startswith("no_") else None
    hint = f" Did you mean '--{name}'?" if name in names else suggestion(name, names)
    if switched and (not hint or hint.startswith(" Did you mean")):
        hint = f" Did you mean '--no-{switched}'?"
    shown = typed if argument.startswith("--") else argument
    dashes = "--" if argument.startswith("--") else ""
    return f"unknown flag {dashes}{shown}.{hint} See {program} --help."


def _read_config(
    path: str, known: Fields, hints: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings in a YAML or JSON file (JSON is YAML), and lines on how it was read.

    Raises:
        InputError: It cannot be read, or settings are wrong. The message lists all.
    """
    settings, twice = _yaml_settings(path)
    problems = [f"{name} is set twice. Remove one of them." for name in twice]
    foreign: list[str] = []
    lines: list[str] = []
    others = FLAGS_OF_TRANSFORMERS.get() if "num_train_epochs" in known else None
    if others is not None:
        switches = {n: value_type(hints[n]) is bool for n in known}
        settings, translation, refused = others.split_config_settings(settings, switches)
        foreign, lines = translation.words, translation.lines
        problems += refused
    own: dict[str, Any] = {}
    for name, value in settings.items():
        try:
            own[name] = _checked_setting(name, value, known, hints)
            _check_value(known[name], own[name])
        except InputError as error:
            problems.append(str(error))
    for given in given_flags(foreign, known, hints):
        try:
            _store(own, known[given.name], hints[given.name], given)
            _check_value(known[given.name], own[given.name])
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("\n".join(f"--config {path}: {problem}" for problem in problems))
    return own, lines


def _yaml_settings(path: str) -> tuple[dict[str, Any], list[str]]:
    """Return the settings in a file, and the names of those that are set twice."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        content, node = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        raise InputError(f"--config {path}: the file cannot be read ({error.strerror}).") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"--config {path}: the file is neither YAML nor JSON ({reason})."
        ) from error
    except RecursionError:
        raise InputError(f"--config {path}: values are nested too deeply.") from None
    if content is None:
        return {}, []
    if not isinstance(content, dict):
        raise InputError(f"--config {path}: the file must map flag names to values.")
    assert node is not None, "there is content"
    twice = [name for name, n in Counter(str(k.value) for k, _ in node.value).items() if n > 1]
    return {str(name): value for name, value in content.items()}, twice


def _checked_setting(name: str, value: Any, known: Fields, hints: Mapping[str, Any]) -> Any:
    if name not in known:
        raise InputError(f"unknown setting {name!r}.{suggestion(name, known, dashes='')}")
    kind, optional = value_type(hints[name]), type(None) in get_args(hints[name])
    metadata = known[name].metadata
    if metadata["bare"] and isinstance(value, bool):
        value = metadata["bare"] if value else None
    if value is None and optional:
        return None
    choices = metadata["choices"]
    if "\0" in str(value):
        raise InputError(f"{name} contains a NUL character. Remove it.")
    if value is False and choices and "no" in choices:
        value = "no"  # YAML reads an unquoted no as false
    if choices and str(value) not in choices:
        raise InputError(f"{name} is {value!r}; choose from {', '.join(choices)}.")
    try:
        if get_origin(hints[name]) is tuple:
            listed = value if isinstance(value, list) else [value]
            return tuple(_convert_yaml_value(kind, each) for each in listed)
        if metadata["joined"] and isinstance(value, list):
            return ",".join(_convert_yaml_value(kind, each) for each in value)
        return _convert_yaml_value(kind, value)
    except (ValueError, OverflowError):
        raise InputError(f"{name} is {value!r}; it must be {KIND_NAMES[kind]}.") from None


def _convert_yaml_value(kind: type, value: Any) -> Any:
    """Return a YAML value as `kind`. YAML reads 1e-5, without a dot, as a string.

    Raises:
        ValueError: The value has another type.
    """
    if value is None or isinstance(value, dict | list) or isinstance(value, bool) != (kind is bool):
        raise ValueError(value)
    converted = kind(value)
    if kind is int and isinstance(value, float) and converted != value:
        raise ValueError(value)
    return converted
