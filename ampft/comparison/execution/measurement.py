"""A measurement by a process that is launched like a run: its request and its result are files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ampft.comparison.execution.launchers import Program
from ampft.errors import InputError
from ampft.ownership import temporary_folder
from ampft.text.json_io import json_text, read_json_object


class NoResult(Exception):
    """The process wrote no result; the message is its first error."""


def ask(
    module: str, name: str, request: dict[str, Any], start: Callable[[Program], object]
) -> dict[str, Any]:
    """Run a module that calls `answer`, and return its result.

    Args:
        module: Name of the module.
        name: Name of the folder of the process, inside a temporary one.
        request: Its request.
        start: Runs a program to its end.

    Raises:
        InputError: The process raised one, with the same message.
        NoResult: It ended without a result.
    """
    place = temporary_folder(name.partition("-")[0])
    folder, log = place / name, place / "log"
    folder.mkdir()
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    paths = str(folder / "request.json"), str(folder / "result.json")
    start(Program(("-m", module, *paths), log, folder))
    try:
        result = read_json_object(folder / "result.json")
    except (OSError, ValueError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        # The launcher prints its own traceback after the process's traceback.
        errors = [line for line in lines if "Error" in line and not line.startswith(" ")]
        raise NoResult(errors[0] if errors else "no error message") from None
    if "error" in result:
        raise InputError(str(result["error"]))
    return result


def answer(measure: Callable[[dict[str, Any]], object], request: str, result: str) -> None:
    """Measure, and write the result, or the message of an `InputError`, from the main process.

    Args:
        measure: Returns the result for a request.
        request: Path of the file with the request.
        result: Path of the file to write.
    """
    try:
        found = measure(json.loads(Path(request).read_text(encoding="utf-8")))
    except InputError as error:
        found = {"error": str(error)}
    if os.environ.get("RANK", "0") == "0":
        Path(result).write_text(json_text(found), encoding="utf-8")
