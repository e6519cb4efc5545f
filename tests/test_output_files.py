"""Outputs replace what this program wrote, and nothing else."""

import contextlib
import hashlib
import re

import pytest

from ampft.errors import InputError
from ampft.files import special_or_atomic_path
from ampft.ownership import check_output_file, check_page_file, check_replaceable
from ampft.runs.folder import RunFolder, check_creatable, check_output_folder

PAGE = '<!DOCTYPE html>\n<meta charset="utf-8">\n<meta name="generator" content="ampft">\n'
RESULTS = ["doctor.json", "doctor.html"]


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("record", ["run.json", "plan.json", "comparison.json"])
@pytest.mark.parametrize(
    "name", ["run.json", "model.safetensors", "report.json", "checkpoints/step-4/state.json"]
)
def test_a_result_is_no_output_file(tmp_path, record, name):
    for each in (record, name):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text("{}")
    with pytest.raises(InputError, match=r"--output_file .*holds the results of a run"):
        check_output_file("--output_file", tmp_path / name)


@pytest.mark.parametrize("target", ["file", "folder", "nothing"])
@pytest.mark.parametrize(
    "write",
    [
        lambda link: check_output_file("--page", link),
        lambda link: check_page_file("--page", link),
        lambda link: check_replaceable("--page", link, ["a.json"]),
        lambda link: check_output_folder(link),
        lambda link: check_creatable(link),
        lambda link: RunFolder(link),
        lambda link: special_or_atomic_path(link).__enter__(),
    ],
)
def test_nothing_is_written_through_a_link(tmp_path, write, target):
    (tmp_path / "file").write_text(PAGE)
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(InputError, match=rf"link: this is a symbolic link to .*/{target}, and no"):
        write(link)
    assert (tmp_path / "file").read_text() == PAGE
    assert not [*(tmp_path / "folder").iterdir()]
    assert link.is_symlink()


def test_an_output_below_a_linked_folder_and_a_linked_device_are_written(tmp_path):
    """The negative control."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    with special_or_atomic_path(tmp_path / "link" / "a.csv") as path:
        path.write_text("x")
    assert (tmp_path / "disk/a.csv").read_text() == "x"
    RunFolder(tmp_path / "link" / "run").close()
    (tmp_path / "nowhere").symlink_to("/dev/null")
    with special_or_atomic_path(tmp_path / "nowhere") as path:
        path.write_text("x")
    assert (tmp_path / "nowhere").is_symlink()


def test_other_files_are_output_files(tmp_path):
    """The negative control: new files, pages of this program, and files outside such folders."""
    (tmp_path / "old.csv").write_text("x")
    check_output_file("--output_file", tmp_path / "old.csv")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "errors.html").write_text(PAGE)
    for name in ("new.csv", "errors.html"):
        check_output_file("--output_file", tmp_path / name)
    with pytest.raises(InputError, match=r"old\.csv: this file exists in"):
        check_output_file("--output_file", tmp_path / "old.csv")
    with pytest.raises(InputError, match="this is a folder"):
        check_output_file("--output_file", tmp_path)
    with pytest.raises(InputError, match="its folder does not exist"):
        check_output_file("--output_file", tmp_path / "absent" / "a.csv")


def test_a_page_replaces_only_a_page(tmp_path):
    for name, content in (("page.html", PAGE), ("empty.html", ""), ("mine.csv", "id,label\n")):
        (tmp_path / name).write_text(content)
    for name in ("new.html", "page.html", "empty.html"):
        check_page_file("--page", tmp_path / name)
    with pytest.raises(InputError, match=r"--page .*mine\.csv: this file exists and is not a page"):
        check_page_file("--page", tmp_path / "mine.csv")


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ({}, None),
        ({"doctor.json": '{"schema": 1}', "doctor.html": "<p>of an earlier version"}, None),
        ({"doctor.html": PAGE}, None),
        ({"doctor.html": "<p>mine"}, "doctor.html"),
        ({"doctor.json": '{"mine": 1}', "doctor.html": PAGE}, "doctor.json"),
        ({"doctor.json": "thesis"}, "doctor.json"),
        ({"notes.txt": "mine"}, None),
    ],
)
def test_results_replace_only_results(tmp_path, files, refused):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    message = f"{refused} exists there and was not written by this program"
    expected = pytest.raises(InputError, match=re.escape(message))
    with expected if refused else contextlib.nullcontext():
        check_replaceable("--output_dir", tmp_path, RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_a_link_is_somebody_elses(tmp_path, name):
    mine = tmp_path / "mine"
    mine.write_text(PAGE if name.endswith("html") else '{"schema": 1}')
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / name).symlink_to(mine)
    with pytest.raises(InputError, match=f"{name} exists there"):
        check_replaceable("--output_dir", folder, RESULTS)


@pytest.mark.parametrize("name", ["comparison.json", "comparison.md", "comparison.html"])
def test_compare_refuses_a_folder_with_a_file_of_the_user(tmp_path, name, capsys):
    from ampft.cli import main

    (tmp_path / name).write_text("thesis")
    before = digests(tmp_path)
    words = ["compare", "--predictions", "a=a.csv", "b=b.csv", "--output_dir", str(tmp_path)]
    assert main(words) == 2
    assert f"{name} exists there and was not written by this program" in capsys.readouterr().err
    assert digests(tmp_path) == before
