"""A tiny encoder, tiny files, and the runs that several tests check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hub_stand_in import Hub, running_hub
from running import (
    BIN,
    CANARIES,
    CLASSIFY,
    Finished,
    call,
    rows,
    succeeded,
    text_settings,
    write_csv,
)
from word_tokenizer import save_tokenizer, tiny_config

# The command line overrides the learning rate and the padding.
CONFIG = """
model_name_or_path: {model}
train_file: {files}/train.csv
validation_file: {files}/validation.csv
learning_rate: 1e-9
padding: true
warmup_ratio: 0.2
num_train_epochs: 12
early_stopping_patience: 1
metric_for_best_model: macro_f1
cpu_threads: 1
use_cpu: true
"""


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Path:
    """A folder with train.csv, validation.csv and test.csv."""
    folder = tmp_path_factory.mktemp("files")
    for seed, (name, count) in enumerate({"train": 140, "validation": 30, "test": 45}.items()):
        write_csv(folder / f"{name}.csv", rows(count, seed), ("text", "label"))
    return folder


@pytest.fixture
def hub(monkeypatch) -> Iterator[Hub]:
    """A hub on this machine, to which runs in this process push."""
    from huggingface_hub import constants

    from ampft.hub import go_offline_if_unreachable

    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        go_offline_if_unreachable.cache_clear()
        yield hub
    go_offline_if_unreachable.cache_clear()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """The folder of a saved two-layer BERT with random weights and no head."""
    import torch
    from transformers import BertModel

    folder = tmp_path_factory.mktemp("tiny-bert")
    torch.manual_seed(0)
    BertModel(tiny_config(save_tokenizer(folder))).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def run_once(tmp_path_factory) -> Callable[..., Finished]:
    """Return a function that starts a run unless another worker of this session has done so.

    It is called with the name of a folder and a function that trains into that folder.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of the folders of all workers

    def run(name: str, start: Callable[[Path], subprocess.CompletedProcess[str]]) -> Finished:
        folder, printed = root / name, root / f"{name}.json"
        with FileLock(root / f"{name}.lock"):
            if not printed.exists():
                done = succeeded(start(folder))
                printed.write_text(json.dumps([done.stdout, done.stderr]))
            return Finished(folder, *json.loads(printed.read_text()))

    return run


@pytest.fixture(scope="session")
def fp16_run(files, tiny_model, run_once) -> Finished:
    """A run in fp16 through accelerate launch, with all outputs."""
    return run_once(
        "fp16",
        lambda folder: call(
            BIN / "accelerate", "launch", CLASSIFY, "--mixed_precision", "fp16",
            *text_settings(files, tiny_model, folder),
            "--with_tracking", "--history_csv", "--baseline",
            warm=False, **CANARIES,
        ),
    )  # fmt: skip


@pytest.fixture(scope="session")
def fp32_run(files, tiny_model, run_once, tmp_path_factory) -> Finished:
    """A run from a configuration file: fp32, no test file, stopped early."""
    config = tmp_path_factory.mktemp("config") / "run.yaml"
    config.write_text(CONFIG.format(files=files, model=tiny_model), encoding="utf-8")
    return run_once(
        "fp32",
        lambda folder: call(
            sys.executable, CLASSIFY, "--config", config, "--learning_rate", "8e-3",
            "--output_dir", folder, "--no-padding", warm=False,
        ),
    )  # fmt: skip
