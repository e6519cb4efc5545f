"""`ampft estimate` with a real trial."""

from __future__ import annotations

import json

import pytest
from running import BIN, call_here, succeeded


@pytest.mark.slow
def test_a_trial_is_run_and_nothing_is_written(files, tiny_model, tmp_path):
    flags = ["--train_file", files / "train.csv", "--test_file", files / "test.csv", "--use_cpu"]
    flags += ["--model_name_or_path", tiny_model, "--cpu_threads", 1]
    words = ["estimate", "--json", "--", *flags, "--checkpointing_steps", "epoch"]
    found = json.loads(succeeded(call_here(BIN / "ampft", *words, cwd=tmp_path)).stdout)
    assert found["seconds"] > found["startup_seconds"] > 0
    assert found["step_seconds"] > 0
    assert found["peak_memory"] > 50 * 2**20
    assert found["disk_bytes"] > 0
    assert not list(tmp_path.iterdir())
