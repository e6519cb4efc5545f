"""A model that leaves autocast: the run stops after its first step, and is not called diverged."""

from __future__ import annotations

import json
import sys

import pytest
from running import call, text_settings

pytestmark = pytest.mark.slow

# A model with custom code can do this: its feed-forward layers turn autocast off.
STRAYING = """
import runpy, sys
import torch
from torch.nn import functional
from transformers.models.bert import modeling_bert

native = modeling_bert.BertIntermediate.forward

def forward(self, hidden_states):
    with torch.autocast("cpu", enabled=False):
        return native(self, hidden_states.float())

modeling_bert.BertIntermediate.forward = forward
sys.argv = ["recipes/classify.py", *sys.argv[1:]]
runpy.run_path("recipes/classify.py", run_name="__main__")
"""


def test_a_contradicted_precision_has_its_own_status(files, tiny_model, tmp_path):
    folder = tmp_path / "run"
    words = [*text_settings(files, tiny_model, folder), "--mixed_precision", "bf16"]
    done = call(sys.executable, "-c", STRAYING, *words)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "contradicted"
    assert "mode bf16 was requested, but" in record["reason"]
    assert "float32 x float32" in record["reason"]
    assert record["precision"]["executed"]["rows"]
    shown = call(sys.executable, "-m", "ampft.cli", "report", folder).stdout.splitlines()[-1]
    assert shown.startswith("stopped: its first step did not compute in the requested precision")
