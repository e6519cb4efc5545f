"""Damage to any file that a command reads is an error that names the file."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from file_faults import flip_bit
from tiny_text import LABELS, write_contract

from ampft.comparison.analysis.loading import find_runs
from ampft.errors import InputError
from ampft.kinds.prediction import PredictRequest
from ampft.runs.finished import FinishedRun
from ampft.runs.folder import RunFolder
from ampft.runs.manifest import sealed_run
from ampft.runs.predict import predict_file
from ampft.runs.predictions import write_predictions
from ampft.runs.publishing import model_card
from ampft.runs.record import write_record
from ampft.runs.results import write_results
from ampft.runs.run_text import format_run
from ampft.tasks.single_label import Predictions, classification_report

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

READ = {
    "predict": ("run.json", "config.json", "decision.json", "model.safetensors",
                "tokenizer.json", "tokenizer_config.json"),
    "report": ("run.json", "report.json"),
    "model": ("run.json", "config.json", "model.safetensors"),
    "table": ("run.json", "predictions.parquet"),
    "compare": ("run.json", "history.jsonl", "predictions.parquet"),
}  # fmt: skip


def write_run(folder: Path, model: Path, make_record, *, seed: int) -> Path:
    """Write the folder of a finished run, with a model, as the recipe does."""
    labels = np.random.default_rng(seed).integers(0, 3, 20)
    shares = np.eye(3, dtype=np.float32)[labels] * 0.7 + np.float32(0.1)
    outcome = Predictions(np.arange(20), labels, shares, LABELS, "test")
    report = classification_report(outcome)
    record = make_record(
        label_names=LABELS,
        arguments={"seed": seed, "max_seq_length": 16},
        metrics={**report.metrics(), "split": "test", "selected": False},
    )
    with RunFolder(folder) as run:
        write_record(run, replace(record, status="running"))
        (folder / "history.jsonl").write_text(f'{{"step": {seed}}}\n')
        shutil.copytree(model, run.stage(), dirs_exist_ok=True)
        (run.stage() / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "BertTokenizer", "seed": seed})
        )
        write_contract(run.stage(), 16 + seed)
        write = partial(write_predictions, references=lambda rows: {"text": ["x"] * 20})
        write_results(run, record, outcome, write, card=model_card)
    return folder


@pytest.fixture
def run(tiny_bert, tmp_path, make_record) -> Path:
    return write_run(tmp_path / "run", tiny_bert, make_record, seed=1)


def read(command: str, folder: Path) -> str:
    """Read a run as a command does, and return what the command makes of it."""
    if command == "report":
        return format_run(folder)
    if command == "compare":
        [run] = find_runs([folder])
        return f"accuracy {run.record.metrics['accuracy']}"
    if command == "model":
        return type(FinishedRun(folder).model).__name__
    if command == "table":
        return f"{len(FinishedRun(folder).predictions)} rows"
    texts = folder.parent / "texts.csv"
    texts.write_text("text\nw1 w2\n")
    labels = folder.parent / "labels.csv"
    predict_file(
        str(folder), PredictRequest(files=[str(texts)], output_file=str(labels), overwrite=True)
    )
    return labels.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "expected"),
    [("predict", "w1 w2,"), ("report", "accuracy"), ("compare", "accuracy 1.0"),
     ("model", "BertFor"), ("table", "20 rows")],
)  # fmt: skip
def test_an_undamaged_run_is_read(run, command, expected):
    assert expected in read(command, run)
    (run / "notes.txt").write_text("Files of the user are nobody's business.")
    assert expected in read(command, run)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


DAMAGE = {"flip": flip_bit, "truncate": truncate, "delete": Path.unlink}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command in READ for name in READ[command]]
)
def test_a_damaged_file_is_named(run, command, name, damage):
    DAMAGE[damage](run / name)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        read(command, run)


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command in READ for name in READ[command][1:]]
)
def test_a_file_of_another_run_is_named(run, tiny_bert, make_record, command, name):
    other = write_run(run.parent / "other", tiny_bert, make_record, seed=2)
    with (other / "model.safetensors").open("ab") as file:
        file.write(b" ")
    for shared in ("config.json", "tokenizer.json", "report.json"):  # the same in both runs
        (other / shared).write_text((other / shared).read_text() + " ")
    shutil.copy(other / name, run / name)
    with pytest.raises(InputError, match=rf"{name}: the file was changed after the run"):
        read(command, run)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("predict", "adapter_config.json"),
        ("predict", "added_tokens.json"),
        ("predict", "pytorch_model.bin"),
        ("compare", "predictions_fp32.parquet"),
    ],
)
def test_an_added_file_is_named(run, command, name):
    (run / name).write_text("{}")
    with pytest.raises(InputError, match=rf"{name}: the file was added after the run"):
        read(command, run)


def test_a_changed_number_in_the_record_is_noticed(run):
    text = (run / "run.json").read_text()
    assert text.count('"accuracy": 1.0') == 1
    (run / "run.json").write_text(text.replace('"accuracy": 1.0', '"accuracy": 0.9'))
    with pytest.raises(InputError, match=r"run\.json: .*do not have the hash"):
        read("report", run)


def test_a_run_without_hashes_is_read(run, make_record):
    with RunFolder(run, keep_files=True) as folder:
        folder.adopt("run.json")
        write_record(folder, make_record(arguments={"seed": 1}, metrics={"accuracy": 0.25}))
    assert read("compare", run) == "accuracy 0.25"


def test_a_file_put_into_the_folder_of_adapters_is_found(tmp_path):
    """Nothing of ampft reads this folder, but users and hubs do."""
    for name in ("adapter/adapter_model.bin", "adapter/notes.md", "other/adapter_model.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    faults = dict(sealed_run(tmp_path, {}).faults())
    assert faults == {"adapter/adapter_model.bin": "was added after the run"}
