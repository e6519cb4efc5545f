"""Fills the reference pages of the documentation from the code when MkDocs builds it.

A line `{{ flags MODULE:CLASS }}` becomes tables of the flags of a dataclass,
`{{ help SCRIPT ... }}` the help text of a command, `{{ python }}` the public names, and
`{{ transformers differences|rows }}` tables of the flags of transformers' scripts.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_PLACEHOLDER = re.compile(r"^\{\{ (flags|help|python|transformers)(?: (.+?))? \}\}$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the placeholders of a page; MkDocs calls this for every page."""
    writers = {
        "flags": flag_tables,
        "help": help_text,
        "python": public_names,
        "transformers": transformers_table,
    }
    return _PLACEHOLDER.sub(lambda match: writers[match[1]](*filter(None, [match[2]])), markdown)


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
    from ampft.doors.transformers_rows import ROWS

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


def public_names() -> str:
    """Return a mkdocstrings line for every name that `ampft/__init__.pyi` exports."""
    stub = ast.parse((ROOT / "ampft" / "__init__.pyi").read_text(encoding="utf-8"))
    homes = [
        f"ampft.{statement.module}.{alias.name}"
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    ]
    return "\n\n".join(f"::: {home}" for home in homes)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
