"""What `--help` prints: the flags of a dataclass by group, for the width of the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from ampft.flag import GROUPS, OUTPUT

WIDEST = 100  # characters
NARROW = 90  # a terminal below this has a smaller first column
MAX_CHOICES_WIDTH = 40  # characters; longer lists of choices move into the help text
HELP_ALL = {"--help_all", "--help-all"}
HELP = {"-h", "--help", *HELP_ALL}
TYPES = {"int": "N", "float": "NUMBER", "str": "TEXT"}
ENDINGS = {"_file": "FILE", "_dir": "DIR", "_path": "PATH", "_column": "NAME", "_name": "NAME"}


@dataclass(frozen=True)
class Help:
    """What the help of a program says besides its flags."""

    description: str  # First paragraph.
    epilog: str = ""  # Last paragraph.
    usage: str = ""  # End of the usage line, after the flags.
    # Flags that are shown first. With some, `--help` only names the others, and `--help_all`
    # describes all.
    first: tuple[str, ...] = ()


def print_help(
    kind: type[Any], argv: Sequence[str], program: str, shown: Help, *, reads_config: bool
) -> None:
    """Print the help and end the process, if the words ask for it.

    Args:
        kind: Dataclass of the flags.
        argv: Command line arguments, without the program name.
        shown: What the help says besides the flags.
        reads_config: Whether there is a flag --config.
    """
    asked = HELP.intersection(argv)
    if asked:
        is_short = bool(shown.first) and not asked & HELP_ALL
        print("\n".join(_lines(kind, program, shown, terminal_width(), is_short, reads_config)))
        raise SystemExit(0)


def terminal_width() -> int:
    """Return the width of lines, in characters."""
    return min(WIDEST, max(50, shutil.get_terminal_size().columns - 1))


def spelled(f: Field[Any], value: object = None) -> str:
    """Return a flag as it stands on a command line, with its value if there is one."""
    name = str(f.metadata["metavar"]) if f.metadata["positional"] else f"--{f.name}"
    if isinstance(value, tuple):
        value = value[0]
    if isinstance(value, float):
        value = f"{value:g}"
    return name if value is None or isinstance(value, bool) else f"{name} {value}"


def metavar_of(f: Field[Any]) -> str:
    """Return the name of a flag's value in the help."""
    if f.metadata["metavar"] is not None:
        return str(f.metadata["metavar"])
    choices = f.metadata["choices"]
    listed = "|".join(choices or ())
    if choices:
        return listed if len(listed) <= MAX_CHOICES_WIDTH else "NAME"
    kind = next(text for name, text in TYPES.items() if name in str(f.type))
    endings = (text for end, text in ENDINGS.items() if f.name.endswith(end))
    return next(endings, kind) if kind == "TEXT" else kind


def _lines(
    kind: type[Any], program: str, shown: Help, width: int, is_short: bool, reads_config: bool
) -> Iterator[str]:
    known = {f.name: f for f in fields(kind)}
    words = [
        metavar_of(f) + (" ..." if "tuple" in str(f.type) else "")
        for f in known.values()
        if f.metadata["positional"]
    ]
    required = [f for f in known.values() if f.default is MISSING and not f.metadata["positional"]]
    optional = [
        f.name for f in known.values() if f.metadata["positional"] and f.default is not MISSING
    ]
    yield from _wrapped(
        "usage: "
        + " ".join(
            [
                program,
                *(f"[{word}]" if optional else word for word in words),
                *(f"--{f.name} {metavar_of(f)}" for f in required),
                "[--flag value ...]",
                *filter(None, [shown.usage]),
            ]
        ),
        width,
        " " * 7,
    )
    yield ""
    yield from _wrapped(shown.description, width)
    groups: dict[str, list[Field[Any]]] = {"arguments": [], "most used": []}
    used = [f.metadata["group"] for f in known.values()]
    groups |= {title: [] for title in (*(t for t in GROUPS if t in used), *used)}
    groups[OUTPUT] = groups.pop(OUTPUT, [])
    for f in known.values():
        title = "arguments" if f.metadata["positional"] else f.metadata["group"]
        groups["most used" if f.name in shown.first else title].append(f)
    groups["most used"].sort(key=lambda f: shown.first.index(f.name))
    column = 26 if width < NARROW else 34
    for title, members in groups.items():
        if members and not (is_short and title not in ("arguments", "most used")):
            yield from ("", f"{title}:")
            for f in members:
                yield from entry(*_described(f), width, column)
    if is_short:
        yield from ("", f"all other settings, which {program} --help_all describes:")
        for title, members in groups.items():
            if members and title not in ("arguments", "most used"):
                names = " ".join(f"--{f.name}" for f in members)
                yield from entry(title, names, width, column)
    yield from ("", "help and files:")
    yield from entry("-h, --help", "show this help", width, column)
    if shown.first:
        yield from entry("--help_all", "describe every setting", width, column)
    if reads_config:
        text = "YAML or JSON file with these settings; flags override it"
        yield from entry("--config FILE", text, width, column)
    if shown.epilog:
        yield ""
        yield from _wrapped(shown.epilog, width)


def _described(f: Field[Any]) -> tuple[str, str]:
    """Return a flag with its value, and what it does, with its default."""
    name, metavar, text = (
        f"--{f.name}",
        metavar_of(f) if "bool" not in str(f.type) else "",
        f.metadata["help"],
    )
    choices = f.metadata["choices"]
    if choices and metavar == "NAME":
        text = f"{text}: {', '.join(choices)}"
    if f.metadata["positional"]:
        return metavar, text
    if "bool" in str(f.type) and f.default is not False:
        return f"{name}, --no-{f.name}", f"{text}{' (default: on)' if f.default else ''}"
    if not any(f.default is empty for empty in (None, MISSING, False)) and f.default != ():
        # A space would not be seen.
        default = repr(f.default) if str(f.default).isspace() else f.default
        text = f"{text} (default: {default})"
    if f.metadata["bare"]:
        metavar = f"[{metavar}]"
    return f"{name} {metavar}{' ...' if f.metadata['many'] else ''}".rstrip(), text


def entry(head: str, text: str, width: int, column: int) -> Iterator[str]:
    """Yield lines with `head` in the first column and `text` in the second."""
    head = f"  {head}"
    if len(head) > column - 2:
        yield head
        head = ""
    yield from _wrapped(head.ljust(column) + text, width, " " * column)


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap at spaces by display columns, breaking words that are wider than a line."""
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True,
    ) if text.strip() else [""]  # fmt: skip
