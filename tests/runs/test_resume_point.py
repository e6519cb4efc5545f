"""Resuming into the folder of a finished run."""

from __future__ import annotations

import shutil

import pytest
import torch
from running import call_here, rows, write_csv
from tiny_text import save_tiny_bert
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import ampft
from ampft.errors import InputError
from ampft.runs.finished import FinishedRun
from ampft.runs.resume import list_checkpoints, refuse_differences

TRAIN, OTHER = rows(24, 0), rows(12, 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Data, a model, and the folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    for name, table in (("train", TRAIN), ("test", OTHER), ("validation", OTHER[:9])):
        write_csv(folder / f"{name}.csv", table, ("text", "label"))
    save_tiny_bert(folder / "model")
    resume(folder, "one")
    return folder


def resume(folder, run, **changes) -> FinishedRun:
    """Train or resume with paths below a folder; a change to None removes a setting."""
    settings = {
        "train_file": folder / "train.csv",
        "test_file": folder / "test.csv",
        "model_name_or_path": folder / "model",
        "output_dir": folder / run,
        "num_train_epochs": 1,
        "cpu_threads": 1,
        "resume_from_checkpoint": "latest",
        **changes,
    }
    return ampft.finetune(**{name: value for name, value in settings.items() if value is not None})


@pytest.mark.add_ons
def test_a_finished_run_is_returned_with_settings_that_give_the_same_result(finished):
    done = resume(finished, "one")
    assert done.folder == finished / "one"
    resume(finished, "one", per_device_train_batch_size=4, gradient_accumulation_steps=2)


@pytest.mark.add_ons
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"per_device_train_batch_size": 12}, r"effective batch size +8 +12"),
        ({"learning_rate": 0.5}, r"learning_rate +0.0001 +0.5"),
        ({"test_file": None}, "data of test"),
        ({"validation_file": "validation.csv"}, "data of validation"),
        ({"train_file": "test.csv", "test_file": "train.csv"}, "data of test"),
        ({"mixed_precision": "bf16"}, r"precision +fp32 +bf16"),
    ],
)
def test_a_finished_run_with_other_settings_is_refused(finished, changes, reason):
    paths = {
        name: finished / value
        for name, value in changes.items()
        if value is not None and name.endswith("_file")
    }
    with pytest.raises(InputError, match=f"(?s)run.json belongs to a run with other.*{reason}"):
        resume(finished, "one", **{**changes, **paths})


@pytest.mark.add_ons
def test_data_in_memory_and_folders_of_data_are_compared(finished):
    files = {"train_file": None, "test_file": None}
    train, test = ([dict(zip(("text", "label"), row, strict=True)) for row in table]
                   for table in (TRAIN, OTHER))  # fmt: skip
    resume(finished, "one", **files, train=train, test=test)
    with pytest.raises(InputError, match="data of train"):
        resume(finished, "one", **files, train=train[:-1], test=test)
    folder = finished / "data"
    folder.mkdir()
    shutil.copy(finished / "train.csv", folder)
    write_csv(folder / "test.csv", OTHER[1:], ("text", "label"))
    with pytest.raises(InputError, match="data of test"):
        resume(finished, "one", **files, dataset_name=folder)


@pytest.mark.add_ons
def test_changed_weights_of_the_model_are_refused(finished):
    other = save_tiny_bert(finished / "other", weight=0.5)
    with pytest.raises(InputError, match="initial weights"):
        resume(finished, "one", model_name_or_path=other)


@pytest.mark.add_ons
def test_the_command_prints_one_message_and_writes_nothing(finished):
    before = {path: path.stat().st_mtime_ns for path in (finished / "one").rglob("*")}
    flags = ["--train_file", finished / "train.csv", "--test_file", finished / "test.csv"]
    flags += ["--model_name_or_path", finished / "model", "--num_train_epochs", 1]
    flags += ["--output_dir", finished / "one", "--resume_from_checkpoint", "latest"]
    done = call_here("recipes/classify.py", *flags)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "this run has finished, so nothing is trained" in done.stdout
    assert "does not exist" not in done.stdout
    done = call_here("recipes/classify.py", *flags[:-1], "nowhere")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "--resume_from_checkpoint nowhere: this folder does not exist" in done.stdout
    done = call_here("recipes/classify.py", *flags, "--per_device_train_batch_size", 12)
    assert done.returncode == 2
    assert "effective batch size" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in (finished / "one").rglob("*")} == before


def test_a_setting_without_a_value_is_shown_as_not_set():
    with pytest.raises(InputError, match=r"--ema_decay +\(not set\) +0\.5"):
        refuse_differences("step-2", {"--ema_decay": (None, 0.5)}, "the command differs")


def test_a_prediction_from_python_has_six_decimals_unless_others_are_asked_for(finished):
    folder = str(finished / "one")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts = [row[0] for row in OTHER[:4]]
    with torch.no_grad():
        logits = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    exact = torch.stack(logits).double().softmax(dim=1).max(dim=1).values.tolist()
    run = FinishedRun(folder)
    found = run.predict(texts)["confidence"].tolist()
    assert found == pytest.approx(exact, abs=2e-6)
    assert found == [round(value, 6) for value in found]
    assert found == run.predict(texts, decimals=6)["confidence"].tolist()


def test_the_list_of_checkpoints_is_a_table_with_columns_from_the_left(finished):
    resume(finished, "listed", checkpointing_steps=2, resume_from_checkpoint=None)
    header, *rows = list_checkpoints(finished / "listed").splitlines()
    names = ("checkpoint", "epoch", "step in epoch", "size", "written", "reason")
    starts = [header.index(name) for name in names]
    assert rows
    for row in rows:
        assert all(row[start] != " " and row[start - 1 : start] in ("", " ") for start in starts)
