"""Loops of users end with the weights of plain torch, also after kills; rates are theirs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from ported_loops import LOOPS, STEPS, Killed, Ours, Plain, weights  # noqa: E402

TOLERANCE = 2e-6  # relative, of weights after 20 steps whose losses are summed, not averaged
KILLS = (3, 6, 8, 11, 16)  # the second and the last two after an epoch's last checkpoint


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


def error(found, expected):
    return float((found - expected).norm() / expected.norm())


def recorded_rates(folder):
    rows = (folder / "history.jsonl").read_text().splitlines()
    return [json.loads(row)["learning_rate"] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_ends_as_in_plain_torch_and_after_kills_bit_for_bit(name, tmp_path):
    loop, plain, ours = LOOPS[name], Plain(), Ours(tmp_path / "whole")
    expected, found = weights(loop(plain)), weights(loop(ours))
    assert ours.rates == pytest.approx(plain.rates, rel=1e-12)
    assert error(found, expected) < TOLERANCE
    assert recorded_rates(tmp_path / "whole") == ours.rates
    for kill_at in KILLS:
        with pytest.raises(Killed):
            loop(Ours(tmp_path / "killed", kill_at))
    assert torch.equal(weights(loop(Ours(tmp_path / "killed"))), found)
    assert recorded_rates(tmp_path / "killed") == ours.rates
    assert len(ours.rates) == STEPS


@pytest.mark.slow
def test_two_processes_end_as_one(tmp_path):
    script = [str(HERE / "ported_processes.py"), str(tmp_path)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    subprocess.run([*launcher, *script], check=True, timeout=500)
    for rank in (0, 1):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert len(found) == 5
        for name, (off, is_equal) in found.items():
            assert off < TOLERANCE, name
            assert is_equal, name
