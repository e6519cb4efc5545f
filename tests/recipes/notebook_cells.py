"""Executes the code cells of a notebook in this process, as a kernel does."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any


def code_cells(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def execute(cells: list[str]) -> list[tuple[str, Any]]:
    """Return what each cell prints, and the value of its last line if that is an expression."""
    names: dict[str, Any] = {}
    results = []
    for source in cells:
        body = ast.parse(source).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(ast.Module(body, []), "cell", "exec"), names)
            value = last and eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        results.append((out.getvalue(), value))
    return results
