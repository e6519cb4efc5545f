"""A tiny run whose test split can decide, and its artifact, shared by the tests of this folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from certified_texts import write_rows
from tiny_text import save_tiny_bert

from ampft.cli import main
from ampft.export import ExportRequest, export_run

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="session")
def certified_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("certified")
    sizes = {"train": 320, "validation": 40, "test": 320}
    words: list[object] = ["--model_name_or_path", save_tiny_bert(folder / "bert")]
    for seed, (name, n) in enumerate(sizes.items()):
        words += [f"--{name}_file", write_rows(folder / f"{name}.jsonl", n, seed)]
    words += ["--output_dir", folder / "run", "--use_cpu", "--cpu_threads", 1]
    words += ["--num_train_epochs", 3, "--learning_rate", 3e-3, "--max_seq_length", 40]
    assert main(["train", *map(str, words)]) == 0
    return folder / "run"


@pytest.fixture(scope="session")
def faithful_artifact(certified_run, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("artifact") / "onnx"
    export_run(ExportRequest(run=certified_run, format="onnx", precision="fp32", output_dir=target))
    return target


@pytest.fixture
def faults(monkeypatch):
    """The module with the faults that the benchmark plants."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # as where the script is started
    module = importlib.import_module("artifact_faults")
    for name in set(sys.modules) - before:
        if (BENCHMARKS / f"{name}.py").exists():
            monkeypatch.delitem(sys.modules, name)
    return module
