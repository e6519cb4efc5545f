"""A model that leaves autocast: the run stops after its first step, and is not called diverged."""

from __future__ import annotations

import json

import pytest
import torch
from running import BIN, CLASSIFY, call_here, text_settings
from transformers.models.bert.modeling_bert import BertIntermediate


@pytest.mark.slow
def test_a_contradicted_precision_has_its_own_status(files, tiny_model, tmp_path, monkeypatch):
    native = BertIntermediate.forward

    def without_autocast(self, hidden_states):
        """A model with custom code can do this: its feed-forward layers turn autocast off."""
        with torch.autocast("cpu", enabled=False):
            return native(self, hidden_states.float())

    monkeypatch.setattr(BertIntermediate, "forward", without_autocast)
    folder = tmp_path / "run"
    words = [*text_settings(files, tiny_model, folder), "--mixed_precision", "bf16"]
    done = call_here(CLASSIFY, *words)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "contradicted"
    assert "mode bf16 was requested, but" in record["reason"]
    assert "float32 x float32" in record["reason"]
    assert record["precision"]["executed"]["rows"]
    shown = call_here(BIN / "ampft", "report", folder).stdout.splitlines()[-1]
    assert shown.startswith("stopped: what ran was not what was requested")
