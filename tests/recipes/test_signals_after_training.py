"""Real signals after the last step: the line that is printed says what then happens."""

from __future__ import annotations

import importlib
import signal
import time
from itertools import cycle
from pathlib import Path

import pytest
from running import BIN, CLASSIFY, call_here, record_of, rows, succeeded, write_csv

from ampft.engine import ending

pytestmark = pytest.mark.slow

SIGNALS = [signal.SIGINT, signal.SIGTERM]
# A function that is called in each part that follows the evaluation.
LATER = {
    "trackers": "ampft.runs.run:end_training",
    "pictures": "ampft.tasks.task:Task.save_pictures",
    "speed": "ampft.runs.run:doubled_batch_timings",
    "simple methods": "ampft.runs.run:compared_methods",
    "predictions": "ampft.runs.run:write_predictions",
    "serving back": "ampft.integrations.serving_back:serve_back",
    "report": "ampft.runs.run:save_report",
    "model card": "ampft.runs.run:model_card",
}
# In the evaluation after the training: before its first batch, and when its last one is done.
EVALUATION = ("ampft.runs.run:predict", "ampft.runs.run:constant_outcome")
PARTS = list(zip(LATER, cycle(SIGNALS), strict=False))
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(scope="module")
def flags(tmp_path_factory, tiny_bert) -> list[object]:
    folder = tmp_path_factory.mktemp("data")
    files = {
        name: write_csv(folder / f"{name}.csv", rows(size, seed), ("text", "label"))
        for seed, (name, size) in enumerate({"train": 24, "validation": 9, "test": 12}.items())
    }
    named = [word for name, path in files.items() for word in (f"--{name}_file", path)]
    sizes = ["--per_device_train_batch_size", "8", "--per_device_eval_batch_size", "4"]
    return ["--model_name_or_path", tiny_bert, *named, *sizes, "--num_train_epochs", "1"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, flags) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    succeeded(call_here(CLASSIFY, *flags, "--output_dir", folder))
    return folder


def receive_in(patch: pytest.MonkeyPatch, place: str, *numbers: int) -> None:
    """Let a function receive real signals at its first call after the training."""
    module, _, path = place.partition(":")
    holder = importlib.import_module(module)
    *owner, name = path.split(".")
    for each in owner:
        holder = getattr(holder, each)
    original, left = getattr(holder, name), list(numbers)

    def receive(*args, **kwargs):
        while left and not (name == "predict" and "test" not in args):
            signal.raise_signal(left.pop(0))
            time.sleep(ending.REPEATED_SECONDS + 0.1 if left else 0)
        return original(*args, **kwargs)

    patch.setattr(holder, name, receive)


def same_results(folder: Path, other: Path) -> bool:
    names = ("model.safetensors", "report.json", "predictions.parquet", "decision.json")
    return all((folder / n).read_bytes() == (other / n).read_bytes() for n in names)


@pytest.mark.parametrize(("part", "number"), PARTS)
def test_the_run_finishes_after_one_signal(
    part, number, flags, undisturbed, tmp_path, monkeypatch, capfd
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        receive_in(patch, LATER[part], number)
        succeeded(call_here(CLASSIFY, *flags, "--output_dir", folder))
    assert f"{number.name}: {ending.FINISHING}; a second" in capfd.readouterr().err
    assert record_of(folder)["status"] == "finished"
    assert same_results(folder, undisturbed)


@pytest.mark.parametrize(("part", "number"), PARTS)
def test_the_second_signal_leaves(part, number, flags, undisturbed, tmp_path, monkeypatch, capfd):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        receive_in(patch, LATER[part], signal.SIGINT, number)
        done = call_here(CLASSIFY, *flags, "--output_dir", folder)
    assert done.returncode == CODES[number], done.stdout + done.stderr
    assert f"SIGINT: {ending.FINISHING}; a second" in capfd.readouterr().err
    assert f"its model is saved; failed afterwards: {part} ({number.name})" in done.stderr
    assert "Traceback" not in done.stderr
    assert record_of(folder)["status"] == "trained"
    again = succeeded(call_here(CLASSIFY, *flags, "--output_dir", folder))
    assert "the training has ended, and only what follows is done now" in again.stdout
    assert same_results(folder, undisturbed)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("place", EVALUATION)
def test_the_evaluation_stops_after_a_batch(
    place, number, flags, undisturbed, tmp_path, monkeypatch, capfd
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        receive_in(patch, place, number)
        done = call_here(CLASSIFY, *flags, "--output_dir", folder)
    assert done.returncode == 75, done.stdout + done.stderr
    assert f"{number.name}: {ending.AFTER_BATCH}; a second" in capfd.readouterr().err
    record = record_of(folder)
    assert (record["status"], set(record["parts"].values())) == ("preempted", {"pending"})
    succeeded(call_here(CLASSIFY, *flags, "--output_dir", folder))
    assert same_results(folder, undisturbed)


def test_a_signal_in_the_training_stops_after_the_step(flags, tmp_path, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        receive_in(patch, "ampft.runs.train:backward", signal.SIGINT)
        done = call_here(BIN / "ampft", "train", *flags, "--output_dir", tmp_path / "run")
    assert done.returncode == 75, done.stdout + done.stderr
    assert f"SIGINT: {ending.AFTER_STEP}; a second" in capfd.readouterr().err
    assert record_of(tmp_path / "run")["reason"] == "SIGINT after step 1 of 3"
