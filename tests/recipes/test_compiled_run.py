"""Runs that Accelerate's launcher asks to compile: they are compiled, and compute the same."""

from __future__ import annotations

import json

import pytest
import torch._dynamo
from resumed_runs import LATEST, evidence, interrupted, two_epochs
from running import CLASSIFY, call_here, printed, succeeded
from torch._dynamo.utils import counters

# torch warns about itself while it traces.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SAME = ("loss", "grad_norm", "tokens", "micro_batches")
WATCHED = ("headroom/", "underflow/", "grad_norm/")


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
    return [
        {name: row[name] for name in row if name in SAME or name.startswith(WATCHED)}
        for row in rows
        if "loss" in row
    ]


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--watch", "1"),
        ("--gradient_checkpointing",),
        ("--gradient_accumulation_steps", "2"),
        ("--mixed_precision", "bf16", "--fp32_modules", "layer.1.output.dense"),
        ("--padding", "--watch", "1"),
        ("--lora_r", "2"),
    ],
    ids=" ".join,
)
def test_a_compiled_run_takes_the_same_steps(start, tmp_path, compiled, flags):
    done = succeeded(start(tmp_path / "compiled", *flags, **LAUNCHED))
    assert compiled["stats"]["unique_graphs"] > 0
    assert not any("recompile limit" in reason for reason in compiled["unimplemented"])
    assert ", compiled by aot_eager" in printed(done.stdout, "device")
    assert "padding-free" in printed(done.stdout, "model") or "--padding" in flags
    succeeded(start(tmp_path / "plain", *flags))
    record = json.loads((tmp_path / "compiled" / "run.json").read_text())
    assert record["topology"]["compiled"] == "aot_eager"
    tolerance = 1e-2 if "bf16" in flags else 1e-5
    for one, other in zip(_steps(tmp_path / "compiled"), _steps(tmp_path / "plain"), strict=True):
        assert one == pytest.approx(other, rel=tolerance, abs=tolerance)


def test_regions_are_compiled(start, tmp_path, compiled):
    regions = {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "True"}
    succeeded(start(tmp_path / "compiled", **LAUNCHED, **regions))
    assert compiled["stats"]["unique_graphs"] > 0
    succeeded(start(tmp_path / "plain"))
    for one, other in zip(_steps(tmp_path / "compiled"), _steps(tmp_path / "plain"), strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_an_interrupted_compiled_run_resumes(start, tmp_path, compiled):
    saves = ("--checkpointing_steps", "5")
    succeeded(start(tmp_path / "whole", *saves, **LAUNCHED))
    with interrupted(8):
        assert start(tmp_path / "run", *saves, **LAUNCHED).returncode
    succeeded(start(tmp_path / "run", *saves, *LATEST, **LAUNCHED))
    assert evidence(tmp_path / "run") == evidence(tmp_path / "whole")
