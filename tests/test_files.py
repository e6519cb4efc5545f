"""Temporary files of dead processes are removed; a disk that is too small is noticed before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from pathlib import Path

import pytest
from running import CLASSIFY, call_here, rows, write_csv

from ampft.errors import InputError
from ampft.files import check_disk_space, final_name, temporary_folder, write_text


@pytest.fixture(scope="module")
def dead_process() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_removes_what_dead_processes_left_of_the_same_file(tmp_path, dead_process):
    old = {
        "dead": f".re[p]ort.md.tmp-{dead_process}",
        "live": f".re[p]ort.md.tmp-{os.getppid()}",
        "other": f".notes.md.tmp-{dead_process}",
        "user": ".re[p]ort.md.tmp-draft",
    }
    for name in old.values():
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (0, 0))
    write_text(tmp_path / "re[p]ort.md", "whole")
    assert names(tmp_path) == sorted(["re[p]ort.md", old["live"], old["other"], old["user"]])


def test_a_recent_temporary_file_may_be_that_of_another_machine(tmp_path, dead_process):
    left = tmp_path / f".report.md.tmp-{dead_process}"
    left.write_text("half")
    write_text(tmp_path / "report.md", "whole")
    assert left.exists()
    os.utime(left, (time.time() - 3700,) * 2)
    write_text(tmp_path / "report.md", "whole")
    assert names(tmp_path) == ["report.md"]


def test_names_of_temporary_files():
    assert final_name(".run.json.tmp-12") == "run.json"
    for name in ("run.json", ".run.json", "run.json.tmp-12", ".run.json.tmp-x", ".tmp-12"):
        assert final_name(name) is None


def test_a_temporary_folder_that_is_not_ours_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "precious").mkdir()
    (tmp_path / "ampft-data-mine").mkdir()
    (tmp_path / "ampft-data-mine" / "thesis.tex").write_text("mine")
    (tmp_path / "ampft-data-link").symlink_to(tmp_path / "precious")
    (tmp_path / "ampft-trial-x").mkdir()
    (tmp_path / "ampft-trial-x" / ".lock").touch()
    os.utime(tmp_path / "ampft-trial-x" / ".lock", (0, 0))
    created = temporary_folder("data")
    assert created.parent == tmp_path
    kept = {"precious", "ampft-data-mine", "ampft-data-link", "ampft-trial-x"}
    assert set(names(tmp_path)) == kept | {created.name}
    temporary_folder("trial")
    assert "ampft-trial-x" not in names(tmp_path)


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
    assert names(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("enough", "purpose", "status"),
    [
        (0, "the run", None),
        (1, "saving the best weights so far", "interrupted"),
        (2, "saving the model", "interrupted"),
    ],
)
def test_space_is_checked_before_the_training_and_before_each_save(
    tiny_bert, tmp_path, monkeypatch, enough, purpose, status
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
    assert f"error: --output_dir {folder}: {purpose} needs 0 MiB" in done.stderr
    if status is None:
        assert not folder.exists()
    else:
        assert json.loads((folder / "run.json").read_text())["status"] == status
        assert names(folder) == ["history.jsonl", "run.json"]
