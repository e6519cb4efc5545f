"""Losses of strangers, through every door of the exact gradient, in one to three processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import foreign_losses
import pytest
import torch
from foreign_losses import LOSSES, SURFACES

from ampft.engine.step import summed_loss
from ampft.errors import InputError

HERE = Path(__file__).parent
# Largest relative error of a gradient, a recorded loss, a norm, or of weights after four steps.
TOLERANCE = 1e-6
BY_WEIGHTS = 1e-5  # of gradients that are read from the weights before and after a step

CELLS = {
    *(f"{surface.__name__} {loss.__name__}{kind}"
      for surface in SURFACES for loss in LOSSES for kind in ("", " not finite")),
    *(f"training {loss.__name__}" for loss in LOSSES),
    "training row_weights tuple",
}  # fmt: skip


def check(found):
    control, _ = found.pop("unguarded plain_sum")
    assert found.keys() == CELLS
    for name, (error, _) in found.items():
        assert error < (BY_WEIGHTS if name.startswith("training") else TOLERANCE), name
    return control


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_no_loss_of_a_dummy_counts(processes, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    script = [str(HERE / "foreign_losses.py"), str(tmp_path)]
    launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--standalone"]
    subprocess.run([sys.executable, *launcher, *script], check=True, timeout=500)
    for rank in range(processes):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        table = found["table"]
        assert all(dummies for _, dummies in table.values())
        assert check(table) > 0.01  # the control is wrong: the dummies could count
        assert "ampft.synchronized_last" in found["refusal"]


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_accelerate")
def test_one_process_has_no_dummies(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    table = foreign_losses.table()
    assert not any(dummies for _, dummies in table.values())
    assert check(table) < TOLERANCE


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((torch.ones(()), 3), "it returned tuple"),
        (torch.ones(2), r"it returned \(2,\)"),
        (torch.ones((), dtype=torch.bfloat16, requires_grad=True), "summed in torch.bfloat16"),
        (torch.ones(()), "torch.float32 without a gradient"),
    ],
)
def test_a_loss_is_one_number_in_float32(value, message):
    with pytest.raises(InputError, match=f"loss: .*{message}"):
        summed_loss(value)
    assert summed_loss(torch.ones(1, requires_grad=True)).shape == ()
    with torch.no_grad():  # as in a validation
        assert summed_loss(torch.ones(1)).shape == ()
