"""A checkpoint is complete or invisible, and no failure costs the last good one."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
from file_faults import FileFaults, restore, worth_failing
from safetensors.torch import load_file

from ampft.engine.checkpoints.store import STORE_NAME, CheckpointStore, verified_history, verify
from ampft.errors import InputError
from ampft.files import hashed_text
from ampft.runs.manifest import HISTORY_NAME, RECORD_NAME

pytestmark = pytest.mark.slow

LAST = f"{STORE_NAME}/step-2"
EVERY_STEP = {"checkpointing_steps": "1", "checkpoint_total_limit": 1}
LATEST = {"resume_from_checkpoint": "latest"}


def newest(folder: Path) -> int:
    """Return the step of the newest checkpoint, after it was verified and loaded; 0 for none.

    Raises:
        InputError: A visible checkpoint is damaged.
    """
    step = 0
    for checkpoint in CheckpointStore(folder).complete():
        manifest = verify(checkpoint)
        verified_history(folder / HISTORY_NAME, manifest.history)
        for path in checkpoint.glob("*.safetensors"):
            assert load_file(path)
        assert json.loads((checkpoint / "state.json").read_text())
        step = manifest.cursor.step
    return step


def kill(train, folder: Path, **changes: object) -> tuple[FileFaults, list[tuple[str, int | str]]]:
    """Return the operations of a run, and the newest checkpoint in each state a kill can leave.

    It is a message if a checkpoint is visible and damaged.
    """
    with FileFaults(folder) as faults:
        assert train(folder, **EVERY_STEP, **changes) == 0
    found: list[tuple[str, int | str]] = []
    verified: dict[frozenset, int | str] = {}  # what is being written changes no result
    for label, tree in faults.states.items():
        visible = frozenset(item for item in tree.items() if ".tmp-" not in item[0])
        if visible not in verified:
            state = restore(dict(visible), folder.parent / "killed")
            try:
                verified[visible] = newest(state)
            except InputError as error:
                verified[visible] = str(error)
            shutil.rmtree(state)
        found.append((label, verified[visible]))
    return faults, found


def lost(found: list[tuple[str, int | str]], first: int = 0) -> list[str]:
    """Return the states with a damaged checkpoint, or with an older one than the state before."""
    problems, before = [], first
    for label, step in found:
        if isinstance(step, str) or step < before:
            problems.append(f"{label}: {step} after {before}")
        else:
            before = step
    return problems


def test_a_kill_at_any_operation_leaves_the_last_checkpoint(train, tmp_path, capsys):
    faults, found = kill(train, tmp_path / "run")
    assert lost(found) == []
    assert {step for _, step in found} == {0, 1, 2}
    inside = [o for o in faults.operations if o.path.startswith(STORE_NAME)]
    assert len(inside) > 60
    with capsys.disabled():
        print(f"\ncheckpoints: {len(inside)} operations of {len(faults.operations)}, "
              f"{len(found)} states of a kill")  # fmt: skip


def test_a_kill_while_a_run_continues_leaves_the_checkpoint_it_continued_from(
    train, tmp_path, capsys
):
    folder = tmp_path / "run"
    assert train(folder, **EVERY_STEP) == 0
    record = json.loads((folder / RECORD_NAME).read_text())
    for name in record["files"]:
        if name != HISTORY_NAME:
            (folder / name).unlink()
    with FileFaults(tmp_path / "unused"):  # a run that was killed after its last checkpoint
        values = {k: v for k, v in record.items() if k != "sha256"}
        values |= {"status": "running", "files": {}}
        (folder / RECORD_NAME).write_text(hashed_text(values))
    faults, found = kill(train, folder, **LATEST)
    assert lost(found, first=2) == []
    assert len(found) > 30
    with capsys.disabled():
        print(f"\nresume: {len(faults.operations)} operations, {len(found)} states of a kill")


def test_an_operation_on_a_checkpoint_that_fails_costs_no_earlier_checkpoint(
    train, tmp_path, capsys
):
    clean, _ = kill(train, tmp_path / "run")
    capsys.readouterr()
    wrong, failed = {}, 0
    last_step = next(i for i, o in enumerate(clean.operations) if o.path.startswith(LAST))
    synced = [o.kind == "fsync" and o.path == STORE_NAME for o in clean.operations]
    for index, operation in worth_failing(clean.operations):
        if not operation.path.startswith(STORE_NAME):
            continue
        safe = sum(synced[: index + 1])  # from there on, that many checkpoints are on the disk
        folder = tmp_path / str(index)
        with FileFaults(folder, fail_at=index, code=errno.EIO if index % 2 else errno.ENOSPC):
            exit_code = train(folder, **EVERY_STEP)
        error = capsys.readouterr().err
        status = json.loads((folder / RECORD_NAME).read_text())["status"]
        problems = lost([(str(operation), newest(folder))], first=max(0, safe - 1))
        # A link that fails becomes a copy. After the last step, a checkpoint that fails must not
        # cost the training.
        if exit_code == 0 and (operation.kind == "link" or index >= last_step):
            assert status == "finished"
        elif exit_code != 2 or str(folder) not in error or "Traceback" in error:
            problems.append(f"exit code {exit_code}: {error}")
        elif status == "finished":
            problems.append("the record says finished")
        if problems:
            wrong[f"{index}: {operation}"] = problems
        failed += 1
        shutil.rmtree(folder)
    assert wrong == {}
    assert failed >= 45
    with capsys.disabled():
        print(f"\ncheckpoints: {failed} operations that fail")


@pytest.mark.full
def test_checkpoints_written_in_place_are_visible_before_they_are_complete(
    train, tmp_path, monkeypatch
):
    """Negative control."""

    def begin(self: CheckpointStore, step: int) -> Path:
        folder = self.path / f"step-{step}"
        folder.mkdir(parents=True)
        return folder

    monkeypatch.setattr(CheckpointStore, "begin", begin)
    monkeypatch.setattr(CheckpointStore, "publish", lambda self, _: self.prune())
    assert any("MANIFEST.json: the file is missing" in text for text in lost_in(train, tmp_path))


def test_checkpoints_removed_before_the_next_is_safe_are_lost(train, tmp_path, monkeypatch):
    """Negative control."""
    begin = CheckpointStore.begin

    def remove_first(self: CheckpointStore, step: int) -> Path | None:
        self.remove_after(0)
        return begin(self, step)

    monkeypatch.setattr(CheckpointStore, "begin", remove_first)
    assert any(": 0 after 1" in text for text in lost_in(train, tmp_path))


def lost_in(train, tmp_path: Path) -> list[str]:
    _, found = kill(train, tmp_path / "run")
    return lost(found)
