"""Makes each change of the files in a folder fail, or be the last one before the process dies."""

from __future__ import annotations

import builtins
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import safetensors.torch

Tree = dict[str, bytes | None]  # contents of files by relative path; None for a folder

# A full disk lets files be removed and renamed.
NEEDS_SPACE = frozenset({"open", "write", "fsync", "mkdir", "native"})


@dataclass(frozen=True)
class Operation:
    """A change that was about to happen."""

    kind: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


@dataclass
class FileFaults:
    """Context in which changes below a folder are counted, remembered, or made to fail.

    Python's own functions are patched, so that no file escapes: `open` and `write`, and in `os`
    fsync, rename, replace, link, unlink, rmdir, mkdir and chmod. What native code writes is covered
    by the fsync that follows it.

    Attributes:
        folder: The folder, which need not exist.
        fail_at: Index of the operation that fails; None lets all succeed.
        code: Error number. After ENOSPC all later operations that need space fail too.
        operations: All operations so far.
        states: With `fail_at` None, what a process leaves that is killed immediately before each
            operation, in the middle of each write, or without the end of a file that was not
            synced; by the operation, each state once.
    """

    folder: Path
    fail_at: int | None = None
    code: int = errno.ENOSPC
    operations: list[Operation] = field(default_factory=list)
    states: dict[str, Tree] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _contents: dict[bytes, bytes] = field(default_factory=dict)  # so that each is kept once
    _synced: dict[str, int] = field(default_factory=dict)  # bytes of each file
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __enter__(self) -> FileFaults:
        self.folder = self.folder.absolute()
        self._stack = ExitStack()
        for target, name, wrapper in self._wrappers():
            real = getattr(target, name)
            self._stack.enter_context(patch.object(target, name, wrapper(real)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._remember("end", self._tree())

    @property
    def kinds(self) -> set[str]:
        return {operation.kind for operation in self.operations}

    def at(self, kind: str, path: str | os.PathLike[str]) -> None:
        """Count an operation and, if it is the one, make it fail."""
        relative = self._relative(path)
        if relative is None:
            return
        with self._lock:
            index = len(self.operations)
            self.operations.append(Operation(kind, relative))
            if self.fail_at is None:
                self._remember_around(kind, relative, index)
                return
        is_full = self.code == errno.ENOSPC and index > self.fail_at and kind in NEEDS_SPACE
        if index == self.fail_at or is_full:
            raise OSError(self.code, os.strerror(self.code), str(path))

    def _relative(self, path: str | os.PathLike[str]) -> str | None:
        absolute = Path(os.path.abspath(path))  # noqa: PTH100 (a link is not followed)
        if not absolute.is_relative_to(self.folder):
            return None
        return absolute.relative_to(self.folder).as_posix()

    def _remember_around(self, kind: str, path: str, index: int) -> None:
        tree = self._tree()
        self._remember(f"{index}: before {kind} {path}", tree)
        content, synced = tree.get(path), self._synced.get(path, 0)
        if kind == "fsync" and content is not None:
            cut = content[: (synced + len(content)) // 2]
            self._remember(f"{index}: {path} cut before fsync", {**tree, path: cut})
            self._synced[path] = len(content)
        elif kind in ("rename", "unlink"):
            self._synced.pop(path, None)

    def _remember(self, label: str, tree: Tree) -> None:
        digest = hash(frozenset(tree.items()))
        if digest not in self._seen:
            self._seen.add(digest)
            self.states[label] = tree

    def _tree(self) -> Tree:
        return {
            path.relative_to(self.folder).as_posix(): None if path.is_dir() else self._content(path)
            for path in self.folder.rglob("*")
        }

    def _content(self, path: Path) -> bytes:
        content = path.read_bytes()
        return self._contents.setdefault(content, content)

    def _wrappers(self) -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
        for target in (builtins, io):
            yield target, "open", self._open
        yield os, "fsync", self._fsync
        for name in ("replace", "rename", "link"):
            yield os, name, self._two_paths("rename" if name == "replace" else name)
        for name in ("unlink", "remove", "rmdir", "mkdir", "chmod"):
            yield os, name, self._one_path("unlink" if name == "remove" else name)
        yield safetensors.torch, "serialize_file", self._native

    def _open(self, real: Any) -> Any:
        def open_(file: Any, mode: str = "r", *words: Any, **more: Any) -> Any:
            if not isinstance(file, str | os.PathLike) or not set(mode) & set("wxa+"):
                return real(file, mode, *words, **more)
            self.at("open", file)
            opened = real(file, mode, *words, **more)
            return opened if self._relative(file) is None else WatchedFile(opened, file, self)

        return open_

    def _fsync(self, real: Any) -> Any:
        def fsync(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self.at("fsync", path)
            if self._relative(path) is None:  # no power cut follows, and waiting takes long
                real(descriptor)

        return fsync

    def _one_path(self, kind: str) -> Any:
        def wrapper(real: Any) -> Any:
            def change(path: Any, *words: Any, **more: Any) -> Any:
                self._at_existing(kind, path, more.get("dir_fd"))
                return real(path, *words, **more)

            return change

        return wrapper

    def _two_paths(self, kind: str) -> Any:
        def wrapper(real: Any) -> Any:
            def change(source: Any, target: Any, **more: Any) -> Any:
                self.at(kind, target)
                return real(source, target, **more)

            return change

        return wrapper

    def _native(self, real: Any) -> Any:
        def serialize_file(tensors: Any, filename: Any, *words: Any, **more: Any) -> Any:
            self.at("native", filename)
            return real(tensors, filename, *words, **more)

        return serialize_file

    def _at_existing(self, kind: str, path: Any, dir_fd: int | None) -> None:
        """Count a change of one path, unless it would change nothing."""
        if dir_fd is not None:
            path = Path(f"/proc/self/fd/{dir_fd}").readlink() / path
        if (kind == "mkdir") != os.path.lexists(path):
            self.at(kind, path)


def worth_failing(operations: list[Operation]) -> Iterator[tuple[int, Operation]]:
    """Yield the operations with their indices, except the inner ones of many writes to one file.

    They are the same line of code, once for each tensor.
    """
    for index, operation in enumerate(operations):
        around = operations[max(0, index - 2) : index + 2]
        if len(around) < 4 or set(around) != {operation}:
            yield index, operation


class WatchedFile:
    """A file whose writes are counted; one that fails leaves half of its data."""

    def __init__(self, file: Any, path: Any, faults: FileFaults) -> None:
        self._file, self._path, self._faults = file, path, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> WatchedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()
        self._faults.at("write", self._path)
        self._file.write(data[half:])
        self._file.flush()
        return len(data)


def flip_bit(path: Path, *_: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def restore(tree: Tree, folder: Path) -> Path:
    """Write a state into a new folder."""
    folder.mkdir(parents=True)
    for name, content in sorted(tree.items()):
        if content is None:
            (folder / name).mkdir(exist_ok=True, parents=True)
        else:
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            (folder / name).write_bytes(content)
    return folder
