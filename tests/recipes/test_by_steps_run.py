"""Runs that validate, choose the best weights and stop early by steps instead of epochs."""

from __future__ import annotations

import json

import pytest
from running import BIN, CLASSIFY, call_here, printed, succeeded, text_settings

pytestmark = pytest.mark.slow


BY_ACCURACY = ("--metric_for_best_model", "accuracy")


def train(files, tiny_model, folder, *flags):
    """Train up to 36 steps, 9 per epoch; return the output and the record."""
    words = text_settings(files, tiny_model, folder)
    for name in {*flags} & {*words}:
        del words[words.index(name) : words.index(name) + 2]
    done = succeeded(call_here(CLASSIFY, *words, *flags))
    return done.stdout, json.loads((folder / "run.json").read_text())


def test_the_best_weights_are_chosen_every_few_steps_and_at_the_end(files, tiny_model, tmp_path):
    folder = tmp_path / "run"
    stdout, record = train(files, tiny_model, folder, "--eval_steps", 10, *BY_ACCURACY)
    validations = record["validations"]
    assert [(part["step"], part["epoch"]) for part in validations] == [
        (10, 2), (20, 3), (30, 4), (36, 4),
    ]  # fmt: skip
    scores = [part["metrics"]["accuracy"] for part in validations]
    ranks = [(part["metrics"]["accuracy"], -part["metrics"]["log_loss"]) for part in validations]
    first_best = validations[ranks.index(max(ranks))]
    best = record["best"]
    assert (best["value"], best["step"]) == (max(scores), first_best["step"])
    assert "step 10    validation accuracy" in stdout
    shown = succeeded(call_here(BIN / "ampft", "report", folder)).stdout
    assert f"weights    step {best['step']}, the best by accuracy: accuracy" in shown
    assert f"those of step {best['step']}, the best by" in (folder / "README.md").read_text()


PATIENCE = "2 validations without improvement (--early_stopping_patience)"


@pytest.mark.parametrize(("total", "reason"), [(16, PATIENCE), (12, None)])
def test_patience_counts_validations_by_steps(files, tiny_model, tmp_path, total, reason):
    # With a rate of 0, no later validation is better than the first.
    flags = ("--eval_steps", 4, "--early_stopping_patience", 2, "--learning_rate", 0)
    stdout, record = train(files, tiny_model, tmp_path / "run", *flags, "--max_train_steps", total)
    assert record.get("reason") == reason
    assert (PATIENCE in stdout) == (reason is not None)
    assert [part["step"] for part in record["validations"]] == [4, 8, 12]
    assert record["steps"]["applied"] == 12
    assert (record["best"]["step"], record["best"]["by"]) == (12, "last")


def test_a_time_limit_ends_a_run_as_usual_and_says_so(files, tiny_model, tmp_path):
    folder = tmp_path / "run"
    flags = ("--max_time", "1s", "--num_train_epochs", 1000)
    stdout, record = train(files, tiny_model, folder, *flags)
    steps = record["steps"]["applied"]
    assert 1 <= steps < 9000
    assert record["status"] == "finished"
    assert record["validations"][-1]["step"] == steps, "the last weights were not evaluated"
    reason = f"--max_time 1s ended the training after step {steps} of 9000, so"
    assert record["reason"].startswith(reason)
    assert reason in printed(stdout, "stopped")
    assert "--max_time 1s counts from the start of the command: " in " ".join(stdout.split())
    assert stdout.index("\nclassification report") < stdout.index("\nstopped ")
    shown = succeeded(call_here(BIN / "ampft", "report", folder)).stdout
    assert shown.splitlines()[-1].startswith(f"stopped: {reason}")
