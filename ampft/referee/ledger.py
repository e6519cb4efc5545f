"""The ledger: a folder of entries that are only added, each with the hash of the one before it.

An entry is a file `entry-000001.json`. It is written under a temporary name, synced and renamed, so
that a killed process leaves whole entries only. Writers take turns by a lock on the folder. Removed
or changed entries break the chain of hashes; entries removed at the end do not, which is why every
answer shows the hash of the last entry.
"""

from __future__ import annotations

import getpass
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from ampft.errors import InputError
from ampft.files import atomic_path, write_new_text
from ampft.referee.entries import FINAL, SCHEMA, START, TRY, Entry, Model, TestSet
from ampft.text.json_io import (
    JSONValue,
    check_schema,
    from_json,
    json_text,
    json_values,
    read_json_object,
    values_hash,
)

FIRST_NAME = "entry-000001.json"
LOCK_NAME = ".lock"
SECONDS_TO_WAIT = 600.0  # for another writer, which may compare large tables


def is_ledger(folder: Path) -> bool:
    """Return whether a folder holds a ledger."""
    return (folder / FIRST_NAME).is_file()


def entry_path(folder: Path, number: int) -> Path:
    """Return the path of an entry."""
    return folder / f"entry-{number:06}.json"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a ledger, whose folder is created.

    Raises:
        InputError: Another process holds it for too long, or the folder holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"LEDGER {folder}: this is a file. Name a folder.")
    if folder.is_dir() and not is_ledger(folder):
        others = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        if others:
            raise InputError(
                f"LEDGER {folder}: the folder holds {sorted(others)[0]} and no {FIRST_NAME}, so it "
                "is not a ledger. Name a ledger, or a new folder."
            )
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_NAME)
    try:
        lock.acquire(timeout=SECONDS_TO_WAIT)
    except Timeout:
        raise InputError(
            f"LEDGER {folder}: another process has been writing to it for "
            f"{SECONDS_TO_WAIT:.0f} s. Wait for it, or end it."
        ) from None
    try:
        yield
    finally:
        lock.release()


def read_entries(folder: Path) -> tuple[list[Entry], str]:
    """Read and verify all entries.

    Returns:
        The entries, and the hash of the last one.

    Raises:
        InputError: There is none, or one is missing, damaged, edited or not part of the chain.
    """
    if not is_ledger(folder):
        raise InputError(
            f"LEDGER {folder}: there is no ledger. Start one with the current best: "
            f"ampft judge {folder} --best RUN RUN RUN"
        )
    numbers = sorted(
        int(stem) for path in folder.glob("entry-*.json") if (stem := path.stem[6:]).isdecimal()
    )
    entries: list[Entry] = []
    previous = ""
    for position, number in enumerate(numbers, 1):
        path = entry_path(folder, position)
        if number != position:
            raise InputError(
                f"LEDGER {folder}: {path.name} is missing, although there is an entry {number}. "
                "Restore the folder from a copy."
            )
        entry, sha256 = _read_entry(path)
        if entry.previous != previous or entry.number != position:
            raise InputError(
                f"LEDGER {folder}: {path.name} does not continue the entry before it, so entries "
                "were edited, or come from another ledger. Restore the folder from a copy."
            )
        _check_parts(path, entry)
        entries.append(entry)
        previous = sha256
    return entries, previous


def append(folder: Path, entry: Entry) -> str:
    """Add an entry, whose lock is held, and return its hash."""
    values = cast("dict[str, JSONValue]", json_values(entry))
    sha256 = values_hash(values)
    path = entry_path(folder, entry.number)
    assert not path.exists(), "the lock is held, and the number is the next one"
    with atomic_path(path) as temporary:
        write_new_text(temporary, json_text({**values, "sha256": sha256}))
    return sha256


def new_entry(
    kind: str, entries: list[Entry], previous: str, models: list[Model], **parts: Any
) -> Entry:
    """Return the next entry of a ledger, by this user and now.

    Args:
        kind: Kind of the entry.
        entries: Earlier entries.
        previous: Hash of the last of them.
        models: Models of the entry.
        parts: Further fields of `Entry`.
    """
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no entry in the system's list of users
        user = "unknown"
    return Entry(
        number=len(entries) + 1,
        kind=kind,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        who=f"{user}@{platform.node() or 'unknown'}",
        previous=previous,
        models=tuple(models),
        **parts,
    )


def _read_entry(path: Path) -> tuple[Entry, str]:
    """Return an entry and the hash of its values."""
    try:
        values = read_json_object(path)
        check_schema(path, values, SCHEMA, "Use the version of ampft that wrote the ledger.")
        stored = values.pop("sha256", None)
        if stored != values_hash(values):
            raise ValueError("its values do not have the hash that it states")
        return from_json(Entry, values, path.name), str(stored)
    except (OSError, ValueError) as error:
        raise InputError(
            f"LEDGER {path.parent}: {path.name} is damaged or was edited ({error}). Restore the "
            "folder from a copy."
        ) from error


def _check_parts(path: Path, entry: Entry) -> None:
    """Check that an entry has the parts of its kind."""
    has_trial, has_test = entry.trial is not None, isinstance(entry.test, TestSet)
    is_first = entry.number == 1
    fits = (
        (entry.kind == START) == is_first == (entry.settings is not None)
        and has_trial == (entry.kind in (TRY, FINAL))
        and has_test == (entry.kind in (START, FINAL))
        and len(entry.models) > 0
        and bool(entry.compared) == (entry.kind == FINAL)
    )
    if not fits:
        raise InputError(
            f"LEDGER {path.parent}: {path.name} lacks a part of an entry of the kind "
            f"{entry.kind!r}. Restore the folder from a copy."
        )
