"""argparse, built from a dataclass: grouped help, defaults and units, errors as one message.

Three sources, the later the stronger: the dataclass's defaults, a YAML or JSON file (`--config`),
the command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast, get_args, get_type_hints

from ampft.arguments.other_scripts import refuse_valued_switches, suggestion
from ampft.errors import InputError

T = TypeVar("T")

KIND_NAMES: dict[type, str] = {
    int: "whole number", float: "number", str: "text", bool: "true or false",
}  # fmt: skip
LONGEST_CHOICES = 40  # characters, that a list of choices may have beside its flag


def flag(
    default: Any,
    text: str,
    *,
    group: str,
    choices: Sequence[str] | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """Return a dataclass field that is a flag.

    Args:
        default: Value where the user gives none.
        text: Help text, with the unit.
        group: Title under which the help lists the flag.
        choices: Allowed values; None allows all.
        at_least: Lowest value of a number.
        at_most: Highest value of a number.
        below: Limit that a number must stay below.
    """
    limits = {"at_least": at_least, "at_most": at_most, "below": below}
    metadata = {"help": text, "group": group, "choices": choices, "limits": limits}
    return field(default=default, metadata=metadata)


class ArgumentParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose errors are `InputError`s, without abbreviations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        """Raise the message as an `InputError`."""
        raise InputError(f"{message}. See {self.prog} --help.")


def parse_flags(
    kind: type[T],
    argv: Sequence[str],
    *,
    program: str,
    description: str,
    more: str = "",
) -> tuple[T, frozenset[str]]:
    """Parse a command line into a dataclass whose fields were made with `flag`.

    Args:
        kind: The dataclass.
        argv: The words after the program's name.
        program: The name that the help shows.
        description: First paragraph of the help.
        more: What the usage line shows behind the flags.

    Returns:
        The values, and the names of those that the user gave, in a file or by a flag.

    Raises:
        InputError: A flag or key is unknown, has a wrong type or is not among the choices.
    """
    known = {f.name: f for f in fields(cast("Any", kind))}
    hints = get_type_hints(kind)
    usage = " ".join(f"{program} [--config FILE] [--flag value ...] {more}".split())
    parser = _build(known, hints, usage, description)
    refuse_valued_switches(argv, [name for name in known if _plain(hints[name]) is bool])
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        raise InputError(_unknown_words(unknown, known, program))
    values = vars(given)
    config = values.pop("config", None)
    from_file = {} if config is None else _read_config(config, known, hints)
    chosen = from_file | values
    parsed = kind(**chosen)
    _check_values(parsed, known)
    return parsed, frozenset(chosen)


def _check_values(parsed: object, known: Mapping[str, Field[Any]]) -> None:
    """Refuse blank texts and numbers out of range."""
    for name, f in known.items():
        value = getattr(parsed, name)
        if isinstance(value, str) and not value.strip():
            raise InputError(f"--{name}: received {value!r}. Give it a value, or remove it.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            _check_range(name, value, **f.metadata["limits"])


def _check_range(
    name: str, value: float, *, at_least: float | None, at_most: float | None, below: float | None
) -> None:
    # Written so that NaN is refused, and infinity where there is any limit.
    limited = (at_least, at_most, below) != (None, None, None)
    is_inside = (
        (at_least is None or value >= at_least)
        and (at_most is None or value <= at_most)
        and (below is None or value < below)
        and (not limited or abs(value) < float("inf"))
    )
    if is_inside:
        return
    words = [
        f"at least {at_least:g}" if at_least is not None else "",
        f"at most {at_most:,.0f}" if at_most is not None else "",
        f"below {below:g}" if below is not None else "",
    ]
    allowed = " and ".join(filter(None, words))
    raise InputError(f"--{name}: received {value}; it must be {allowed}.")


def _build(
    known: Mapping[str, Field[Any]], hints: Mapping[str, Any], usage: str, description: str
) -> ArgumentParser:
    # A flag that is not given leaves no trace, so that a file's value is not hidden by a default.
    parser = ArgumentParser(
        prog=usage.split()[0],
        usage=usage,
        description=description,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=100),
    )
    parser.add_argument(
        "--config", metavar="FILE", help="YAML or JSON file of these settings; flags win over it"
    )
    titles = dict.fromkeys(f.metadata["group"] for f in known.values())
    groups = {title: parser.add_argument_group(title) for title in titles}
    for name, f in known.items():
        group = groups[f.metadata["group"]]
        kind = _plain(hints[name])
        choices = f.metadata["choices"]
        listed = "{" + ",".join(choices or ()) + "}"
        text = f"{f.metadata['help']} (default: {_shown(f)})"
        if len(listed) > LONGEST_CHOICES:
            text = f"{f.metadata['help']}: {', '.join(choices)} (default: {_shown(f)})"
            listed = "NAME"
        text = text.replace("%", "%%")
        if kind is bool:
            action: Any = argparse.BooleanOptionalAction
            if name.startswith("no_"):  # of which nobody wants the negation
                action = "store_true"
            group.add_argument(f"--{name}", action=action, help=text)
        else:
            group.add_argument(
                f"--{name}",
                type=_converter(kind),
                choices=choices,
                metavar=listed if choices else kind.__name__.upper(),
                help=text,
            )
    return parser


def _shown(f: Field[Any]) -> str:
    if f.default is None or f.default is MISSING:
        return "none"
    return str(f.default).lower() if isinstance(f.default, bool) else str(f.default)


def _plain(hint: Any) -> type:
    """Return the one type of a hint such as `int | None`."""
    (kind,) = [t for t in get_args(hint) or (hint,) if t is not type(None)]
    return cast("type", kind)


def _converter(kind: type) -> Any:
    """Return `kind` under the name that argparse's message shows."""

    def convert(text: str) -> Any:
        return kind(text)

    convert.__name__ = KIND_NAMES[kind]
    return convert


