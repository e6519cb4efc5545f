"""The program for the first hour on a GPU, rehearsed on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
# `datasets` and `evaluate` cannot be imported, as where they are not installed.
WITHOUT_PACKAGES = """
import runpy, sys
sys.modules["datasets"] = sys.modules["evaluate"] = None
sys.argv = ["first_hour.py", *sys.argv[1:]]
sys.path.insert(0, {folder!r})
runpy.run_path({program!r}, run_name="__main__")
"""


def rehearse(part, out, *words):
    code = WITHOUT_PACKAGES.format(
        folder=str(BENCHMARKS), program=str(BENCHMARKS / "first_hour.py")
    )
    command = [sys.executable, "-c", code, "--part", str(part), "--rehearse", "--out", out, *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def measured(rows):
    return {name for name, row in rows.items() if "skipped" not in row}


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("part", [1, 2, 3])
def test_a_part_is_rehearsed_without_datasets(part, tmp_path):
    out = tmp_path / "results.json"
    done = rehearse(part, out)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(out.read_text())
    rows = content["rows"]
    assert content["left"] == []
    assert content["commit"]
    assert {name: row for name, row in rows.items() if "failed" in row} == {}
    assert all(row["skipped"] for row in rows.values() if "skipped" in row)
    check = {1: check_part_1, 2: check_part_2, 3: check_part_3}[part]
    check(rows, done.stdout)


def check_part_1(rows, output):
    assert measured(rows) == set(rows)
    assert rows["tests"]["exit_code"] == 0, rows["tests"]["last_lines"]
    assert rows["kernels of bert, fp16"]["kernels"] == ["binary16_attention"]
    assert "kernels of t5, bf16" in output


def check_part_2(rows, output):
    job = "MiniLM, fp32, batch 4, 6 of 12 tokens"
    systems = ("trainer", "trainer (length grouping)", "ampft")
    names = {f"{job}, turn {turn}, {system}" for turn in (1, 2) for system in systems}
    names.add(f"compiled: {job}, turn 1, ampft")
    assert names <= measured(rows)
    assert all(rows[name]["step_seconds"] > 0 and rows[name]["steps"] == 2 for name in names)
    assert "flash_attn" in rows[f"{job}, turn 1, trainer (flash attention 2)"]["skipped"]
    assert "compile" in rows[f"compiled: {job}, turn 1, trainer (compiled)"]["skipped"]
    assert "CUDA" in rows[f"launches, {job}, ampft"]["skipped"]
    assert f"compiled: {job}, ampft" in output


def check_part_3(rows, output):
    assert 0 < rows["emulated and native fp16"]["emulated_to_fp32"] < 1e-2
    assert rows["out of memory"]["micro_batches"] == 2
    assert rows["out of memory"]["error"] < 1e-6
    assert "out of memory" in output


GRAPHS = """
import sys, json, torch
sys.path[:0] = [{benchmarks!r}, {tests!r}]
import gpu_turns, first_hour
from tape import TapeRecorder, masked_attention
from ampft.fast.packing import packed_attention
attention.choose_kernel = lambda *_, **__: masked_attention
gpu_turns.Scale.on_gpu = property(lambda scale: True)
gpu_turns.CudaRecorder = lambda device: TapeRecorder()
gpu_turns.grouped_attention_reason = lambda *_: None
scale = first_hour.scale_of(rehearse=True)
job = gpu_turns.Job(scale, "fp32", "MiniLM", 4, scale.tokens[0])
turn = gpu_turns.Turn(scale)
gpu_turns.run_turn("ampft (graphs)", job, turn)
print(json.dumps({{"timed": turn.timed, **turn.notes}}))
"""


@pytest.mark.full
@pytest.mark.slow
def test_the_turn_by_graphs_is_rehearsed_on_a_tape():
    code = GRAPHS.format(benchmarks=str(BENCHMARKS), tests=str(ROOT / "tests"))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    notes = json.loads(done.stdout.splitlines()[-1])
    assert notes["timed"] == 2
    assert notes["graphs"]["reason"] is None
    assert notes["graphs"]["replayed_micro_batches"] > 2
    assert notes["graphs"]["replayed_updates"] > 2


@pytest.mark.slow
@pytest.mark.full
def test_a_part_keeps_to_its_time_and_continues(tmp_path):
    out = tmp_path / "results.json"
    done = rehearse(3, out, "--seconds", "0")
    assert done.returncode == 0, done.stderr
    content = json.loads(out.read_text())
    assert content["rows"] == {}
    assert len(content["left"]) == 4
    assert "Call this part again" in done.stdout
    stored = {"skipped": "planted"}
    content["rows"] = {name: stored for name in content["left"] if name != "out of memory"}
    out.write_text(json.dumps(content))
    done = rehearse(3, out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("s left") == 1, "something was measured again"
    content = json.loads(out.read_text())
    assert content["left"] == []
    assert content["rows"].pop("out of memory")["micro_batches"] == 2
    assert all(row == stored for row in content["rows"].values())
    done = rehearse(1, out)
    assert done.returncode == 2
    assert "measured under other conditions (part)" in done.stderr
