"""A folder on its way between machines: sent in parts, received whole or not at all."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ampft.engine.checkpoints.store import STORE_NAME
from ampft.files import SAME, Recorded, describe_file, remove, rename, sync
from ampft.ownership import PRIVATE_NAME, remove_tree

PART_BYTES = 8 << 20
_REPLACED = ".replaced"


class DamagedParcel(Exception):
    """The parts that arrived are not those that were sent."""


def pack_folder(folder: Path, file: Path) -> tuple[str, Iterator[bytes]]:
    """Pack a folder into a new file; return the SHA-256 of the file, and its parts.

    A run may still write into the folder. Checkpoints are packed first, so that the rest is at
    least as new: what arrives is a state from which a killed run could continue.
    """
    found = ((path, path.relative_to(folder).parts[0]) for path in folder.rglob("*"))
    paths = [path for path, outermost in found if not outermost.startswith(PRIVATE_NAME)]
    paths.sort(key=lambda path: (path.relative_to(folder).parts[0] != STORE_NAME, path))
    with tarfile.open(file, "w") as tar:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                tar.add(path, str(path.relative_to(folder)), recursive=False)
    return describe_file(file).sha256, _parts(file)


def unpack(file: Path, sha256: str, target: Path) -> None:
    """Unpack what `pack_folder` packed into the new folder `target`.

    Raises:
        DamagedParcel: The file is not what was sent.
    """
    if Recorded(file, sha256).state != SAME:
        raise DamagedParcel(str(file))
    target.mkdir()
    with tarfile.open(file) as tar:
        tar.extractall(target, filter="data")


def put_in_place(arrived: Path, folder: Path) -> None:
    """Let a folder that has arrived take the place of `folder`, which need not exist.

    Args:
        arrived: Folder on the same file system.
        folder: Its place; what lies there now is removed.
    """
    for path in [*arrived.rglob("*"), arrived]:
        sync(path)
    old = arrived.with_name(arrived.name + _REPLACED)
    if folder.exists():
        rename(folder, old)
    rename(arrived, folder)
    sync(folder.parent)
    if old.exists():
        remove_tree(old)


class Receiver:
    """Collects the parts of a parcel in a file."""

    def __init__(self, file: Path) -> None:
        """Collect in a new file."""
        self._path = file
        self._file: IO[bytes] | None = None

    def add(self, part: bytes) -> None:
        if self._file is None:
            self._file = self._path.open("wb")
        self._file.write(part)

    def unpack(self, sha256: str, target: Path) -> None:
        """Unpack the parts so far into the new folder `target`, and begin anew.

        Raises:
            DamagedParcel: They are not what was sent.
        """
        self.add(b"")
        self._close()
        unpack(self._path, sha256, target)
        remove(self._path)

    def clear(self) -> None:
        """Forget the parts so far."""
        self._close()
        remove(self._path)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _parts(file: Path) -> Iterator[bytes]:
    with file.open("rb") as packed:
        while part := packed.read(PART_BYTES):
            yield part
    remove(file)
