"""Reading history.jsonl: one optimizer step per line."""

from __future__ import annotations

import json
from pathlib import Path

from ampft.errors import InputError
from ampft.text.json_io import JSONValue


def read_history(path: Path) -> tuple[dict[str, JSONValue], ...]:
    """Return the rows of a history, in the order of the steps.

    A last line without its newline is what a killed run leaves: it is left out.

    Args:
        path: `history.jsonl`.

    Raises:
        InputError: When the file is missing or a whole line is no JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a run's history ({error})") from error
    whole, _, _ = text.rpartition("\n")
    return tuple(
        _row(path, number, line) for number, line in enumerate(whole.split("\n"), 1) if line
    )


def _row(path: Path, number: int, line: str) -> dict[str, JSONValue]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {number}: is no JSON ({error})") from error
    if not isinstance(row, dict):
        raise InputError(f"{path}, line {number}: must be a JSON object, got {line[:60]!r}")
    return row
