"""`ampft compare`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import SEEDS, predicted, write_run, write_runs
from running import call_here

from ampft import cli
from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.report.report_files import read_comparison

REPOSITORY = Path(__file__).parents[2]
FEW = SEEDS[:3]
WRONG = {
    "fp32": [range(5)] * 3,
    "placebo": [range(1, 6)] * 3,
    "bf16": [range(6), range(5), range(4)],
    "fp16": [range(2, 7)] * 3,
}
FILES = ("comparison.html", "comparison.json", "comparison.md")


def command(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.slow
def test_the_table_is_printed_and_nothing_is_written(tmp_path, capsys):
    runs = write_runs(tmp_path, WRONG, seeds=FEW, losses=[1.0, 0.5])
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["compare", *map(str, runs)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for words in ("fp32", "placebo", "bf16", "fp16", "! screening: 3 seeds", "undecided"):
        assert words in printed.out
    assert printed.out.endswith("comparison.html, comparison.md and comparison.json.\n")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_the_comparison_is_written(tmp_path, capsys):
    runs = write_runs(tmp_path / "runs", WRONG, seeds=FEW, losses=[1.0, 0.5])
    words = ["--margin", "2", "--metric", "macro_f1", "--output_dir", str(tmp_path / "out")]
    assert cli.main(["compare", str(tmp_path), *words]) == 0
    assert f"wrote {tmp_path / 'out'}" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == list(FILES)
    written_comparison = read_comparison(tmp_path / "out" / "comparison.json")
    assert written_comparison == compare_folders(runs, metric="macro_f1", margin=0.02)
    assert (written_comparison.metric, written_comparison.margin) == ("macro_f1", 0.02)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metric", "f1"], "error: --metric f1: the runs have the metrics accuracy, macro_f1"),
        (
            ["--metric", "roc_auc"],
            "error: --metric roc_auc: the runs have the metrics accuracy, macro_f1, weighted_f1, "
            "balanced_accuracy, matthews, cohen_kappa, log_loss, brier. It depends on pairs of "
            "examples, not on sums over examples, so it has no interval. The report of each run "
            "has it.",
        ),
        (["--metric", "own.py"], "error: --metric own.py: the runs have the metrics accuracy"),
        (["--margin", "0"], "error: --margin: received 0.0; it must be above 0 and below 100"),
        (["--margin", "one"], "error: --margin: received 'one'; it must be a number"),
        (["--baseline", "tf32"], "error: --baseline tf32: there are only runs of fp32, bf16"),
        (
            ["--baseline", "fp32", "--overwrite_output_dir"],
            "error: --overwrite_output_dir is a setting of ampft train, and has no effect with RUN",
        ),
        (["--by", "seed", "--learning_rate", "1"], "error: --learning_rate is a setting of ampft"),
        (["--margn", "1"], "error: unknown flag --margn. Did you mean '--margin'?"),
    ],
)
def test_invalid_arguments_print_one_message(tmp_path, capsys, words, message):
    runs = [str(write_run(tmp_path, arm, 42, predicted())) for arm in ("fp32", "bf16")]
    folder = tmp_path / "out"
    assert cli.main(["compare", *runs, "--output_dir", str(folder), *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(message)
    assert printed.err.count("\n") == 1
    assert not folder.exists()


@pytest.mark.full
@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(tmp_path):
    """In another process too, with another seed of hashes and another time zone."""
    runs = write_runs(tmp_path, WRONG, seeds=FEW, losses=[1.0, 0.5])
    here, there = tmp_path / "here", tmp_path / "there"
    assert cli.main(["compare", *map(str, runs), "--output_dir", str(here)]) == 0
    words = ("compare", *runs[::-1], "--output_dir", there)
    done = command("-m", "ampft.cli", *words, PYTHONHASHSEED="2", TZ="UTC2")
    assert (done.returncode, done.stderr) == (0, "")
    for file in FILES:
        assert (here / file).read_bytes() == (there / file).read_bytes()


@pytest.mark.slow
def test_real_runs_are_compared(tmp_path, capsys):
    for mode in ("fp32", "bf16"):
        done = call_here(
            "recipes/classify.py", "--dataset_name=digits", f"--mixed_precision={mode}",
            "--max_train_steps=8", "--evaluate_fp32", "--use_cpu", "--cpu_threads=1",
            *(f"--max_{split}_samples=64" for split in ("train", "eval", "predict")),
            f"--output_dir={tmp_path / mode}",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert cli.main(["compare", str(tmp_path / "fp32"), str(tmp_path / "bf16")]) == 0
    printed = capsys.readouterr().out
    assert "! one model per arm: intervals and verdicts hold for these models" in printed
    assert "not like for like" not in printed
    comparison = compare_folders([tmp_path / "fp32", tmp_path / "bf16"])
    arm = comparison.arm("bf16")
    report = json.loads((tmp_path / "bf16" / "report.json").read_text(encoding="utf-8"))
    assert arm.metrics["accuracy"].mean == report["accuracy"]
    assert arm.metrics["expected_calibration_error"].mean == report["expected_calibration_error"]
    assert arm.confusion == tuple(map(tuple, report["confusion_matrix"]))
    assert arm.metrics_fp32 != {}
    assert arm.memory is not None
    assert arm.memory.weights is not None
    assert len(arm.curves[0].steps) == 8
    assert arm.curves[0].validation_steps