def _unknown_words(words: Sequence[str], known: Mapping[str, Any], program: str) -> str:
    word = next((w for w in words if w.startswith("-")), words[0])
    if not word.startswith("--"):
        return f"{word!r} is not expected here: every setting is a flag. See {program} --help."
    name = word.removeprefix("--").split("=")[0].replace("-", "_")
    return f"unknown flag --{name}.{suggestion(name, known)} See {program} --help."


def _read_config(
    path: str, known: Mapping[str, Field[Any]], hints: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a YAML or JSON file (JSON is YAML), checked like flags."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: cannot be read ({error.strerror}).") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"--config {path}: is neither YAML nor JSON ({reason}).") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"--config {path}: has to map names of flags to values.")
    return {str(k): _checked(path, str(k), v, known, hints) for k, v in content.items()}


def _checked(
    path: str,
    name: str,
    value: Any,
    known: Mapping[str, Field[Any]],
    hints: Mapping[str, Any],
) -> Any:
    if name not in known:
        hint = suggestion(name, known, dashes="")
        raise InputError(f"--config {path}: unknown setting {name!r}.{hint}")
    kind, optional = _plain(hints[name]), type(None) in get_args(hints[name])
    if value is None and optional:
        return None
    choices = known[name].metadata["choices"]
    if value is False and choices and "no" in choices:
        value = "no"  # which YAML reads as false
    if choices and str(value) not in choices:
        raise InputError(f"--config {path}: {name} is {value!r}; choose from {', '.join(choices)}.")
    try:
        return _converted(kind, value)
    except (ValueError, OverflowError):
        article = "" if kind is bool else "a "
        raise InputError(
            f"--config {path}: {name} is {value!r}; it has to be {article}{KIND_NAMES[kind]}."
        ) from None


def _converted(kind: type, value: Any) -> Any:
    """Return a value of YAML as `kind`; 1e-5 without a dot is a text there.

    Raises:
        ValueError: It is of another kind.
    """
    if value is None or isinstance(value, dict | list) or isinstance(value, bool) != (kind is bool):
        raise ValueError(value)
    converted = kind(value)
    if kind is int and isinstance(value, float) and converted != value:
        raise ValueError(value)
    return converted
