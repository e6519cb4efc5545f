"""The files of a comparison: deterministic, atomic, and equal when read back."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from example_comparison import broken, hostile, realistic
from fuzzed_json import harm, sign, signed

from ampft.comparison.findings import Comparison
from ampft.comparison.report.report_files import read_comparison, terminal_text, write_comparison
from ampft.errors import InputError
from ampft.files import hashed_text

TESTS = Path(__file__).parents[1]
NAMES = {"comparison.json", "comparison.md", "comparison.html"}


def hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("example", [realistic, hostile, broken])
def test_a_written_comparison_is_read_back_equal(example, tmp_path):
    comparison = example()
    write_comparison(comparison, tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    assert {path.name for path in folder.iterdir()} == NAMES
    assert read_comparison(folder) == comparison
    assert read_comparison(folder / "comparison.json") == comparison
    # Rendering again gives the same bytes.
    before = hashes(folder)
    write_comparison(read_comparison(folder), folder)
    assert hashes(folder) == before


@pytest.mark.slow
def test_different_comparisons_are_not_equal(tmp_path):
    write_comparison(realistic(), tmp_path)
    assert read_comparison(tmp_path) != replace(realistic(), margin=0.0100001)


@pytest.mark.slow
def test_another_process_with_another_environment_writes_the_same_bytes(tmp_path):
    write_comparison(realistic(), tmp_path / "here")
    script = (
        "import sys; from pathlib import Path;"
        "from ampft.comparison.report.report_files import read_comparison, write_comparison;"
        "write_comparison(read_comparison(Path(sys.argv[1])), Path(sys.argv[2]))"
    )
    environment = {"PYTHONHASHSEED": "4711", "TZ": "Asia/Kathmandu", "LC_ALL": "POSIX"}
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "here", tmp_path / "there"],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert hashes(tmp_path / "there") == hashes(tmp_path / "here")


def test_a_full_disk_leaves_the_old_files(tmp_path):
    write_comparison(broken(), tmp_path)
    before = hashes(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"comparison\.json cannot be written"):
            write_comparison(realistic(), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert hashes(tmp_path) == before


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match=r"--output_dir .*cannot be written"):
        write_comparison(broken(), tmp_path / "file" / "folder")


def damaged(change):
    def text() -> str:
        values = json.loads(written(broken()))
        change(values)
        return signed(values)

    return text


def written(comparison: Comparison) -> str:
    return hashed_text(comparison)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not as it was written"),
        ("[" * 100_000, "is not as it was written"),
        ("[]", "it contains a list, not an object"),
        ('{"schema": 99}', "has schema version 99, but this version of ampft reads 6"),
        ('{"schema": 6}', "do not have the hash"),
        (damaged(lambda v: v.update(more=1)), r"comparison\.more is unknown"),
        (damaged(lambda v: v["arms"][0].update(name=3)), r"arms\[0\]\.name is int, not str"),
        (damaged(lambda v: v.update(examples=True)), r"examples is bool, not int"),
        (damaged(lambda v: v.update(seeds=7)), r"seeds is int, not a list"),
        (damaged(lambda v: v.update(setup=[])), r"setup is a list, not an object"),
        (damaged(lambda v: v.update(title=None)), r"title is null, not str"),
        (damaged(lambda v: v["arms"].clear()), "the comparison has no arms"),
        (damaged(lambda v: v.update(margin=0)), r"the margin is 0, but must be between 0 and 1"),
        (
            damaged(lambda v: v.update(margin=None)),
            r"the margin is nan, but must be between 0 and 1",
        ),
        (
            damaged(lambda v: v.update(margin=1.5)),
            r"the margin is 1\.5, but must be between 0 and 1",
        ),
    ],
)
def test_invalid_files_are_refused(text, message, tmp_path):
    path = tmp_path / "comparison.json"
    path.write_text(text() if callable(text) else text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_comparison(path)


def test_an_interval_with_three_ends_is_refused(tmp_path):
    write_comparison(realistic(), tmp_path)
    values = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    values["arms"][1]["difference"]["interval95"] = [0.0, 0.1, 0.2]
    (tmp_path / "comparison.json").write_text(signed(values), encoding="utf-8")
    with pytest.raises(InputError, match=r"interval95 has 3 entries, not 2"):
        read_comparison(tmp_path)


@pytest.mark.slow
def test_a_field_that_was_added_later_may_be_missing(tmp_path):
    """A comparison written by an earlier version with the same layout can be read."""
    write_comparison(realistic(), tmp_path)
    values = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    for arm in values["arms"][1:]:
        for name in ("p_beyond", "p_beyond_holm"):
            del arm["difference"][name]
    (tmp_path / "comparison.json").write_text(signed(values), encoding="utf-8")
    difference = read_comparison(tmp_path).arms[2].difference
    assert difference is not None
    assert (difference.p_beyond, difference.p_beyond_holm) == (None, None)


def test_a_folder_without_a_comparison(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read .* which contains comparison\.json"):
        read_comparison(tmp_path)


@pytest.mark.slow
def test_ampft_report_prints_a_comparison(tmp_path, capsys):
    from ampft.cli import main

    write_comparison(realistic(), tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("unchecked  this is what was stored.")  # its runs are not there
    assert printed.endswith(terminal_text(realistic()))


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_shows_escapes(encoding, tmp_path):
    write_comparison(hostile(), tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "ampft.cli", "report", tmp_path],
        env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u4e2d" in done.stdout


@pytest.mark.full
@pytest.mark.slow
def test_a_changed_comparison_is_refused_by_name_or_does_no_harm(tmp_path):
    write_comparison(realistic(), tmp_path)
    path = tmp_path / "comparison.json"

    def read() -> None:
        write_comparison(read_comparison(path), tmp_path / "again")
        terminal_text(read_comparison(path))

    refused, wrong = harm(
        path.read_text(),
        ["comparison.json"],
        lambda text: path.write_text(sign(text)),
        read,
        cases=40,
    )
    assert wrong == []
    assert refused > 15
