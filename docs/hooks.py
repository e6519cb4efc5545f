"""Fills the generated parts of the documentation from the code.

Between `<!-- generated: NAME ARGUMENT -->` and `<!-- end -->` stands, by NAME:
`flags MODULE:CLASS`, tables of the flags of a dataclass; `help COMMAND`, the help text of a
command; `python`, the public names; `transformers differences|rows`, tables of the flags of
transformers' scripts.

`python docs/hooks.py` writes them into the pages. MkDocs also fills them when it builds the site,
where every public name gets its signature and its docstring.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "docs/from_transformers.md",
    "docs/reference/commands.md",
    "docs/reference/flags.md",
    "docs/reference/python.md",
)
_GENERATED = re.compile(
    r"(<!-- generated: (flags|help|python|transformers)(?: (.+?))? -->\n).*?(<!-- end -->)",
    re.DOTALL,
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page of the site; MkDocs calls this for every page."""
    return filled(markdown, python=documented_names)


def filled(markdown: str, *, python: Callable[[], str] | None = None) -> str:
    """Return a page with its generated parts written again, the public names by `python`."""
    writers: dict[str, Callable[..., str]] = {
        "flags": flag_tables,
        "help": help_text,
        "python": python or list_of_names,
        "transformers": transformers_table,
    }

    def written(part: re.Match[str]) -> str:
        text = writers[part[2]](*filter(None, [part[3]]))
        return f"{part[1]}\n{text}\n\n{part[4]}"

    return _GENERATED.sub(written, markdown)


def flag_tables(home: str) -> str:
    """Return a table of the flags of each group of a dataclass of arguments, as `module:Class`."""
    module, class_name = home.split(":")
    groups: dict[str, list[str]] = {}
    for field in fields(getattr(import_module(module), class_name)):
        if "help" not in field.metadata:
            continue
        default = "" if field.default is None else f"`{str(field.default).lower()}`"
        choices = field.metadata["choices"]
        help_ = field.metadata["help"] + (f": {', '.join(choices)}" if choices else "")
        row = f"| `--{field.name}` | {default} | {_cell(help_)} |"
        groups.setdefault(field.metadata["group"], []).append(row)
    head = ["| flag | default | |", "| --- | --- | --- |"]
    tables = (
        "\n".join([f"### {name.capitalize()}", "", *head, *rows]) for name, rows in groups.items()
    )
    return "\n\n".join(tables)


def transformers_table(part: str) -> str:
    """Return a table of the flags of transformers' scripts: all rows, or differing defaults."""
    from ampft.integrations.transformers_rows import ROWS

    if part == "differences":
        lines = ["| flag | here; there |", "| --- | --- |"]
        rows = ((name, row.differs) for name, row in ROWS.items() if row.differs)
        return "\n".join(lines + [f"| `--{name}` | {_cell(text)} |" for name, text in rows])
    lines = ["| flag | | here |", "| --- | --- | --- |"]
    return "\n".join(
        lines + [f"| `--{name}` | {row.kind} | {_cell(row.text)} |" for name, row in ROWS.items()]
    )


def help_text(command: str) -> str:
    """Return what a command prints for `--help`, as a code block."""
    done = subprocess.run(
        [sys.executable, *command.split(), "--help"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "90"},
        capture_output=True,
        text=True,
        check=True,
    )
    return f"```text\n{done.stdout.rstrip()}\n```"


def documented_names() -> str:
    """Return a mkdocstrings line for every public name."""
    return "\n\n".join(f"::: {home}" for home in public_names())


def list_of_names() -> str:
    """Return a list of the public names with their modules."""
    return "\n".join(
        f"- `ampft.{home.rsplit('.', 1)[1]}`, in `{home.rsplit('.', 1)[0]}`"
        for home in public_names()
    )


def public_names() -> list[str]:
    """Return where every name that `ampft/__init__.pyi` exports lives, in its order."""
    stub = ast.parse((ROOT / "ampft" / "__init__.pyi").read_text(encoding="utf-8"))
    return [
        f"ampft.{statement.module}.{alias.name}"
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def main() -> None:
    """Write the generated parts of all pages."""
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
