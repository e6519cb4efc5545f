"""Comparisons without the clone: `ampft train` trains each run."""

from __future__ import annotations

import json

import pytest
from planned import plan
from running import rows, write_csv

from ampft.comparison.execution.session import open_comparison
from ampft.comparison.report.report_files import next_step_line
from ampft.comparison.settings import parse_compare_arguments


@pytest.mark.full
@pytest.mark.slow
def test_a_run_is_launched_with_the_packaged_training(tiny_bert, tmp_path, monkeypatch, capsys):
    """As `accelerate launch -m ampft train` does, in a folder without the clone."""
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "train.csv", rows(60, 0), ("text", "label"))
    words = ["--train_file", "train.csv", "--model_name_or_path", str(tiny_bert), "--use_cpu"]
    command = parse_compare_arguments(["--", *words, "--max_train_steps", "2"])
    with open_comparison(command, tmp_path / "cmp", plan()) as session:
        first = session.missing()[0]
        session.train([first])
        assert first not in session.missing()
    log = (tmp_path / "cmp/logs/fp32-seed42.log").read_text()
    assert f"next       ampft predict --model {tmp_path}/cmp/runs/fp32-seed42 FILE" in log
    record = json.loads((tmp_path / "cmp/runs/fp32-seed42/run.json").read_text())
    assert record["command"][1] == "train"
    (warning,) = record["warnings"].values()
    printed = " ".join(capsys.readouterr().out.split())
    assert f"warning {warning} With this run, no arm can get a verdict. Ctrl-C stops" in printed


def test_the_last_line_of_a_comparison(tmp_path):
    line = f"next       open '{tmp_path}/my cmp/comparison.html', or ampft report"
    assert next_step_line(tmp_path / "my cmp") == f"{line} '{tmp_path}/my cmp'"
