"""A folder has one writer, and files are written atomically."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ampft.errors import InputError
from ampft.files import atomic_path
from ampft.runs.folder import LOCK_NAME, RunFolder, check_output_folder

HOLD = """
import sys, time
from ampft.runs.folder import RunFolder
with RunFolder(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_writes_and_leaves_nothing_else(tmp_path: Path):
    with RunFolder(tmp_path / "new" / "run") as folder:
        folder.write_text("report.txt", "é\n")
        folder.write_json("report.json", {"nan": float("nan"), "array": np.arange(2)})
        assert (folder / LOCK_NAME).read_text() == f"{os.getpid()}\n"
    folder.close()
    assert sorted(p.name for p in folder.path.iterdir()) == ["report.json", "report.txt"]
    assert (folder / "report.txt").read_text(encoding="utf-8") == "é\n"
    assert json.loads((folder / "report.json").read_text()) == {"nan": None, "array": [0, 1]}


def test_a_folder_with_files_is_refused_and_untouched(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"is not empty \(thesis.tex\).*--overwrite_output_dir"):
        RunFolder(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_overwriting_removes_only_results(tmp_path: Path):
    for name in ("thesis.tex", "run.json", "history.jsonl"):
        (tmp_path / name).write_text("old")
    with RunFolder(tmp_path, overwrite=True):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_not_a_folder(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        RunFolder(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be written"):
        RunFolder(tmp_path / "file" / "below")


def test_a_check_creates_nothing(tmp_path: Path):
    check_output_folder(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_second_writer_is_refused_until_the_first_ends(tmp_path: Path, overwrite: bool):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=rf"another run .* \(process {holder.pid}\)"):
            RunFolder(tmp_path, overwrite=overwrite)
        with pytest.raises(InputError, match="another run"):
            check_output_folder(tmp_path, overwrite=overwrite)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert (tmp_path / LOCK_NAME).exists(), "a killed run leaves its lock file, but no lock"
    with RunFolder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path):
    target = tmp_path / "report.txt"
    target.write_text("old")

    def interrupted() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        interrupted()
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.txt"]


def test_a_text_that_cannot_be_encoded_is_escaped(tmp_path: Path):
    with RunFolder(tmp_path) as folder:
        folder.write_text("report.txt", "\ud800")
    assert (tmp_path / "report.txt").read_text(encoding="utf-8") == "\\ud800"
