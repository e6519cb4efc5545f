"""Temporary files of dead processes are removed; a disk that is too small is noticed before."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import namedtuple

import pytest
from running import CLASSIFY, call_here, file_names, rows, write_csv

from ampft.errors import InputError
from ampft.files import (
    atomic_path,
    check_disk_space,
    special_or_atomic_path,
    write_errors_explained,
    write_text,
)
from ampft.ownership import _remove_left, new_token, temporary_folder, write_token


def test_temporary_names_are_random_and_replace_nothing(tmp_path, monkeypatch):
    """Two containers can have the same process id, so it does not make a name unique."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    (tmp_path / ".7.tmp").write_text("mine")
    with atomic_path(tmp_path / "report.md") as one, atomic_path(tmp_path / "report.md") as other:
        assert one != other
        assert one.exists()
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "report.md").read_text() == "one", "the block that ended last"
    assert file_names(tmp_path) == [".7.tmp", "report.md"]
    monkeypatch.setattr("ampft.files.secrets.token_hex", lambda _: "7")
    with pytest.raises(FileExistsError), atomic_path(tmp_path / "report.md"):
        pass
    assert (tmp_path / ".7.tmp").read_text() == "mine"


@pytest.mark.parametrize("length", [234, 235, 255])
def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path, length):
    path = tmp_path / ("x" * length)
    write_text(path, "text")
    assert file_names(tmp_path) == [path.name]
    with special_or_atomic_path(path) as temporary:
        temporary.write_text("other")
    assert path.read_text() == "other"
    long = tmp_path / ("y" * 256)
    with pytest.raises(OSError, match=r"too long: '.*/y{256}'$"):
        write_text(long, "text")
    assert file_names(tmp_path) == [path.name]


def test_a_temporary_folder_that_is_not_ours_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = temporary_folder("data")
    (left / "rows.arrow").write_text("rows")
    kept = temporary_folder("data")  # this process is alive
    assert file_names(tmp_path) == sorted([left.name, kept.name])
    (tmp_path / "precious").mkdir()
    (tmp_path / "ampft-data-mine").mkdir()
    (tmp_path / "ampft-data-mine" / ".lock").touch()
    (tmp_path / "ampft-data-mine" / "thesis.tex").write_text("mine")
    (tmp_path / "ampft-data-link").symlink_to(tmp_path / "precious")
    write_token(tmp_path / "precious", new_token(), "ampft-data-link")
    shutil.copytree(left, tmp_path / "ampft-data-copy")
    mine = {"precious", "ampft-data-mine", "ampft-data-link", "ampft-data-copy"}
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (killed,) = {*file_names(tmp_path)} - mine - {left.name, kept.name}
    again = temporary_folder("data")  # each process looks once
    assert killed in file_names(tmp_path)
    _remove_left.cache_clear()
    created = temporary_folder("data")
    assert {*file_names(tmp_path)} == mine | {left.name, kept.name, again.name, created.name}
    assert killed not in file_names(tmp_path)


KILLED = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from ampft.ownership import temporary_folder
temporary_folder("data")
os.kill(os.getpid(), signal.SIGKILL)
"""


# Disk space

Usage = namedtuple("Usage", "total used free")


def test_what_is_needed_and_free_is_said(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    new = tmp_path / "not" / "yet"
    check_disk_space(new, free // 2, "the run")
    check_disk_space(new, 2 * free, "the run", reclaimable=2 * free)
    message = rf"--output_dir {new}: the run needs [\d.]+ GiB of disk space, and [\d.]+ .iB is free"
    with pytest.raises(InputError, match=message):
        check_disk_space(new, 2 * free, "the run")
    assert file_names(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("enough", "purpose", "kept"),
    [
        (0, "the run", None),
        (1, "saving the best weights so far", []),
        (2, "saving the best weights so far", ["checkpoints"]),  # the end of the training
        (5, "saving the model", ["checkpoints"]),
    ],
)
def test_space_is_checked_before_the_training_and_before_each_save(
    tiny_bert, tmp_path, monkeypatch, enough, purpose, kept
):
    """The disk has enough space for the first checks."""
    data = write_csv(tmp_path / "data.csv", rows(30, 0), ("text", "label"))
    folder, checks = tmp_path / "run", []

    def disk_usage(path):
        checks.append(path)
        return Usage(10**12, 0, 10**12 if len(checks) <= enough else 1000)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    done = call_here(
        CLASSIFY, "--train_file", data, "--model_name_or_path", tiny_bert, "--output_dir", folder,
        "--use_cpu", "--cpu_threads", 1, "--max_train_steps", 1,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"error: --output_dir {folder}: {purpose} needs 0." in done.stderr
    if kept is None:
        assert not folder.exists()
    else:
        assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
        assert file_names(folder) == [*kept, "history.jsonl", "run.json"]


def test_a_full_disk_names_the_output_that_the_user_asked_for(tmp_path):
    with (
        pytest.raises(InputError, match=r"out\.csv: the file cannot be written \(.*No space left"),
        special_or_atomic_path(tmp_path / "out.csv"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not list(tmp_path.iterdir())


def test_errors_of_writing_are_one_message_and_others_pass():
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with (
        pytest.raises(
            InputError, match=r"^a/b cannot be written \(Permission denied\)\. Move it\.$"
        ),
        write_errors_explained("a/b", "Move it."),
    ):
        raise denied
    for error, disk_only in ((denied, True), (ValueError("a bug"), False)):
        with (
            pytest.raises(type(error)),
            write_errors_explained("a/b", "Move it.", disk_only=disk_only),
        ):
            raise error
