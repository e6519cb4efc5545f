"""A tiny run whose test split can decide, and its artifact, shared by the tests of this folder."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_text import LABELS, save_tiny_bert, tiny_texts

from ampft.cli import main
from ampft.export.export import ExportRequest, export_run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def write_rows(path: Path, n: int, seed: int) -> Path:
    """Write n texts, a third of them with capitals, in which a word says the label."""
    rng = np.random.default_rng(seed)
    lines = []
    for text in tiny_texts(n, seed=seed)["text"]:
        label = rng.choice(3, p=[0.5, 0.3, 0.2])
        words = f"{text} w{label}"
        words = words.upper() if rng.random() < 1 / 3 else words
        lines.append(json.dumps({"text": words, "label": LABELS[label]}))
    path.write_text("\n".join(lines))
    return path


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
