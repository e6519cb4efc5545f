"""Own loops by `ampft.Training`: exact gradients, exact resume, and a record like any run's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import own_gradients  # noqa: E402
from own_gradients import CASES, by_training, reference  # noqa: E402

ROUNDING = 2e-6  # of a float32 gradient, and of the weights from which it is read
KILLS = (2, 5, 7)  # the second and third within the second epoch
MODES = {"regression": "fp16", "cnn": "fp16", "gan": "fp16", "mixup": "bf16", "decoder": "fp32"}


def error(found, expected):
    """The relative error of a whole gradient."""
    pairs = [(found[name].double(), value) for name, value in expected.items()]
    off = sum(float((one - other).square().sum()) for one, other in pairs)
    return (off / sum(float(other.square().sum()) for _, other in pairs)) ** 0.5


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_does_not_depend_on_micro_batches(name, tmp_path):
    expected = reference(name)
    for micro_batches in (1, 4):
        found = by_training(name, tmp_path, micro_batches=micro_batches)
        assert error(found, expected) < ROUNDING, micro_batches


def test_weights_change_the_gradient(tmp_path, monkeypatch):
    """The control: without the weights, the error is seen."""
    case = own_gradients.weighted_regression
    expected = reference("weighted_regression")
    unweighted = lambda: own_gradients.Case(case().model, case().loss, case().examples)  # noqa: E731
    monkeypatch.setitem(CASES, "weighted_regression", unweighted)
    assert error(by_training("weighted_regression", tmp_path, micro_batches=2), expected) > 0.1


@pytest.mark.slow
def test_two_processes_compute_the_gradient_of_one(tmp_path):
    script = [str(HERE / "own_gradients.py"), str(tmp_path)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    subprocess.run([*launcher, *script], check=True, timeout=300)
    for name in CASES:
        assert error(load_file(tmp_path / f"{name}.safetensors"), reference(name)) < ROUNDING, name
    # Each process evaluates the model that is saved, with its running means of batch norm.
    one, other = (load_file(tmp_path / f"batch-norm-{rank}.safetensors") for rank in (0, 1))
    saved = load_file(tmp_path / "batch-norm" / "model.safetensors")
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert [name for name in saved if not torch.equal(saved[name], other[name])] == []


def history(folder):
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    measured = ("seconds", "examples_per_second", "tokens_per_second", "waiting_share")
    return [{k: v for k, v in row.items() if k not in (*measured, "memory_mib")} for row in rows]


@pytest.mark.slow
def test_a_loop_that_was_killed_three_times_ends_with_the_same_weights(tmp_path):
    plans = [
        {"loop": name, "precision": mode, "output_dir": str(tmp_path / f"{name}-{kind}"),
         "micro_batches": 2, "kill_at": kill}
        for name, mode in MODES.items()
        for kind, kills in (("whole", (None,)), ("killed", (*KILLS, None)))
        for kill in kills
    ]  # fmt: skip
    path = tmp_path / "plans.json"
    path.write_text(json.dumps(plans))
    done = subprocess.run(
        [sys.executable, str(HERE / "own_loops.py"), str(path)],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    ended = [line for line in done.stdout.splitlines() if line.startswith("ended")]
    assert ended == ["ended 0", *["ended -9"] * len(KILLS), "ended 0"] * len(MODES), done.stderr
    for name in MODES:
        whole, killed = tmp_path / f"{name}-whole", tmp_path / f"{name}-killed"
        one, other = (load_file(each / "model.safetensors") for each in (whole, killed))
        assert all(torch.equal(one[key], other[key]) for key in one), name
        assert history(whole) == history(killed), name
        record = json.loads((killed / "run.json").read_text())
        assert len(record["resumes"]) == len(KILLS) - 1  # nothing was saved before the first kill
