"""A run folder is never wrongly finished and never mixed, wherever a run fails or is killed."""

from __future__ import annotations

import contextlib
import errno
import json
from pathlib import Path

import pytest
from file_faults import FileFaults, Tree, restore, worth_failing
from fuzzed_json import signed

from ampft.errors import InputError
from ampft.ownership import PRIVATE_NAME
from ampft.runs.folder import RunFolder
from ampft.runs.manifest import RECORD_NAME, check_files
from ampft.runs.predict import _run_record
from ampft.runs.record import read_record
from ampft.runs.run_text import format_run

pytestmark = pytest.mark.slow

USER_FILE = "thesis.tex"


def problems(folder: Path) -> list[str]:
    """Return what is wrong with a folder in which a run has ended somehow."""
    found = []
    (folder / USER_FILE).write_text("mine")
    if (folder / RECORD_NAME).exists():
        try:
            record = read_record(folder)
            format_run(folder)
            if record.status == "finished":
                check_files(folder, record.files, record.files)
                assert len(record.files) > 8
                _run_record(folder)
        except (InputError, AssertionError) as error:
            found.append(f"unreadable, or finished without all files: {error}")
    try:
        with RunFolder(folder, overwrite=True):
            left = {path.name for path in folder.iterdir()} - {PRIVATE_NAME, USER_FILE}
        found += [f"not recognised as a leftover: {name}" for name in sorted(left)]
    except InputError as error:
        found.append(f"not recognised as a leftover: {error}")
    if not (folder / USER_FILE).exists():
        found.append("a file of the user was removed")
    return found


def killed(train, tmp_path: Path) -> tuple[FileFaults, dict[str, list[str]]]:
    """Return the operations of a run, and the problems of each state that a kill can leave."""
    with FileFaults(tmp_path / "run") as faults:
        assert train(tmp_path / "run") == 0
    states = {
        label: problems(restore(tree, tmp_path / "killed" / str(index)))
        for index, (label, tree) in enumerate(faults.states.items())
    }
    return faults, states


def test_a_run_killed_at_any_operation_leaves_a_folder_that_can_be_trusted(train, tmp_path, capsys):
    faults, states = killed(train, tmp_path)
    assert {label: found for label, found in states.items() if found} == {}
    assert len(faults.operations) > 60
    assert len(states) > 50
    assert faults.kinds == {"open", "write", "fsync", "rename", "unlink", "mkdir", "rmdir",
                            "chmod", "link", "native"}  # fmt: skip
    with capsys.disabled():
        print(f"\nrun folder: {len(faults.operations)} operations, {len(states)} states of a kill")


def test_every_file_of_a_run_passes_the_harness(train, tmp_path):
    with FileFaults(tmp_path / "run") as faults:
        assert train(tmp_path / "run") == 0
    changed = {operation.path for operation in faults.operations}
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert len(names) > 10
    assert names <= changed


@pytest.mark.full
def test_any_operation_that_fails_ends_the_run_with_an_error_that_names_the_folder(
    train, tmp_path, capsys
):
    """The disk is full from each second operation on, and broken for one in between."""
    with FileFaults(tmp_path / "run") as faults:
        assert train(tmp_path / "run") == 0
    capsys.readouterr()
    wrong, failed = {}, 0
    for index, operation in worth_failing(faults.operations):
        folder = tmp_path / str(index)
        code = errno.EIO if index % 2 else errno.ENOSPC
        with FileFaults(folder, fail_at=index, code=code):
            exit_code = train(folder)
        error = capsys.readouterr().err
        status = None
        if (folder / RECORD_NAME).exists():
            status = json.loads((folder / RECORD_NAME).read_text())["status"]
        found = problems(folder) if folder.exists() else []
        if exit_code == 0 and status != "finished":
            found.append(f"exit code {exit_code}, but the record says {status}")
        # 7 after the training, whose model is then saved.
        if exit_code and (
            exit_code not in (2, 7) or str(folder) not in error or "Traceback" in error
        ):
            found.append(f"exit code {exit_code}, error: {error}")
        failed += exit_code != 0
        if found:
            wrong[f"{index}: {operation}"] = found
    assert wrong == {}
    assert failed > 60
    with capsys.disabled():
        print(f"\nrun folder: {failed} operations that fail")


def kill_problems(train, tmp_path) -> set[str]:
    _, states = killed(train, tmp_path)
    return {problem for found in states.values() for problem in found}


def test_without_temporary_names_a_killed_run_leaves_unreadable_files(train, tmp_path, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(
        RunFolder,
        "replacing",
        contextlib.contextmanager(lambda self, name: iter([self.path / name])),
    )
    assert any("unreadable" in problem for problem in kill_problems(train, tmp_path))


def test_a_record_written_before_the_results_is_wrongly_finished(train, tmp_path, monkeypatch):
    """Negative control."""
    publish = RunFolder.publish

    def finish_first(self: RunFolder) -> None:
        record = json.loads((self / RECORD_NAME).read_text())
        self.write_text(RECORD_NAME, signed({**record, "status": "finished"}))
        publish(self)

    monkeypatch.setattr(RunFolder, "publish", finish_first)
    assert any(
        "finished without all files" in problem for problem in kill_problems(train, tmp_path)
    )


def test_a_harness_that_sees_nothing_has_no_operations(tmp_path):
    """Negative control."""
    with FileFaults(tmp_path / "elsewhere") as faults:
        (tmp_path / "file").write_text("text")
    assert faults.operations == []
    tree: Tree = faults.states["end"]
    assert tree == {}
