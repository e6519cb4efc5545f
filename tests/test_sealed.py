"""A sealed folder notices every change, and a recorded file says what became of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ampft.errors import InputError
from ampft.files import (
    CHANGED,
    GONE,
    SAME,
    FileDigest,
    Recorded,
    Sealed,
    describe_file,
    hashed_text,
    read_hashed,
)

CONTENTS = {"a.txt": "one", "b.txt": "two", "inner/c.txt": "three"}


def seal(folder: Path, files: dict[str, FileDigest] | None = None) -> Sealed:
    for name, text in CONTENTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "LIST").write_text("")
    listed = {name: describe_file(folder / name) for name in CONTENTS} if files is None else files
    return Sealed(
        folder=folder, manifest="LIST", files=listed, event="the test", remedy="Restore it."
    )


def test_an_unchanged_folder_passes(tmp_path: Path):
    sealed = seal(tmp_path / "own")
    sealed.check()
    assert list(sealed.faults()) == []
    assert sealed.file("inner/c.txt").read_text() == "three"


def linked(path: Path, content: str) -> None:
    target = path.with_name("target")
    target.write_text(content)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def linked_folder(folder: Path) -> None:
    shutil.move(folder / "inner", folder.parent / "inner")
    (folder / "inner").symlink_to(folder.parent / "inner")


@pytest.mark.parametrize(
    ("tamper", "fault"),
    [
        (lambda f: (f / "a.txt").write_text("onE"), ("a.txt", "was changed after the test")),
        (lambda f: (f / "a.txt").write_text("on"), ("a.txt", "was changed after the test")),
        (lambda f: (f / "a.txt").write_text("two"), ("a.txt", "was changed after the test")),
        (lambda f: (f / "a.txt").unlink(), ("a.txt", "is missing")),
        (lambda f: (f / "new").write_text(""), ("new", "was added after the test")),
        (lambda f: (f / ".new").write_text(""), (".new", "was added after the test")),
        (lambda f: (f / "inner/new").write_text(""), ("inner/new", "was added after the test")),
        (lambda f: (f / "empty").mkdir(), ("empty", "was added after the test")),
        (
            lambda f: (f / "new").symlink_to(f / "gone"),
            ("new", "is a link, or reached through one"),
        ),
        (lambda f: linked(f / "a.txt", "one"), ("a.txt", "is a link, or reached through one")),
        (linked_folder, ("inner/c.txt", "is a link, or reached through one")),
    ],
)
def test_every_change_is_a_fault(tmp_path: Path, tamper: Callable[[Path], object], fault):
    sealed = seal(tmp_path / "own")
    tamper(tmp_path / "own")
    assert fault in list(sealed.faults())
    with pytest.raises(InputError, match=r"according to the LIST next to it\. Restore it"):
        sealed.check()


@pytest.mark.parametrize("name", ["../out.txt", "/etc/hostname", "inner/../../out.txt"])
def test_a_listed_path_outside_is_refused_although_its_hash_is_right(tmp_path: Path, name: str):
    (tmp_path / "out.txt").write_text("x")
    outside = Path(name) if name.startswith("/") else tmp_path / "out.txt"
    sealed = seal(tmp_path / "own", {name: describe_file(outside)})
    assert (name, "is outside the folder") in list(sealed.faults())
    with pytest.raises(InputError, match="is outside the folder"):
        sealed.file(name)


def test_a_file_that_is_not_listed_is_not_opened(tmp_path: Path):
    sealed = seal(tmp_path / "own", {})
    with pytest.raises(InputError, match="was added after the test"):
        sealed.file("a.txt")
    with pytest.raises(InputError, match="is not listed"):
        sealed.file("never there")


def test_names_that_do_not_belong_to_the_set_are_the_users(tmp_path: Path):
    sealed = seal(tmp_path / "own")
    own = Sealed(**{**vars(sealed), "belongs": lambda name: name.endswith(".txt")})
    (tmp_path / "own" / "notes.md").write_text("mine")
    own.check()
    with pytest.raises(InputError, match=r"notes\.md"):
        sealed.check()


def test_a_recorded_file_is_the_same_changed_or_gone(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text("x")
    recorded = Recorded(path, describe_file(path).sha256)
    assert (recorded.state, recorded.file()) == (SAME, path)
    path.write_text("y")
    assert recorded.state == CHANGED
    with pytest.raises(InputError, match="was changed since it was read"):
        recorded.file()
    path.unlink()
    assert recorded.state == GONE
    with pytest.raises(InputError, match="is gone"):
        recorded.file()
    path.mkdir()
    assert recorded.state == GONE


def test_values_with_their_hash_are_read_back_and_edited_ones_are_not(tmp_path: Path):
    path = tmp_path / "x.json"
    path.write_text(hashed_text({"a": 1, "b": "two"}))
    values, sha256 = read_hashed(path)
    assert values == {"a": 1, "b": "two"}
    assert sha256 in path.read_text()
    for edited in (path.read_text().replace("two", "too"), path.read_text()[:-1], "{}\n"):
        path.write_text(edited)
        with pytest.raises(ValueError, match="do not have the hash"):
            read_hashed(path)
    path.unlink()
    (tmp_path / "y.json").write_text(hashed_text({"a": 1}))
    path.symlink_to(tmp_path / "y.json")
    with pytest.raises(ValueError, match="is a link"):
        read_hashed(path)
