"""A folder has one writer, and files are written atomically."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from running import file_names

from ampft.errors import InputError
from ampft.files import atomic_path, describe_file, hashed_text
from ampft.ownership import PRIVATE_NAME, lock_holder_pid, new_token, private_file, write_token
from ampft.runs.folder import RunFolder, check_output_folder
from ampft.runs.manifest import describe_files
from ampft.runs.record import read_record, write_record
from ampft.text.json_io import json_text

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
        folder.write_text("report.json", json_text({"nan": float("nan"), "array": np.arange(2)}))
        assert lock_holder_pid(folder.path) == str(os.getpid())
    folder.close()
    assert sorted(p.name for p in folder.path.iterdir()) == ["report.json", "report.txt"]
    assert (folder / "report.txt").read_text(encoding="utf-8") == "é\n"
    assert json.loads((folder / "report.json").read_text()) == {"nan": None, "array": [0, 1]}


def test_a_refusal_leaves_no_new_folder(tmp_path: Path):
    new, mine, used = tmp_path / "new", tmp_path / "mine", tmp_path / "used"
    mine.mkdir()
    for path in (new, mine):
        with RunFolder(path):
            pass
    with RunFolder(used) as folder:
        folder.write_text("run.json", "{}")
    assert not new.exists()
    assert mine.exists(), "the user's own, which was empty before"
    assert used.exists()


def test_a_folder_with_files_is_refused_and_untouched(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"is not empty \(thesis.tex\).*--overwrite_output_dir"):
        RunFolder(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_only_remedies_that_work_are_offered(tmp_path: Path):
    """A README of the user cannot be replaced, and there is no run to continue."""
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(InputError) as error:
        RunFolder(tmp_path)
    assert str(error.value).endswith("(README.md). Choose a new or empty folder.")
    (tmp_path / "README.md").rename(tmp_path / "notes.md")
    with pytest.raises(InputError, match="or pass --overwrite_output_dir to keep these") as error:
        RunFolder(tmp_path)
    assert "resume" not in str(error.value)


def finish_run(path: Path, make_record) -> None:
    """Write the results of a run as a recipe does."""
    with RunFolder(path, overwrite=True) as folder:
        write_record(folder, make_record(status="running"))
        (folder / "history.jsonl").write_text('{"step": 1}\n')
        for name in ("model.safetensors", "README.md"):
            (folder.stage() / name).write_text("results")
        folder.staged = describe_files(folder.stage())
        record = make_record(files=folder.files())
        folder.publish()
        write_record(folder, record)


RESULTS = ["README.md", "history.jsonl", "model.safetensors", "run.json"]


def test_overwriting_removes_only_results(tmp_path: Path, make_record):
    (tmp_path / "thesis.tex").write_text("mine")
    finish_run(tmp_path, make_record)
    assert file_names(tmp_path) == sorted([*RESULTS, "thesis.tex"])
    (tmp_path / "data.csv").write_text("mine")
    finish_run(tmp_path, make_record)
    with RunFolder(tmp_path, overwrite=True):
        assert file_names(tmp_path) == [PRIVATE_NAME, "data.csv", "thesis.tex"]


def test_the_record_lists_only_what_the_run_wrote(tmp_path: Path, make_record):
    (tmp_path / "thesis.tex").write_text("mine")
    finish_run(tmp_path, make_record)
    assert sorted(read_record(tmp_path).files) == RESULTS[:-1]


@pytest.mark.parametrize("name", ["README.md", "config.json", "run.json", "history.jsonl"])
def test_files_of_the_user_under_names_of_results_are_not_replaced(tmp_path: Path, name: str):
    (tmp_path / name).write_text("mine")
    for claim in (check_output_folder, RunFolder):
        with pytest.raises(InputError, match=rf"written or changed by someone else: {name}\. Move"):
            claim(tmp_path, overwrite=True)
    assert (tmp_path / name).read_text() == "mine"
    assert file_names(tmp_path) == [name]


@pytest.mark.parametrize("name", ["model.safetensors", "history.jsonl", "run.json"])
def test_a_planted_link_is_not_written_through(tmp_path: Path, make_record, name: str):
    (tmp_path / "precious").write_text("mine")
    finish_run(tmp_path / "run", make_record)
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / name).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="changed by someone else: "):
        RunFolder(tmp_path / "run", overwrite=True)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_link_above_the_output_folder_is_followed(tmp_path: Path, make_record):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    for _ in range(2):
        finish_run(tmp_path / "runs/a", make_record)
    assert file_names(tmp_path / "disk/a") == RESULTS


@pytest.mark.parametrize("url", ["s3://bucket/run", "hf://datasets/run", "file:///tmp/run"])
def test_a_url_is_refused(url: str):
    with pytest.raises(InputError, match=r"--output_dir .*: this is a URL\. Choose a local folder"):
        check_output_folder(url)
    with pytest.raises(InputError, match=r"s3://host/run: this is a URL"):
        check_output_folder("s3://me:secret@host/run")


def test_a_changed_result_belongs_to_the_user(tmp_path: Path, make_record):
    finish_run(tmp_path, make_record)
    (tmp_path / "README.md").write_text("my own model card")
    with pytest.raises(InputError, match=r"changed by someone else: README\.md"):
        RunFolder(tmp_path, overwrite=True)
    assert file_names(tmp_path) == RESULTS


@pytest.mark.parametrize("change", [{"files": {}}, {"reason": "edited"}])
def test_a_record_without_its_own_hash_proves_nothing(tmp_path: Path, make_record, change):
    finish_run(tmp_path, make_record)
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**record, **change}))
    with pytest.raises(InputError, match=r"changed by someone else: README\.md, history\.jsonl"):
        RunFolder(tmp_path, overwrite=True)
    assert file_names(tmp_path) == RESULTS


def test_a_record_cannot_name_files_outside_its_folder(tmp_path: Path, make_record):
    outside = tmp_path / "thesis.tex"
    outside.write_text("mine")
    finish_run(tmp_path / "run", make_record)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    part = asdict(describe_file(outside))
    record["files"] |= {"../thesis.tex": part, str(outside): part}
    del record["sha256"]
    (tmp_path / "run" / "run.json").write_text(hashed_text(record))
    with RunFolder(tmp_path / "run", overwrite=True):
        assert outside.read_text() == "mine"


def kill_run(path: Path, make_record, history: str = '{"st') -> None:
    """Leave what a run leaves that is killed while it writes."""
    folder = RunFolder(path)
    write_record(folder, make_record(status="running"))
    (folder / "history.jsonl").write_text(history)
    (folder.stage() / "config.json").write_text("{")
    private_file(path, "report-txt.tmp").write_text("half")
    private_file(path, "best.safetensors").write_text("weights")
    folder._private.close(keep=True)


def test_what_a_killed_run_left_is_removed(tmp_path: Path, make_record):
    kill_run(tmp_path, make_record)
    assert file_names(tmp_path) == [PRIVATE_NAME, "history.jsonl", "run.json"]
    with RunFolder(tmp_path, overwrite=True):
        assert file_names(tmp_path) == [PRIVATE_NAME]
    assert file_names(tmp_path) == []


def test_a_history_of_another_program_beside_a_killed_run_is_kept(tmp_path: Path, make_record):
    kill_run(tmp_path, make_record, "1066 Hastings\n")
    with pytest.raises(InputError, match=r"changed by someone else: history\.jsonl"):
        RunFolder(tmp_path, overwrite=True)
    assert (tmp_path / "history.jsonl").read_text() == "1066 Hastings\n"


def test_a_folder_in_which_a_run_was_killed_at_its_start_counts_as_empty(tmp_path: Path):
    """It can be started again with the same command."""
    RunFolder(tmp_path)._private.close(keep=True)
    token = new_token()
    unfinished = tmp_path / f"{PRIVATE_NAME}.tmp-{token}"
    unfinished.mkdir()
    with RunFolder(tmp_path):
        assert file_names(tmp_path) == [PRIVATE_NAME]
    unfinished.mkdir()
    write_token(unfinished, token, PRIVATE_NAME)
    with RunFolder(tmp_path):
        assert file_names(tmp_path) == [PRIVATE_NAME]


def test_a_file_created_during_the_run_is_not_replaced(tmp_path: Path, make_record):
    with RunFolder(tmp_path) as folder:
        (folder.stage() / "config.json").write_text("{}")
        folder.staged = describe_files(folder.stage())
        (tmp_path / "config.json").write_text("mine")
        with pytest.raises(InputError, match=r"config\.json was created by another program"):
            folder.publish()
    assert (tmp_path / "config.json").read_text() == "mine"
    assert file_names(tmp_path) == [PRIVATE_NAME, "config.json"], "the results are kept"


def test_a_record_that_another_program_replaced_during_the_run_is_kept(tmp_path, make_record):
    with RunFolder(tmp_path) as folder:
        write_record(folder, make_record(status="running"))
        write_record(folder, make_record(status="running"))
        (tmp_path / "mine").write_text("mine")
        (tmp_path / "mine").rename(tmp_path / "run.json")
        with pytest.raises(InputError, match=r"run\.json was created or replaced by another"):
            write_record(folder, make_record(status="running"))
    assert (tmp_path / "run.json").read_text() == "mine"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_results_have_the_permissions_of_the_umask(tmp_path: Path, make_record, mask: int):
    before = os.umask(mask)
    try:
        with RunFolder(tmp_path) as folder:
            write_record(folder, make_record(status="running"))
            (folder.stage() / "part").mkdir()
            for name in ("config.json", "model.safetensors", "part/model.safetensors"):
                (folder.stage() / name).write_text("results")
                (folder.stage() / name).chmod(0o600)
            folder.staged = describe_files(folder.stage())
            folder.publish()
    finally:
        assert os.umask(before) == mask
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}


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
    assert file_names(tmp_path) == [PRIVATE_NAME], "a killed run leaves its lock file, but no lock"
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
