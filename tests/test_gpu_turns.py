"""The comparison of speed on a GPU, rehearsed on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
pytestmark = [pytest.mark.slow, pytest.mark.full]
# `datasets` and `evaluate` cannot be imported, as where they are not installed.
WITHOUT_PACKAGES = """
import runpy, sys
sys.modules["datasets"] = sys.modules["evaluate"] = None
sys.argv = ["gpu_turns.py", *sys.argv[1:]]
sys.path.insert(0, {folder!r})
runpy.run_path({program!r}, run_name="__main__")
"""


def run(code, *words):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def rehearse(out, *words):
    code = WITHOUT_PACKAGES.format(folder=str(BENCHMARKS), program=str(BENCHMARKS / "gpu_turns.py"))
    return run(code, "--rehearse", "--first", 1, "--turns", 2, "--out", out, *words)


def test_the_turns_are_rehearsed_without_datasets_and_continue(tmp_path):
    out = tmp_path / "results.json"
    done = rehearse(out)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(out.read_text())
    rows = content["rows"]
    assert content["left"] == []
    assert content["commit"]
    assert {name: row for name, row in rows.items() if "failed" in row} == {}
    job = "MiniLM, fp32, batch 4, 6 of 12 tokens"
    for system in ("trainer", "trainer (tuned)", "accelerate loop", "ampft", "ampft (no graphs)"):
        assert rows[f"{job}, turn 2, {system}"]["step_seconds"] > 0
        assert rows[f"{job}, turn 2, {system}"]["cold_step_seconds"] > 0
        assert f"{job}, {system}" in done.stdout
    assert "_GroupedAttention" in rows[f"{job}, counts, ampft"]["attention"]
    attention = rows[f"{job}, counts, trainer"]["attention"]
    assert "aten::scaled_dot_product_attention" in attention
    assert "flash_attn" in rows[f"{job}, turn 1, trainer (flash attention 2)"]["skipped"]
    missing = f"{job}, turn 1, ampft"
    del content["rows"][missing]
    out.write_text(json.dumps(content))
    done = rehearse(out, "--seconds", 0)
    assert "1 results did not fit" in done.stdout
    assert done.returncode == 4
    done = rehearse(out)
    assert done.stdout.count("s left") == 1, "something was measured again"
    assert json.loads(out.read_text())["rows"][missing]["step_seconds"] > 0
    content["commit"] = "another"
    out.write_text(json.dumps(content))
    done = rehearse(out)
    assert done.returncode == 2
    assert "measured under other conditions (commit)" in done.stderr


SAME_BATCHES = """
import sys
sys.path.insert(0, {benchmarks!r})
import gpu_systems, gpu_turns
seen = []
job = gpu_turns.all_jobs(gpu_turns.scale_of(rehearse=True))[0]
plain_pad, plain_loss = gpu_systems.pad, gpu_systems.summed_loss
def pad(rows):
    seen.append([len(row["input_ids"]) for row in rows])
    return plain_pad(rows)
def loss(model, micro_batch):
    seen.append(micro_batch.inputs["attention_mask"].sum(1).tolist())
    return plain_loss(model, micro_batch)
gpu_systems.pad, gpu_systems.summed_loss = pad, loss
passes = []
for system in ("trainer", "accelerate loop", "ampft (no graphs)"):
    seen.clear()
    gpu_turns.run_turn(system, job, gpu_turns.Turn(job.scale))
    passes.append([sorted(lengths) for lengths in seen[-8:]])
assert passes[0] == passes[1] == passes[2], passes
assert passes[0][:2] == passes[0][2:4] == passes[0][4:6], passes
print("same")
"""


def test_both_systems_train_on_the_same_batches_in_each_pass():
    done = run(SAME_BATCHES.format(benchmarks=str(BENCHMARKS)))
    assert done.stdout.splitlines()[-1:] == ["same"], done.stderr


GRAPHS = """
import sys, json, torch
sys.path[:0] = [{benchmarks!r}, {tests!r}]
import gpu_jobs, gpu_systems, gpu_turns
from tape import TapeRecorder, masked_attention
from ampft.fast.packing import packed_attention
packed_attention.choose_kernel = lambda *_, **__: masked_attention
gpu_jobs.Scale.on_gpu = property(lambda scale: True)
gpu_systems.CudaRecorder = lambda device: TapeRecorder()
gpu_systems.grouped_attention_reason = lambda *_: None
job = gpu_turns.all_jobs(gpu_turns.scale_of(rehearse=True))[0]
turn = gpu_turns.Turn(job.scale)
gpu_turns.run_turn("ampft (graphs)", job, turn)
print(json.dumps({{"passes": len(turn.warm_steps), **turn.notes}}))
"""


def test_the_turn_by_graphs_is_rehearsed_on_a_tape():
    done = run(GRAPHS.format(benchmarks=str(BENCHMARKS), tests=str(ROOT / "tests")))
    assert done.returncode == 0, done.stderr
    notes = json.loads(done.stdout.splitlines()[-1])
    assert notes["passes"] == 1
    assert notes["graphs"]["reason"] is None
    assert notes["graphs"]["replayed_micro_batches"] > 2
    assert notes["graphs"]["replayed_updates"] > 2


def test_determinism_is_rehearsed():
    code = (
        f"import runpy, sys; sys.path.insert(0, {str(BENCHMARKS)!r}); "
        f"sys.argv[1:] = ['--tiny', '--steps', '2']; "
        f"runpy.run_path({str(BENCHMARKS / 'determinism.py')!r}, run_name='__main__')"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert "tensors that differ': '0 of" in done.stdout
