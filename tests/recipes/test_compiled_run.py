"""Runs that Accelerate's launcher asks to compile: they are compiled, and compute the same."""

from __future__ import annotations

import json

import pytest
import torch._dynamo
from representatives import full_except
from resumed_runs import LATEST, evidence, interrupted, two_epochs
from running import BIN, CLASSIFY, call_here, printed, succeeded
from torch._dynamo.utils import counters

# torch warns about itself while it traces.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SAME = ("loss", "grad_norm", "tokens", "micro_batches")
LAUNCHED = {
    "ACCELERATE_DYNAMO_BACKEND": "AOT_EAGER",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
}
"""What the launcher sets for `--dynamo_backend aot_eager`."""


@pytest.fixture
def start(files, tiny_model):
    def run(folder, *more, **environment):
        return call_here(CLASSIFY, *two_epochs(files, tiny_model, folder, *more), **environment)

    return run


@pytest.fixture
def compiled():
    """Return the counters of what is compiled."""
    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()
    counters.clear()


def _steps(folder):
    rows = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
    return [{name: row[name] for name in SAME} for row in rows if "loss" in row]


@pytest.mark.parametrize(
    "flags",
    full_except(
        [
            "",
            "--gradient_checkpointing",
            "--gradient_accumulation_steps 2",
            "--mixed_precision bf16 --fp32_modules layer.1.output.dense",
            "--padding",
            "--lora_r 2",
            "--mixed_precision bf16 --train_layers 1",
        ],
        [""],
    ),
)
def test_a_compiled_run_takes_the_same_steps(start, tmp_path, compiled, flags):
    flags = flags.split()
    done = succeeded(start(tmp_path / "compiled", *flags, **LAUNCHED))
    assert compiled["stats"]["unique_graphs"] > 0
    for problem in ("recompile limit", "Data pointer"):
        assert not any(problem in reason for reason in compiled["unimplemented"])
    assert ", compiled by aot_eager" in printed(done.stdout, "device")
    assert "padding-free" in printed(done.stdout, "model") or "--padding" in flags
    succeeded(start(tmp_path / "plain", *flags))
    record = json.loads((tmp_path / "compiled" / "run.json").read_text())
    assert record["topology"]["compiled"] == "aot_eager"
    if "--fp32_modules" in flags:
        assert "float32 sums, by --fp32_modules" in printed(done.stdout, "ran")
    tolerance = 1e-2 if "bf16" in flags else 1e-5
    for one, other in zip(_steps(tmp_path / "compiled"), _steps(tmp_path / "plain"), strict=True):
        assert one == pytest.approx(other, rel=tolerance, abs=tolerance)


@pytest.mark.full
def test_regions_are_compiled(start, tmp_path, compiled):
    regions = {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "True"}
    succeeded(start(tmp_path / "compiled", **LAUNCHED, **regions))
    assert compiled["stats"]["unique_graphs"] > 0
    succeeded(start(tmp_path / "plain"))
    for one, other in zip(_steps(tmp_path / "compiled"), _steps(tmp_path / "plain"), strict=True):
        assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.full
def test_an_interrupted_compiled_run_resumes(start, tmp_path, compiled):
    saves = ("--checkpointing_steps", "5")
    succeeded(start(tmp_path / "whole", *saves, **LAUNCHED))
    with interrupted(8):
        assert start(tmp_path / "run", *saves, **LAUNCHED).returncode
    succeeded(start(tmp_path / "run", *saves, *LATEST, **LAUNCHED))
    assert evidence(tmp_path / "run") == evidence(tmp_path / "whole")


@pytest.mark.full
def test_a_compiled_run_is_audited(start, tmp_path, compiled):
    succeeded(start(tmp_path / "run", "--max_train_steps", "6", **LAUNCHED))
    done = succeeded(call_here(BIN / "ampft", "audit", tmp_path / "run", "--use_cpu", **LAUNCHED))
    assert printed(done.stdout, "verdict").startswith("confirmed")
    uncompiled = call_here(BIN / "ampft", "audit", tmp_path / "run", "--use_cpu")
    assert "compilation none instead of aot_eager" in uncompiled.stdout


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (("--watch", "2"), {}, "error: --watch 2: a compiled model cannot be watched"),
        ((), {"ACCELERATE_DYNAMO_USE_FULLGRAPH": "True"}, "torch cannot compile the model ("),
    ],
    ids=["watched", "one graph"],
)
def test_what_cannot_be_compiled_is_refused(start, tmp_path, compiled, flags, environment, message):
    done = start(tmp_path / "run", *flags, **LAUNCHED, **environment)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
