"""Nothing of the user's is removed, replaced or written through, whatever its name, at any time.

Every name that a run uses is taken by a file, a folder, a link to a file and a link to a folder:
before the run, and while it is going on.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from file_faults import FileFaults

from ampft import ownership
from ampft.engine.checkpoints.store import CONTENT_NAMES, MANIFEST_NAME, STORE_NAME, CheckpointStore
from ampft.errors import InputError
from ampft.runs import folder as run_folder
from ampft.runs import manifest
from ampft.runs.manifest import MODEL_FILES, NONFINITE_NAME, PICTURES_NAME, RESULT_FILES

pytestmark = pytest.mark.slow

FLAGS = {"checkpointing_steps": "1", "checkpoint_total_limit": 1}
STOPPED = "nothing disturbs the run before its first step"
KINDS = ("file", "folder", "link to a file", "link to a folder")
RANDOM = re.compile("[0-9a-f]{16,}")  # a name that nobody can take beforehand
EARLIER = ("checkpoints/step-100/state.json", ".results/thesis.txt", ".best.safetensors", ".lock",
           ".model.safetensors.tmp-123", ".README.md.tmp-1/x")  # fmt: skip


@dataclass
class Planted:
    """A file, folder or link of the user under a name that the run uses."""

    path: Path
    elsewhere: Path

    def plant(self, kind: str) -> None:
        path, inside = self.path, self.elsewhere / "folder"
        inside.mkdir(parents=True)
        (inside / "model.safetensors").write_text("mine, elsewhere")
        (self.elsewhere / "file").write_text("mine, elsewhere")
        if os.path.lexists(path):
            path.rename(self.elsewhere / "what the run had there")
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_text("mine")
        elif kind == "folder":
            path.mkdir()
            (path / "thesis.txt").write_text("mine")
        else:
            path.symlink_to(inside if kind == "link to a folder" else self.elsewhere / "file")
        self.elsewhere_before = self._tree(self.elsewhere)
        self.before = self._here(path)

    def problem(self, folder: Path) -> str | None:
        """Return what happened to it; what is in a checkpoint may be moved into a hidden one."""
        if self._tree(self.elsewhere) != self.elsewhere_before:
            return "written through a link"
        path = self.path
        place = path.relative_to(folder).parts
        if not os.path.lexists(path) and place[0] == STORE_NAME and len(place) > 2:
            hidden = list((folder / STORE_NAME).glob(f"{place[1]}.tmp-*/{'/'.join(place[2:])}"))
            path = hidden[0] if hidden else path
        return None if self._here(path) == self.before else "removed or changed"

    def _here(self, path: Path) -> object:
        if path.is_symlink():
            return str(path.readlink())
        return path.read_text() if path.is_file() else self._tree(path)

    def _tree(self, folder: Path) -> dict[str, bytes]:
        files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


class Moment(FileFaults):
    """Calls a function immediately before an operation on the files of a run."""

    def __init__(self, folder: Path, index: int, act: Callable[[], None]) -> None:
        super().__init__(folder, fail_at=-1)
        self._index, self._act, self._count = index, act, 0

    def at(self, kind: str, path: str | os.PathLike[str]) -> None:
        if self._relative(path) is not None:
            self._count += 1
            if self._count == self._index:
                self._act()


@pytest.fixture(scope="module")
def operations(train, tmp_path_factory) -> list[str]:
    """The paths that a run changes, in their order."""
    folder = tmp_path_factory.mktemp("clean") / "run"
    with FileFaults(folder) as faults:
        assert train(folder, **FLAGS) == 0
    return [operation.path for operation in faults.operations]


@pytest.fixture(scope="module")
def names(operations) -> list[str]:
    """Every name that a run uses, from its constants and from what it did."""
    contents = [f"{STORE_NAME}/step-1/{name}" for name in (*CONTENT_NAMES, MANIFEST_NAME)]
    modules = [vars(module).items() for module in (manifest, run_folder, ownership)]
    constants = (
        *RESULT_FILES, *(name.replace("*", "") for name in MODEL_FILES), PICTURES_NAME,
        *(f"{NONFINITE_NAME}/step-1/{name}" for name in CONTENT_NAMES), NONFINITE_NAME,
        *(f"{STORE_NAME}/step-{step}" for step in (1, 2, 100)), STORE_NAME, *contents,
        *(value for items in modules for key, value in items if key.endswith("_NAME")), *EARLIER,
    )  # fmt: skip
    used = (path for path in operations if not RANDOM.search(path))
    found = sorted({*constants, *used} - {"."})
    assert len(found) > 45
    return found


def problems_before(train, names, tmp_path: Path, capsys) -> Iterator[str]:
    """Yield what a run does wrong that starts in a folder in which a name is taken."""
    for index, name in enumerate(names):
        for kind in KINDS:
            for overwrite in (False, True):
                folder = tmp_path / f"{index}-{kind}-{overwrite}"
                mine = Planted(folder / name, tmp_path / "elsewhere")
                mine.plant(kind)
                # What does not disturb a run is proven by the runs in the other test.
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("ampft.runs.train.new_state", stop)
                    code = train(folder, overwrite_output_dir=overwrite, **FLAGS)
                problem = mine.problem(folder)
                error = capsys.readouterr().err
                if code != 2 or not (str(folder) in error or STOPPED in error):
                    problem = problem or f"exit code {code}: {error}"
                if problem:
                    yield f"{kind} {name}, overwriting {overwrite}: {problem}"
                shutil.rmtree(tmp_path / "elsewhere")


def stop(*_: object) -> None:
    raise InputError(STOPPED)


def problems_during(train, names, operations, tmp_path: Path, capsys, kinds) -> Iterator[str]:
    """Yield what a run does wrong if a name is taken while it is going on."""
    first = next(i for i, path in enumerate(operations) if path == "history.jsonl")
    moments = [first + 2, (first + len(operations)) // 2, len(operations) - 12]
    for index, name in enumerate(names):
        for number, kind in enumerate(kinds(index)):
            folder = tmp_path / f"{index}-{kind}"
            mine = Planted(folder / name, tmp_path / "elsewhere")

            def plant(mine=mine, kind=kind) -> None:
                if not any(parent.is_file() for parent in mine.path.parents):
                    mine.plant(kind)

            moment = moments[(index + number) % 3]
            try:
                with Moment(folder, moment, plant):
                    code = train(folder, **FLAGS)
                # 7: the training has ended, and a file of what follows could not be written.
                failure = None if code in (0, 2, 7) else f"exit code {code}"
            except OSError as error:
                failure = f"traceback: {error!r}"
            capsys.readouterr()
            problem = mine.problem(folder) or failure
            if problem:
                yield f"{kind} {name} at operation {moment}: {problem}"
            shutil.rmtree(tmp_path / "elsewhere")
            shutil.rmtree(folder)


@pytest.mark.full
def test_what_is_there_before_a_run_remains(train, names, tmp_path, capsys):
    assert list(problems_before(train, names, tmp_path, capsys)) == []


def test_what_appears_during_a_run_remains(train, names, operations, tmp_path, capsys):
    """Each name once, by one of the four kinds, at one of three moments."""
    found = problems_during(
        train, names, operations, tmp_path, capsys, lambda index: [KINDS[index % 4]]
    )
    assert list(found) == []


def test_a_run_that_trusts_names_is_found_out(train, names, operations, tmp_path, capsys):
    """Negative control."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "_is_own", lambda *_: True)
        patch.setattr("ampft.engine.checkpoints.store._own_files", lambda folder: folder.iterdir())
        patch.setattr("ampft.runs.folder.file_identity", lambda path: None)
        found = list(problems_before(train, [f"{STORE_NAME}/step-100"], tmp_path / "a", capsys))
        taken = [name for name in names if name in ("run.json", f"{STORE_NAME}/step-1/state.json")]
        found += problems_during(train, taken, operations, tmp_path / "b", capsys, lambda _: KINDS)
    assert any("step-1" in text for text in found)
    assert any("run.json" in text for text in found)
