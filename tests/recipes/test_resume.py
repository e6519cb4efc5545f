"""A run that is interrupted and continued gives the same bits as one that is not."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from conftest import tiny_config
from running import CLASSIFY, call_here, succeeded, text_settings
from word_tokenizer import save_tokenizer

from ampft.runs.run import Run

TIMES = ("seconds", "examples_per_second", "tokens_per_second", "waiting_share", "memory_mib")
EVERY_4 = ("--checkpointing_steps", "4")
LATEST = ("--resume_from_checkpoint", "latest")


@pytest.fixture(scope="session")
def model_with_dropout(tmp_path_factory) -> Path:
    """The folder of a BERT that draws dropout masks, so that every random state matters."""
    from transformers import BertModel

    folder = tmp_path_factory.mktemp("bert-with-dropout")
    config = tiny_config(save_tokenizer(folder))
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.2
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    return folder


@contextlib.contextmanager
def interrupted_in(step: int | None) -> Iterator[None]:
    """Interrupt a run when it is about to record the optimizer step `step`, counted from 1."""
    record = Run.record

    def record_or_stop(self, outcome):
        if step is not None and self.steps + 1 == step:
            raise KeyboardInterrupt
        record(self, outcome)

    with patch.object(Run, "record", record_or_stop):
        yield


@pytest.fixture
def train(files, model_with_dropout):
    """Return a function that trains into a folder: 2 epochs of 9 steps."""

    def run(folder: Path, *more: object, stop_in: int | None = None):
        settings = text_settings(files, model_with_dropout, folder)
        with interrupted_in(stop_in):
            done = call_here(CLASSIFY, *settings, "--num_train_epochs", "2", *map(str, more))
        if stop_in is None:
            succeeded(done)
        else:
            assert done.returncode == 130, done.stderr
        return done

    return run


def evidence(folder: Path) -> dict[str, object]:
    """Return what must not depend on interruptions: weights, steps, predictions, metrics."""
    record = json.loads((folder / "run.json").read_text())
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return {
        "weights": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "predictions": hashlib.sha256((folder / "predictions.parquet").read_bytes()).hexdigest(),
        "history": [{k: v for k, v in row.items() if k not in TIMES} for row in rows],
        **{
            name: record[name]
            for name in (
                "status", "steps", "example_ids_sha256", "random_state_sha256", "validations",
                "best", "metrics", "label_names", "started",
            )
            if name != "started"
        },
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["fp32", "bf16", "fp16"])
def test_interrupted_three_times_in_one_epoch(train, tmp_path, mode):
    mode_flags = ("--mixed_precision", mode)
    train(tmp_path / "straight", *mode_flags)
    folder = tmp_path / "interrupted"
    train(folder, *mode_flags, "--checkpointing_steps", "1", stop_in=3)
    for step in (5, 6, 8, 12):
        train(folder, *mode_flags, "--checkpointing_steps", "1", *LATEST, stop_in=step)
    train(folder, *mode_flags, "--checkpointing_steps", "1", *LATEST)
    assert evidence(folder) == evidence(tmp_path / "straight")
