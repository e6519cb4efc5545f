"""The local metric of `evaluate`: offline, by batches, equal to the report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import datasets
import evaluate
import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, pipeline

from ampft.integrations.evaluate_metric import metric_path
from ampft.tasks.single_label import Predictions, classification_report


@pytest.fixture
def metric(tmp_path: Path) -> evaluate.Metric:
    return evaluate.load(metric_path(), cache_dir=str(tmp_path))


def make(n: int = 50, classes: int = 4) -> Predictions:
    rng = np.random.default_rng(3)
    probabilities = rng.dirichlet(np.ones(classes), n).astype(np.float32)
    names = tuple(f"class {i}" for i in range(classes))
    # the last class is absent
    return Predictions(np.arange(n), rng.integers(0, classes - 1, n), probabilities, names, "test")


def test_equals_the_report(metric: evaluate.Metric):
    predictions = make()
    found = metric.compute(
        predictions=predictions.predicted, references=predictions.labels, labels=4
    )
    report = classification_report(predictions).metrics()
    assert found == {name: report[name] for name in found}
    assert {"accuracy", "macro_f1", "weighted_f1", "matthews"} <= set(found)


def test_by_batches_equals_at_once(metric: evaluate.Metric):
    predictions = make()
    for start in range(0, 50, 7):
        rows = slice(start, start + 7)
        metric.add_batch(
            predictions=predictions.predicted[rows], references=predictions.labels[rows]
        )
    batched = metric.compute(labels=list(predictions.label_names))
    at_once = metric.compute(
        predictions=predictions.predicted, references=predictions.labels, labels=4
    )
    assert batched == at_once


def test_without_labels_the_classes_are_those_that_occur(metric: evaluate.Metric):
    found = metric.compute(predictions=[5, 9, 9], references=[5, 9, 5])
    assert found["macro_f1"] == pytest.approx(2 / 3)
    padded = metric.compute(predictions=[5, 9, 9], references=[5, 9, 5], labels=10)
    assert padded["macro_f1"] == pytest.approx(2 / 3 * 2 / 10)
    with pytest.raises(ValueError, match=r"must lie in 0\.\.5, received 5\.\.9"):
        metric.compute(predictions=[5, 9, 9], references=[5, 9, 5], labels=6)


@pytest.mark.slow  # builds and loads a model
def test_the_evaluator_takes_it(metric: evaluate.Metric, tmp_path: Path):
    """`evaluate.evaluator` needs a model's path: it refuses pipelines of transformers 5."""
    words = ["good", "bad", "film", "book"]
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1},
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    texts = [f"{first} {second}" for first in words for second in words]
    data = datasets.Dataset.from_dict({"text": texts, "label": [0, 1, 1, 0] * 4})
    found = evaluate.evaluator("text-classification").compute(
        str(tmp_path), data, metric=metric, label_mapping={"no": 0, "yes": 1}
    )
    classify = pipeline("text-classification", model=str(tmp_path))
    right = [
        int(out["label"] == "yes") == label
        for out, label in zip(classify(texts), data["label"], strict=True)
    ]
    assert found["accuracy"] == np.mean(right)
    assert "macro_f1" in found


OFFLINE = """
import socket, sys
def refuse(*args, **kwargs): raise AssertionError("the network was asked")
socket.socket.connect = socket.getaddrinfo = refuse
import evaluate
from ampft.integrations.evaluate_metric import metric_path
print(evaluate.load(metric_path()).compute(predictions=[0, 1], references=[0, 0])["accuracy"])
"""


@pytest.mark.full
@pytest.mark.slow  # importing evaluate takes five seconds and more
def test_offline_with_empty_caches(tmp_path: Path):
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", OFFLINE],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0.5\n"
