"""What an earlier command wrote or read, opened only if it is still what it was.

A path proves nothing: a file there may have been changed, added, replaced or linked since. A
folder that a command writes is `Sealed` by a manifest; a file that it reads is `Recorded` with its
SHA-256.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ampft.errors import InputError
from ampft.files import FileDigest, describe_file, is_safe_relative_path
from ampft.text.json_io import (
    JSONValue,
    check_schema,
    json_text,
    json_values,
    parse_json_object,
    values_hash,
)

_HASH = "sha256"
SAME, CHANGED, GONE = "unchanged", "changed", "gone"
STATES = {SAME: "is unchanged", CHANGED: "was changed since it was read", GONE: "is gone"}


def hashed_values(value: object) -> dict[str, JSONValue]:
    """Return a dataclass or a mapping as JSON values, the last of them their own hash."""
    values = cast("dict[str, JSONValue]", json_values(value))
    return {**values, _HASH: values_hash(values)}


def hashed_text(value: object) -> str:
    """Return a manifest, record or entry as JSON text that states its own hash."""
    return json_text(hashed_values(value))


def read_hashed(
    path: Path, schema: int | None = None, remedy: str = ""
) -> tuple[dict[str, Any], str]:
    """Read what `hashed_text` wrote.

    Args:
        schema: Expected version of its layout; None for any.
        remedy: Sentence for a file of another version.

    Returns:
        The values, and their hash.

    Raises:
        InputError: The file has the layout of another version.
        OSError: It cannot be read.
        ValueError: It is a link, or not as it was written.
    """
    if path.is_symlink():
        raise ValueError("it is a link")
    content = path.read_bytes()
    values = parse_json_object(content)
    if schema is not None:
        check_schema(path, values, schema, remedy)
    stored = values.pop(_HASH, None)
    if stored != values_hash(values) or not content.endswith(b"}\n"):
        raise ValueError("its values do not have the hash that it states")
    return values, str(stored)


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """A folder with a manifest over a closed set of files.

    Nothing in it may be added, missing, changed, or reached through a link.
    """

    folder: Path
    manifest: str  # Name of the file that lists the others.
    files: Mapping[str, FileDigest]  # Hash and size of every other file, by relative path.
    event: str  # What the files were written by, as it follows "after": "the run".
    remedy: str  # What to do about a folder that is not as it was, in a sentence.
    # Function that returns whether a name belongs to the closed set: of a run, the names that it
    # writes or loads, because users may keep other files beside them.
    belongs: Callable[[str], bool] = lambda name: True
    error: type[InputError] = InputError  # What `check` raises.

    def names(self) -> set[str]:
        """Return the names that are listed, and those that belong to the set and exist."""
        found = set(self.files)
        for place, folders, files in os.walk(self.folder):
            inner = Path(place).relative_to(self.folder)
            links = [name for name in folders if Path(place, name).is_symlink()]
            found |= {(inner / name).as_posix() for name in (*files, *links)}
            if not folders and not files and place != str(self.folder):
                found.add(inner.as_posix())
        own = {name for name in found if name in self.files or self.belongs(name)}
        return own - {self.manifest}

    def faults(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, str]]:
        """Yield names with what is wrong with them, as it follows "the file".

        Args:
            names: Names that are about to be read, whether they exist or not; None for all.
        """
        wanted = self.names() if names is None else set(names) - {self.manifest}
        for name in sorted(wanted, key=lambda name: (name not in self.files, name)):
            if problem := self._problem(name):
                yield name, problem

    def _problem(self, name: str) -> str | None:
        path = self.folder / name
        if not is_safe_relative_path(name):
            return "is outside the folder"
        if is_link(self.folder, name):
            return "is a link, or reached through one"
        if name not in self.files:
            return f"was added after {self.event}" if os.path.lexists(path) else None
        if not path.is_file():
            return "is missing"
        return (
            None if describe_file(path) == self.files[name] else f"was changed after {self.event}"
        )

    def check(self, names: Iterable[str] | None = None) -> None:
        """Check that files are as they were written.

        Args:
            names: Names that are about to be read, whether they exist or not; None for all.

        Raises:
            InputError: One is not, or was added; the message names it.
        """
        for name, problem in self.faults(names):
            raise self.error(
                f"{self.folder / name}: the file {problem}, according to the {self.manifest} next "
                f"to it. {self.remedy}"
            )

    def file(self, name: str) -> Path:
        """Return the path of a listed file, which is as it was written.

        Raises:
            InputError: It is not, or it is not listed.
        """
        self.check([name])
        if name not in self.files:
            raise self.error(
                f"{self.folder / name}: the file is not listed in the {self.manifest} next to it. "
                f"{self.remedy}"
            )
        return self.folder / name


@dataclass(frozen=True)
class Recorded:
    """A file that an earlier command read, and the hash of what it read."""

    path: Path
    sha256: str

    @property
    def state(self) -> str:
        """`SAME`, `CHANGED` or `GONE`."""
        try:
            return SAME if describe_file(self.path).sha256 == self.sha256 else CHANGED
        except OSError:
            return GONE

    def file(self) -> Path:
        """Return the path of the file, which is what was read.

        Raises:
            InputError: It was changed, or it is gone.
        """
        state = self.state
        if state != SAME:
            raise InputError(f"{self.path}: the file {STATES[state]}. Restore it from a copy.")
        return self.path


def is_link(folder: Path, name: str) -> bool:
    """Return whether a path in a folder is, or leads through, a symbolic link."""
    path = folder / name
    inside = [part for part in (path, *path.parents) if part.is_relative_to(folder)]
    return any(part.is_symlink() for part in inside if part != folder)
