"""Build an argparse parser from a dataclass, with grouped help and one-line errors.

Values come from three sources, each overriding those before it: the defaults of the dataclass, a
YAML or JSON file (`--config`), and the command line.
"""

from __future__ import annotations

import argparse
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast, get_args, get_origin, get_type_hints

from ampft.arguments.other_scripts import hint_for, refuse_valued_switches, suggestion
from ampft.errors import InputError
from ampft.flag import GROUPS

T = TypeVar("T")

KIND_NAMES: dict[type, str] = {
    int: "whole number", float: "number", str: "text", bool: "true or false",
}  # fmt: skip
LIMITS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "at_least": ("at least {:g}", operator.ge),
    "at_most": ("at most {:,.0f}", operator.le),
    "below": ("below {:g}", operator.lt),
}
_DURATION = re.compile(r"(?:([0-9]+)h)?(?:([0-9]+)min)?(?:([0-9]+)s)?")
MAX_CHOICES_WIDTH = 40  # characters; longer lists of choices move into the help text


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


class ArgumentParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises `InputError` and allows no abbreviations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        """Raise the message as an `InputError`."""
        options = [name for action in self._actions for name in action.option_strings]
        raise InputError(f"{message}.{hint_for(message, options)} See {self.prog} --help.")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; the parser of the command reports what it does not know."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parsers = [
                action.choices[getattr(parsed, action.dest)]
                for action in self._actions
                if isinstance(action, argparse._SubParsersAction)
            ]
            (parsers or [self])[0].error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed


def split_at_dashes(argv: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return the arguments before and after ` -- `. None stands for the process's arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    separator = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:separator], arguments[separator + 1 :]


def parse_flags(
    kind: type[T],
    argv: Sequence[str],
    *,
    program: str,
    description: str,
    usage_suffix: str = "",
) -> tuple[T, frozenset[str]]:
    """Parse a command line into a dataclass whose fields were made with `flag`.

    Args:
        kind: The dataclass.
        argv: Command line arguments, without the program name.
        program: Program name in the help.
        description: First paragraph of the help.
        usage_suffix: End of the usage line, after the flags.

    Returns:
        The values, and the names of the settings that the user set by a flag or in a file.

    Raises:
        InputError: A flag or key is unknown, has the wrong type, or is not one of the choices.
    """
    known = {f.name: f for f in fields(cast("Any", kind))}
    hints = get_type_hints(kind)
    refuse_valued_switches(argv, [name for name in known if _value_type(hints[name]) is bool])
    # Without SUPPRESS, the default of an unset flag would override the value from the file.
    parser = ArgumentParser(
        prog=program,
        usage=" ".join(f"{program} [--config FILE] [--flag value ...] {usage_suffix}".split()),
        description=description,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=100),
    )
    parser.add_argument(
        "--config", metavar="FILE", help="YAML or JSON file with these settings; flags override it"
    )
    used = [f.metadata["group"] for f in known.values()]
    titles = dict.fromkeys([*(title for title in GROUPS if title in used), *used])
    groups = {title: parser.add_argument_group(title) for title in titles}
    for name, f in known.items():
        _add_flag(groups[f.metadata["group"]], f, hints[name])
    namespace, unknown = parser.parse_known_args(argv)
    if unknown:
        raise InputError(_unknown_flag_message(unknown, known, program))
    values = vars(namespace)
    config = values.pop("config", None)
    from_file = {} if config is None else _read_config(config, known, hints)
    user_values = from_file | values
    repeated = {k: tuple(v) for k, v in user_values.items() if isinstance(v, list)}
    parsed = kind(**user_values | repeated)
    for name, f in known.items():
        _check_value(name, getattr(parsed, name), f.metadata["limits"])
    return parsed, frozenset(user_values)


def flag_switches(kind: type[Any]) -> dict[str, bool]:
    """Return the flags of a dataclass by name, and whether each is a switch."""
    hints = get_type_hints(kind)
    return {f.name: _value_type(hints[f.name]) is bool for f in fields(cast("Any", kind))} | {
        "config": False
    }


def _check_value(name: str, value: object, limits: Mapping[str, float | None]) -> None:
    """Reject a blank string and a number out of range."""
    if isinstance(value, str) and not value.strip():
        raise InputError(f"--{name}: received {value!r}. Pass a value or remove the flag.")
    given = [(*LIMITS[kind], limit) for kind, limit in limits.items() if limit is not None]
    if not given or not isinstance(value, int | float) or isinstance(value, bool):
        return
    # A number with any limit must be finite. NaN fails because every comparison with it is false.
    if abs(value) < float("inf") and all(holds(value, limit) for _, holds, limit in given):
        return
    allowed = " and ".join(text.format(limit) for text, _, limit in given)
    raise InputError(f"--{name}: received {value}; it must be {allowed}.")


