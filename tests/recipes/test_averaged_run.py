"""A run with `--ema_decay`: what is saved, resumed, skipped and audited."""

from __future__ import annotations

import json

import pytest
import torch
from resumed_runs import interrupted, large_loss_scale, two_epochs
from running import BIN, CLASSIFY, Finished, call_here, printed, succeeded
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

EMA = ("--ema_decay", "0.9", "--mixed_precision", "fp16")


@pytest.fixture(scope="module")
def run(files, tiny_model, tmp_path_factory) -> Finished:
    """A run in fp16 whose first steps overflow and are skipped."""
    folder = tmp_path_factory.mktemp("runs") / "averaged"
    with large_loss_scale():
        done = succeeded(call_here(CLASSIFY, *two_epochs(files, tiny_model, folder, *EMA)))
    return Finished(folder, done.stdout, done.stderr)


def test_the_average_is_the_model_and_the_raw_weights_are_kept(run):
    model = load_file(run.folder / "model.safetensors")
    raw = load_file(run.folder / "raw_weights.safetensors")
    assert raw.keys() == model.keys()
    assert all(raw[name].shape == model[name].shape for name in raw)
    assert not torch.equal(raw["classifier.weight"], model["classifier.weight"])
    assert "the weights are averaged with decay 0.9" in printed(run.stdout, "steps")
    assert "averaged over the steps (decay 0.9)" in (run.folder / "README.md").read_text()
    assert run.record["steps"]["skipped"] > 0


def test_a_resumed_run_ends_with_the_same_average(run, files, tiny_model, tmp_path):
    folder = tmp_path / "resumed"
    words = two_epochs(files, tiny_model, folder, *EMA, "--checkpointing_steps", 5)
    with large_loss_scale(), interrupted(13):
        assert call_here(CLASSIFY, *words).returncode != 0
    state = json.loads((folder / "checkpoints" / "step-10" / "state.json").read_text())
    skipped = sum(row["skipped"] for row in run.history[:10])
    assert 0 < skipped == 10 - state["features"]["average"]["updates"]
    with large_loss_scale():
        succeeded(call_here(CLASSIFY, *words, "--resume_from_checkpoint", "latest"))
    for name in ("model.safetensors", "raw_weights.safetensors", "predictions.parquet"):
        assert (folder / name).read_bytes() == (run.folder / name).read_bytes(), name


def test_predictions_and_audit_are_those_of_the_average(run):
    with large_loss_scale():
        audit = succeeded(
            call_here(BIN / "ampft", "audit", run.folder, "--use_cpu", "--steps", "all")
        )
    assert "bit for bit" in printed(audit.stdout, "predicted")
    assert printed(audit.stdout, "verdict").startswith("confirmed")
