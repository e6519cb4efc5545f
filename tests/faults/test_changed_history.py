"""A history that another program cuts or changes during a run is restored, or the run stops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from file_faults import FileFaults

from ampft.exit_codes import EXIT_CODES, PartsFailed
from ampft.runs.history import History, read_history

pytestmark = pytest.mark.slow


def cut(path: Path) -> None:
    path.write_bytes(b"")


def cut_in_a_line(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"mine\n")


def overwrite(path: Path) -> None:
    path.write_bytes(b"mine" + path.read_bytes()[4:])


def replace(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.write_bytes(path.with_name("moved").read_bytes())


def link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


class After(FileFaults):
    """Changes the history after its first row."""

    def __init__(self, folder: Path, change) -> None:
        super().__init__(folder, fail_at=-1)
        self.change, self.rows = change, 0

    def at(self, kind, path) -> None:
        if kind == "write" and self._relative(path) == "history.jsonl":
            self.rows += 1
        elif self.rows == 1 and (self.folder / "history.jsonl").stat().st_size > 100:
            self.rows = 99
            self.change(self.folder / "history.jsonl")


def train_with(train, folder: Path, change) -> int:
    with After(folder, change) as faults:
        code = train(folder, checkpointing_steps="1")
    assert faults.rows >= 99, "nothing was changed"
    return code


@pytest.mark.parametrize("change", [cut, cut_in_a_line])
def test_steps_that_another_program_cut_off_are_written_again(train, tmp_path, capsys, change):
    folder = tmp_path / "run"
    assert train_with(train, folder, change) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the missing steps were written again" in said
    assert [row["step"] for row in read_history(folder / "history.jsonl")] == [1, 2]
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert b"\0" not in (folder / "history.jsonl").read_bytes()


@pytest.mark.parametrize("change", [append, overwrite, replace, link])
def test_a_history_that_is_not_the_runs_own_any_more_stops_it(train, tmp_path, capsys, change):
    folder, changed = tmp_path / "run", []

    def remembered(path: Path) -> None:
        change(path)
        changed.append(path.read_bytes())

    code = train_with(train, folder, remembered)
    error = capsys.readouterr().err
    # What is written over may be seen only when the report reads it, after the training.
    is_trained = change is overwrite
    assert code == (EXIT_CODES[PartsFailed] if is_trained else 2)
    if is_trained:
        assert f"{folder / 'history.jsonl'}: the history cannot be read" in error
    else:
        assert f"{folder / 'history.jsonl'}: another program changed or replaced this file" in error
    assert (folder / "history.jsonl").read_bytes().startswith(changed[0][:100])
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == ("trained" if is_trained else "interrupted")
    recorded = record["files"].get("history.jsonl")
    assert recorded is None or changed[0].count(b"\n") == 1, "only if its contents are the run's"


def test_a_run_that_does_not_look_finishes_with_missing_steps(train, tmp_path, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(History, "_restore_lost", lambda self: None)
    monkeypatch.setattr(History, "verify", lambda self: None)
    assert train_with(train, tmp_path / "run", cut) == 0
    assert [row["step"] for row in read_history(tmp_path / "run" / "history.jsonl")] == [2]