def _add_flag(group: argparse._ArgumentGroup, f: Field[Any], hint: Any) -> None:
    kind, name = _value_type(hint), f.name
    choices, bare = f.metadata["choices"], f.metadata["bare"]
    default = "none" if f.default in (None, MISSING, ()) else str(f.default)
    default = default.lower() if isinstance(f.default, bool) else default
    listed = "{" + ",".join(choices or ()) + "}"
    text = f.metadata["help"]
    if len(listed) > MAX_CHOICES_WIDTH:
        text, listed = f"{text}: {', '.join(choices)}", "NAME"
    text = f"{text} (default: {default})".replace("%", "%%")
    if kind is bool:
        action: Any = argparse.BooleanOptionalAction
        if name.startswith("no_"):  # --no-no_placebo would make no sense
            action = "store_true"
        group.add_argument(f"--{name}", action=action, help=text)
    elif bare:
        group.add_argument(f"--{name}", nargs="?", const=bare, metavar="TEXT", help=text)
        off = argparse.SUPPRESS
        group.add_argument(f"--no-{name}", dest=name, action="store_const", const=None, help=off)
    elif get_origin(hint) is tuple:  # the flag may be repeated
        group.add_argument(f"--{name}", action="append", metavar="TEXT", help=text)
    else:
        group.add_argument(
            f"--{name}",
            type=_converter(kind),
            choices=choices,
            metavar=listed if choices else kind.__name__.upper(),
            help=text,
        )


def _value_type(hint: Any) -> type:
    """Return the type of a hint such as `int | None` or `tuple[str, ...]`, without None."""
    (kind,) = [t for t in get_args(hint) or (hint,) if t not in (type(None), Ellipsis)]
    return cast("type", kind)


def _converter(kind: type) -> Any:
    """Return `kind` as a function whose name argparse shows in its error message."""

    def convert(text: str) -> Any:
        return kind(text)

    convert.__name__ = KIND_NAMES[kind]
    return convert


def _unknown_flag_message(unknown: Sequence[str], known: Mapping[str, Any], program: str) -> str:
    argument = next((a for a in unknown if a.startswith("-")), unknown[0])
    if not argument.startswith("--"):
        several = (
            " To pass several files, separate them by commas, or quote a pattern: --train_file"
            " 'part-*.csv'."
            if Path(argument).is_file()
            else ""
        )
        return (
            f"{argument!r} is not expected: every setting is a flag.{several} See {program} --help."
        )
    typed = argument.removeprefix("--").split("=")[0]
    name = typed.replace("-", "_")
    hint = f" Did you mean '--{name}'?" if name in known else suggestion(name, known)
    return f"unknown flag --{typed}.{hint} See {program} --help."


def _read_config(
    path: str, known: Mapping[str, Field[Any]], hints: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings in a YAML or JSON file (JSON is YAML), checked like flags."""
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
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
        return {}
    if not isinstance(content, dict):
        raise InputError(f"--config {path}: the file must map flag names to values.")
    return {str(k): _checked_setting(path, str(k), v, known, hints) for k, v in content.items()}


def _checked_setting(
    path: str,
    name: str,
    value: Any,
    known: Mapping[str, Field[Any]],
    hints: Mapping[str, Any],
) -> Any:
    if name not in known:
        hint = suggestion(name, known, dashes="")
        raise InputError(f"--config {path}: unknown setting {name!r}.{hint}")
    kind, optional = _value_type(hints[name]), type(None) in get_args(hints[name])
    if (bare := known[name].metadata["bare"]) and isinstance(value, bool):
        value = bare if value else None
    if value is None and optional:
        return None
    choices = known[name].metadata["choices"]
    if "\0" in str(value):
        raise InputError(f"--config {path}: {name} contains a NUL character. Remove it.")
    if value is False and choices and "no" in choices:
        value = "no"  # YAML reads an unquoted no as false
    if choices and str(value) not in choices:
        raise InputError(f"--config {path}: {name} is {value!r}; choose from {', '.join(choices)}.")
    try:
        if get_origin(hints[name]) is tuple and isinstance(value, list):
            return [_convert_yaml_value(kind, each) for each in value]
        return _convert_yaml_value(kind, value)
    except (ValueError, OverflowError):
        article = "" if kind is bool else "a "
        raise InputError(
            f"--config {path}: {name} is {value!r}; it must be {article}{KIND_NAMES[kind]}."
        ) from None


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
