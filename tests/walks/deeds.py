"""Carries out the advice of a message on the input that caused it, behind any door."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_walks import Files, Remedy, Walk
from prepared import Prepared


def write(files: Files, folder: Path, prepared: Prepared) -> None:
    """Write files; None removes a file or a folder, and a function changes what is there."""
    for name, content in files.items():
        path = folder / name
        if callable(content):
            content(path, prepared)
        elif content is None and path.is_dir():
            shutil.rmtree(path)
        elif content is None:
            path.unlink(missing_ok=True)
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def changed(words: str, remedy: Remedy) -> str:
    """Return a command, or code, as a remedy changes it."""
    flags = re.search(r"--\w.*", remedy.advice)
    deeds = remedy.without or remedy.files or remedy.add
    added = remedy.add or (flags[0] if flags and not deeds else "")
    if not remedy.without:
        return f"{words} {added}".strip()
    assert remedy.without in words, f"{remedy.without!r} is not in {words!r}"
    if remedy.advice.startswith("--") and not added:
        added = remedy.advice
    return words.replace(remedy.without, added, 1)


def carried_out(
    walk: Walk, door: Callable[[str], Any], prepared: Prepared, root: Path
) -> tuple[Any, list[Any]]:
    """Return the first answer, and that after each remedy.

    The first remedy follows the refusal in the same folder, the others in a new one.
    """
    first, answers = None, []
    for number, remedy in enumerate(walk.remedies):
        folder = root / str(number)
        folder.mkdir()
        words = changed(walk.words, remedy)
        with contextlib.chdir(folder):
            prepared.copy(walk.words, folder)
            write(walk.files, folder, prepared)
            if number == 0:
                first = door(walk.words)
            prepared.copy(words, folder, besides=walk.files)
            write(remedy.files, folder, prepared)
            answers.append(door(words))
    return first, answers
