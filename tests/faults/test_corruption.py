"""Every file of a run folder, with five kinds of damage: detected, and the file is named."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ampft.engine.checkpoints.store import verify as verify_checkpoint
from ampft.errors import InputError
from ampft.files import FileDigest
from ampft.runs.manifest import MODEL_FILES, RECORD_NAME, RESULT_FILES, check_files, is_result_name
from ampft.runs.record import read_record

pytestmark = pytest.mark.slow


def flip(path: Path, _: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    letters = (
        i
        for i in range(middle, len(content))
        if chr(content[i]).isascii() and chr(content[i]).isalpha()
    )
    content[next(letters, middle)] ^= 1  # the last digit of a number may not change its value
    path.write_bytes(content)


def truncate(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def delete(path: Path, _: Path) -> None:
    path.unlink()


def swap(path: Path, other: Path) -> None:
    """Use the file of another run, which trained in the same way on other data."""
    shutil.copy(other, path)


DAMAGE: dict[str, Callable[[Path, Path], None]] = {
    "flip": flip, "truncate": truncate, "delete": delete, "swap": swap,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(train, tmp_path_factory) -> tuple[Path, Path]:
    """The folders of two runs whose files all differ."""
    folders = tuple(tmp_path_factory.mktemp("runs") / name for name in ("one", "other"))
    for folder in folders:
        assert train(folder) == 0
    one, other = folders
    for path in other.iterdir():
        if path.read_bytes() == (one / path.name).read_bytes():
            path.write_bytes(path.read_bytes() + b" ")
    return one, other


def verify(folder: Path) -> None:
    """Verify every file of a run folder."""
    record = read_record(folder)
    added = {path.name for path in folder.iterdir() if is_result_name(path.name)}
    check_files(folder, record.files, sorted((record.files.keys() | added) - {RECORD_NAME}))


def undetected(
    pair: tuple[Path, Path], added: Iterable[str], verify: Callable[[Path], object], tmp_path: Path
) -> tuple[int, list[str]]:
    """Return the number of damages, and those that no error with the name of the file reported.

    Args:
        pair: Folder to damage, and another one whose files all differ.
        added: Names of files to add.
        verify: Function that must raise an error.
        tmp_path: Folder for the damaged copies.
    """
    one, other = pair
    missed, count = [], 0
    names = sorted(path.name for path in one.iterdir())
    cases = [(name, kind) for name in names for kind in DAMAGE] + [(name, "add") for name in added]
    for name, kind in cases:
        folder = shutil.copytree(one, tmp_path / "damaged" / one.name)
        if kind == "add":
            (folder / name).write_text("{}")
        else:
            DAMAGE[kind](folder / name, other / name)
        count += 1
        try:
            verify(folder)
            missed.append(f"{kind} {name}: not detected")
        except InputError as error:
            # With the record of another run, the other files are those that do not match.
            if str(folder) not in str(error) or (name not in str(error) and kind != "swap"):
                missed.append(f"{kind} {name}: {error}")
        shutil.rmtree(folder)
    return count, missed


def undetected_in_run(runs: tuple[Path, Path], tmp_path: Path) -> tuple[int, list[str]]:
    names = {path.name for path in runs[0].iterdir()}
    assert len(names) > 10
    results = [name for name in (*RESULT_FILES, *MODEL_FILES) if "*" not in name]
    return undetected(runs, [name for name in results if name not in names], verify, tmp_path)


def test_damage_to_any_file_of_a_run_is_detected_and_named(runs, tmp_path, capsys):
    verify(runs[0])
    count, missed = undetected_in_run(runs, tmp_path)
    assert missed == []
    assert count > 55
    with capsys.disabled():
        print(f"\nrun folder: {count} damages of 5 kinds detected")


def test_without_the_manifest_damage_is_not_detected(runs, tmp_path, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(FileDigest, "__eq__", lambda *_: True)
    _, missed = undetected_in_run(runs, tmp_path)
    assert "flip model.safetensors: not detected" in missed


@pytest.fixture(scope="module")
def checkpoints(train, tmp_path_factory) -> tuple[Path, Path]:
    """Two checkpoints of the same step, whose files all differ."""
    folders = tuple(tmp_path_factory.mktemp("checkpoints") / name for name in ("one", "other"))
    for folder in folders:
        assert train(folder, checkpointing_steps="2") == 0
    one, other = (folder / "checkpoints" / "step-2" for folder in folders)
    for path in other.iterdir():
        content = path.read_bytes()
        if content == (one / path.name).read_bytes():
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return one, other


def undetected_in_checkpoint(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> tuple[int, list[str]]:
    added = ("pytorch_model.bin", "notes.txt", ".hidden", "optimizer.pt")
    return undetected(checkpoints, added, verify_checkpoint, tmp_path)


def test_damage_to_any_file_of_a_checkpoint_is_detected_and_named(checkpoints, tmp_path, capsys):
    verify_checkpoint(checkpoints[0])
    count, missed = undetected_in_checkpoint(checkpoints, tmp_path)
    assert missed == []
    assert count >= 24
    with capsys.disabled():
        print(f"\ncheckpoint: {count} damages of 5 kinds detected")


def test_without_hashes_damage_to_a_checkpoint_is_not_detected(checkpoints, tmp_path, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(FileDigest, "__eq__", lambda *_: True)
    _, missed = undetected_in_checkpoint(checkpoints, tmp_path)
    assert "flip model.safetensors: not detected" in missed
    assert "swap optimizer.safetensors: not detected" in missed


def test_any_changed_byte_of_the_record_changes_no_value_unnoticed(runs, tmp_path):
    content = (runs[0] / RECORD_NAME).read_bytes()
    values = json.loads(content)
    generator, noticed = random.Random(0), 0
    for position in generator.sample(range(len(content)), 150):
        changed = bytearray(content)
        changed[position] ^= 1 << generator.randrange(8)
        (tmp_path / RECORD_NAME).write_bytes(changed)
        try:
            read_record(tmp_path)
        except InputError as error:
            noticed += RECORD_NAME in str(error)
        else:  # for example, 1e-05 is 1E-05
            assert json.loads(changed) == values
    assert noticed > 140
