"""`ampft resume-check` proves an exact resume, and finds one that is not exact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fuzzed_json import sign
from running import write_csv

from ampft.cli import main
from ampft.files import hashed_text
from ampft.lab.resume_check import INTERRUPTED, STRAIGHT, differences


@pytest.fixture
def run(tmp_path) -> Path:
    """The files of a run that are compared."""
    folder = tmp_path / STRAIGHT
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "raw_weights.safetensors").write_bytes(b"weights of training")
    (folder / "config.json").write_text('{"label_thresholds": [0.25, 0.5]}')
    (folder / "predictions.parquet").write_bytes(b"predictions")
    (folder / "report.json").write_text("{}")
    history = [{"step": step, "loss": 1 / step, "seconds": 0.5} for step in (1, 2, 3)]
    (folder / "history.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in history))
    (folder / "run.json").write_text(hashed_text({"status": "finished", "started": "now"}))
    return folder


def copy(run: Path) -> Path:
    return shutil.copytree(run, run.with_name(INTERRUPTED))


def test_times_may_differ(run):
    other = copy(run)
    text = (other / "history.jsonl").read_text()
    (other / "history.jsonl").write_text(text.replace('"seconds": 0.5', '"seconds": 0.7'))
    (other / "run.json").write_text(hashed_text({"status": "finished", "started": "later"}))
    assert list(differences(run, other)) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("model.safetensors", "weights", "weighty", "model.safetensors has other contents"),
        ("predictions.parquet", "p", "q", "predictions.parquet has other contents"),
        ("raw_weights.safetensors", "training", "drawings",
         "raw_weights.safetensors has other contents"),
        ("config.json", "0.25", "0.26", "config.json has other contents"),
        ("history.jsonl", '"loss": 0.5', '"loss": 0.6',
         "history.jsonl: from step 2, first loss: 0.6 instead of 0.5"),
        ("history.jsonl", '{"step": 1, "loss": 1.0, "seconds": 0.5}\n', "",
         "history.jsonl has 2 steps instead of 3"),
        ("run.json", "finished", "running",
         "run.json: status is 'running' instead of 'finished'"),
    ],
)  # fmt: skip
def test_a_difference_is_named(run, name, old, new, message):
    other = copy(run)
    text = (other / name).read_text()
    assert old in text
    text = text.replace(old, new)
    (other / name).write_text(sign(text) if name == "run.json" else text)
    assert message in list(differences(run, other))


def test_a_warning_that_differs_is_shown(run):
    other = copy(run)
    for folder, text in ((run, "a client failed"), (other, "a client was slow")):
        record = {"status": "finished", "warnings": {"served_back": text}}
        (folder / "run.json").write_text(hashed_text(record))
    assert list(differences(run, other)) == [
        "run.json: warnings.served_back is 'a client was slow' instead of 'a client failed'"
    ]


def test_a_missing_file_is_named(run):
    other = copy(run)
    (other / "predictions.parquet").unlink()
    assert list(differences(run, other)) == ["predictions.parquet exists only in straight"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the training is missing. Give it after ` -- `"),
        (["--", "nowhere.py"], "nowhere.py: this file does not exist"),
        (["--", "--output_dir=x"], "Write: ampft resume-check --output_dir=x --"),
        (["--interruptions", "0", "--", "--seed", "1"], "it must be at least 1"),
    ],
)
def test_wrong_use(words, message, capsys):
    assert main(["resume-check", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.slow
def test_a_training_that_is_killed_continues_exactly(tiny_bert, tmp_path, capsys):
    table = [(f"w{i % 40} w{i % 7}", ("ant", "bee", "cow")[i % 3]) for i in range(60)]
    train = write_csv(tmp_path / "train.csv", table, ("text", "label"))
    kept = tmp_path / "kept"
    words = ["--output_dir", kept, "--interruptions", 1, "--", "--train_file", train,
             "--model_name_or_path", tiny_bert, "--num_train_epochs", 8, "--use_cpu",
             "--per_device_train_batch_size", 4, "--mixed_precision", "fp16"]  # fmt: skip
    assert main(["resume-check", *map(str, words)]) == 0
    out = capsys.readouterr().out
    assert "result     equal bit for bit: weights, predictions, report" in out
    resumes = json.loads((kept / INTERRUPTED / "run.json").read_text())["resumes"]
    assert len(resumes) == 1
    assert json.loads((kept / STRAIGHT / "run.json").read_text())["resumes"] == []
