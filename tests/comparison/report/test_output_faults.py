"""The other files that commands write are old or new, never half, and an error names them."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from example_comparison import realistic
from file_faults import FileFaults, restore

import ampft.files
from ampft.comparison.execution.plan import PLAN_NAME
from ampft.comparison.report import html
from ampft.comparison.report.report_files import read_comparison, write_comparison
from ampft.exit_codes import run_main
from ampft.files import hashed_text, special_or_atomic_path
from ampft.ownership import PRIVATE_NAME
from ampft.runs.folder import RunFolder

OLD = '{"schema": 0}\n'  # proves that this program wrote it
TEXT = "new\n" * 50


def write_report(folder: Path) -> None:
    """Write the files of a comparison, as `ampft compare` does, over older ones."""
    write_comparison(realistic(), folder)


def write_plan(folder: Path) -> None:
    """Write the plan of a comparison that continues."""
    with RunFolder(folder, keep_files=True) as comparison:
        comparison.adopt(PLAN_NAME)
        comparison.write_text(PLAN_NAME, hashed_text({"text": TEXT}))


def write_output(folder: Path) -> None:
    """Write a file that the user named, as `ampft predict` and `ampft yardstick` do."""
    with special_or_atomic_path(folder / "predictions.csv") as path:
        path.write_text(TEXT, encoding="utf-8")


WRITERS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "comparison": (write_report, ("comparison.json", "comparison.md", "comparison.html")),
    "plan": (write_plan, (PLAN_NAME,)),
    "output file": (write_output, ("predictions.csv",)),
}


@pytest.fixture(autouse=True)
def quick_html(monkeypatch):
    monkeypatch.setattr(html, "html_text", lambda _: TEXT)


def old_folder(folder: Path, names: tuple[str, ...]) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(OLD)
    return folder


def half_written(writer: str, tmp_path: Path) -> tuple[int, int, list[str]]:
    """Return the operations of a writer, the states of a kill, and the files cut in one of them."""
    write, names = WRITERS[writer]
    with FileFaults(old_folder(tmp_path / "new", names)) as faults:
        write(tmp_path / "new")
    new = {name: (tmp_path / "new" / name).read_bytes() for name in names}
    cut = []
    for index, (label, tree) in enumerate(faults.states.items()):
        folder = restore(tree, tmp_path / str(index))
        for name in names:
            content = (folder / name).read_bytes() if (folder / name).exists() else None
            if content not in (OLD.encode(), new[name]):
                cut.append(f"{label}: {name}")
    return len(faults.operations), len(faults.states), cut


@pytest.mark.parametrize("writer", WRITERS)
def test_a_killed_writer_leaves_each_file_old_or_new(writer, tmp_path, capsys):
    operations, states, cut = half_written(writer, tmp_path)
    assert cut == []
    assert min(operations, states) >= 4
    with capsys.disabled():
        print(f"\n{writer}: {operations} operations, {states} states of a kill")


@pytest.mark.parametrize("writer", WRITERS)
def test_files_written_in_place_are_cut(writer, tmp_path, monkeypatch):
    """Negative control."""

    def in_place(path):
        class Here:
            def __enter__(self):
                return path

            def __exit__(self, *_):
                pass

        return Here()

    monkeypatch.setattr(ampft.files, "atomic_path", in_place)
    monkeypatch.setattr(RunFolder, "replacing", lambda folder, name: in_place(folder / name))
    assert half_written(writer, tmp_path)[2]


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_an_operation_that_fails_is_an_error_that_names_a_path(writer, tmp_path, capsys):
    write, names = WRITERS[writer]
    with FileFaults(old_folder(tmp_path / "new", names)) as faults:
        write(tmp_path / "new")
    failures = 0
    for index in range(len(faults.operations)):
        folder = old_folder(tmp_path / str(index), names)
        code = errno.EIO if index % 2 else errno.ENOSPC
        with FileFaults(folder, fail_at=index, code=code):
            exit_code = run_main(lambda: write(folder))  # noqa: B023
        error = capsys.readouterr().err
        if exit_code == 0:  # everything is written, and only what is private was not removed
            assert faults.operations[index].kind in ("unlink", "rename", "rmdir")
            assert faults.operations[index].path.startswith(PRIVATE_NAME)
            continue
        assert exit_code == 2, faults.operations[index]
        assert str(folder) in error
        left = {path.name for path in folder.iterdir() if not path.name.startswith(PRIVATE_NAME)}
        assert left <= {*names}
        failures += 1
    assert failures >= 4


def test_the_report_that_is_written_can_be_read(tmp_path):
    write_report(tmp_path / "new")
    assert read_comparison(tmp_path / "new").arms
    assert json.loads((tmp_path / "new" / "comparison.json").read_text())["schema"]
