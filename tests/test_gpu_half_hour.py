"""The half hour on a GPU, rehearsed on a CPU: all entries, a planted failure, and continuing."""

import json
import sys

import pytest
from running import call

pytestmark = pytest.mark.slow


def half_hour(*words, **environment):
    # Its entries are forked too, from a process that has imported torch and transformers.
    return call(sys.executable, "benchmarks", "gpu_half_hour", *words, **environment)


def test_every_entry_is_rehearsed_and_a_failure_stops_none(tmp_path):
    out = tmp_path / "half-hour"
    done = half_hour("--rehearse", "--out", out, AMPFT_PLANTED_FAILURE="accept")
    content = json.loads((out / "half-hour.json").read_text())
    entries = content["entries"]
    failed = {name: row.get("end") for name, row in entries.items() if row["status"] == "failed"}
    assert list(failed) == ["accept"], failed
    assert failed["accept"] == ["planted failure"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["status"] for name, row in entries.items() if name != "accept"} == {"done"}
    speed = json.loads((out / "speed.json").read_text())["rows"]
    assert {name: row for name, row in speed.items() if "failed" in row} == {}
    for model in ("BERT-base", "ModernBERT-base", "DeBERTa-base", "ViT-base"):
        assert speed[f"{model}, fp32, batch 4, 6 of 12 tokens, turn 1, ampft"]["step_seconds"] > 0
    digits = json.loads((out / "digits.json").read_text())["rows"]
    emulated = next(row for row in digits if row["between"] == ["fp16 on cpu", "fp32 on cpu"])
    assert 1e-5 < emulated["first gradient"] < 3e-3
    first_step = json.loads((out / "first-step.json").read_text())["fp32"]
    assert first_step["exit code"] == 0
    assert 0 < first_step["seconds to the first step"] < first_step["seconds"]
    # What has not ended continues; what has ended is not run again.
    del content["entries"]["accept"]
    (out / "half-hour.json").write_text(json.dumps(content))
    assert half_hour("--rehearse", "--out", out, "--minutes", 0).returncode == 4
    again = half_hour("--rehearse", "--out", out, AMPFT_PLANTED_FAILURE="accept")
    assert again.returncode == 0
    assert [line.split(":")[0] for line in again.stdout.splitlines()] == ["accept", "accept"]
    content["commit"] = "another"
    (out / "half-hour.json").write_text(json.dumps(content))
    other = half_hour("--rehearse", "--out", out)
    assert other.returncode == 2
    assert "measured under other conditions (commit)" in other.stderr
