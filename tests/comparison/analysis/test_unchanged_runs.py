"""`ampft report` of a comparison says whether its runs are still what was compared."""

from __future__ import annotations

import json
import shutil

import pytest
from run_folders import SEEDS, write_runs

from ampft import cli
from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.analysis.unchanged_runs import runs_check_line
from ampft.comparison.report.report_files import read_comparison, write_comparison
from ampft.files import describe_file, hashed_text

WRONG = {"fp32": [range(5)] * 3, "bf16": [range(6), range(5), range(4)]}


@pytest.fixture
def folder(tmp_path):
    """The folder of a comparison of runs whose records list their files."""
    runs = write_runs(tmp_path / "runs", WRONG, seeds=SEEDS[:3], losses=[1.0, 0.5])
    for run in runs:
        values = json.loads((run / "run.json").read_text())
        del values["sha256"]
        names = ("predictions.parquet", "history.jsonl")
        values["files"] = {name: vars(describe_file(run / name)) for name in names}
        (run / "run.json").write_text(hashed_text(values))
    write_comparison(compare_folders(runs), tmp_path)
    return tmp_path


def checked(folder) -> str:
    return " ".join(runs_check_line(folder, read_comparison(folder)).split())


def test_unchanged_runs_are_said_to_be(folder, capsys):
    expected = "checked 6 runs: records, histories and predictions unchanged"
    assert checked(folder) == expected
    (folder / "runs/notes.txt").write_text("mine")  # the negative control
    assert cli.main(["report", str(folder)]) == 0
    assert " ".join(capsys.readouterr().out.splitlines()[0].split()) == expected


def rehashed(run):
    values = json.loads((run / "run.json").read_text())
    del values["sha256"]
    values["metrics"]["accuracy"] = 0.99
    (run / "run.json").write_text(hashed_text(values))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rehashed, "run.json was changed"),
        (lambda run: (run / "run.json").unlink(), "run.json is gone"),
        (shutil.rmtree, "run.json is gone"),
        (
            lambda run: (run / "predictions.parquet").write_bytes(b"x"),
            "predictions.parquet was changed after the run",
        ),
        (lambda run: (run / "history.jsonl").unlink(), "history.jsonl is missing"),
        (
            lambda run: (run / "predictions_fp32.parquet").write_bytes(b"x"),
            "predictions_fp32.parquet was added after the run",
        ),
    ],
)
def test_a_changed_run_is_named_before_the_verdict(folder, change, said):
    run = sorted((folder / "runs").iterdir())[0]
    change(run)
    text = checked(folder)
    assert text.startswith("warning what follows was stored, and no longer fits the runs: ")
    assert f"{run.name} ({said})" in text


def test_runs_elsewhere_are_not_said_to_be_checked(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("out")
    write_comparison(read_comparison(folder), other)
    text = checked(other)
    assert text.startswith("unchecked this is what was stored. The runs, which are not in its ")
