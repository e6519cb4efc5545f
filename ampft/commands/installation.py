"""`ampft env` and `ampft recipe`: what is installed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.help_text import Help
from ampft.commands.extension_points import ENVIRONMENT_FACTS
from ampft.errors import InputError
from ampft.flag import flag, positional
from ampft.text.escaping import printable


@dataclass(frozen=True)
class EnvironmentFlags:
    """The flags of `ampft env`."""

    json: bool = flag(False, "print JSON")
    no_measure: bool = flag(
        False, "skip the measurement of matrix product rates, which takes a few seconds"
    )


@dataclass(frozen=True)
class RecipeFlags:
    """The arguments of `ampft recipe`."""

    name: str | None = positional(None, "NAME", "such as classify; if none, list the names")


def show_environment(line: CommandLine[EnvironmentFlags]) -> None:
    """Print how this machine and its packages handle mixed precision."""
    environment = ENVIRONMENT_FACTS.require()
    found = environment.collect_environment(measure=not line.flags.no_measure)
    as_json = line.flags.json
    print(
        json.dumps(found, indent=2) if as_json else printable(environment.format_environment(found))
    )


def show_recipe(line: CommandLine[RecipeFlags]) -> None:
    """Print a recipe, or list all of them."""
    package = Path(__file__).parents[1]  # a wheel has the recipes in the package, a clone beside it
    root = next(path for path in (package / "recipes", package.parent / "recipes") if path.is_dir())
    files = {path.relative_to(root).with_suffix("").as_posix(): path for path in root.rglob("*.py")}
    name = line.flags.name
    if name is None:
        for name in sorted(files, key=lambda name: ("/" in name, name)):
            print(f"{name:40} {files[name].read_text(encoding='utf-8')[3:].splitlines()[0]}")
        return
    if name not in files:
        raise InputError(
            f"recipe {name}: this recipe does not exist. Choose one of {', '.join(sorted(files))}."
        )
    print(files[name].read_text(encoding="utf-8"), end="")


ENVIRONMENT = Command(
    EnvironmentFlags,
    show_environment,
    Help("Show hardware and versions, and how each precision would run on this machine."),
)
RECIPE = Command(
    RecipeFlags,
    show_recipe,
    Help("Print a recipe, a training script to copy and change, or list all of them."),
)
