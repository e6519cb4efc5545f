"""Weights of rows: from the file to the report, the comparison and the estimator."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import sklearn.metrics as sk
from running import BIN, CLASSIFY, Finished, call_here, rows, succeeded, text_settings, write_csv

import ampft

pytestmark = pytest.mark.slow

NAMES = ("first", "second")


@pytest.fixture(scope="module")
def runs(tiny_model, tmp_path_factory) -> list[Finished]:
    """Two rates on the same rows, of which those with wrong labels have the weight 0."""
    files = tmp_path_factory.mktemp("files")
    for seed, (name, count) in enumerate({"train": 160, "validation": 30, "test": 60}.items()):
        table = []
        for index, (text, label) in enumerate(rows(count, seed)):
            is_wrong = name == "train" and index % 2
            table.append((text, "wrong" if is_wrong else label, 0 if is_wrong else 1 + index % 5))
        table[1] = (table[1][0], "wrong", 1)  # a class that counts nothing would be no class
        write_csv(files / f"{name}.csv", table, ("text", "label", "importance"))
    finished = []
    for rate, name in zip((8e-3, 4e-3), NAMES, strict=True):
        folder = tmp_path_factory.mktemp("runs") / name
        settings = text_settings(files, tiny_model, folder)
        weights = ("--weight_column", "importance", "--weighted_metrics", "--learning_rate", rate)
        done = succeeded(call_here(CLASSIFY, *settings, *weights))
        finished.append(Finished(folder, done.stdout, done.stderr))
    return finished


def test_rows_without_weight_teach_nothing(runs):
    for run in runs:
        table = pq.read_table(run.folder / "predictions.parquet").to_pydict()
        assert run.report["accuracy"] > 0.8
        assert table["prediction"].count("wrong") < 6  # half of the training rows have this label
        assert "Rows count by column 'importance': 0 to 5; 79 training rows" in run.stdout


def test_the_report_counts_by_weights(runs):
    table = pq.read_table(runs[0].folder / "predictions.parquet").to_pydict()
    assert table["row_weight"][:3] == [1.0, 1.0, 3.0]
    names = runs[0].record["label_names"]
    pair = table["label"], table["prediction"]
    expected = sk.f1_score(
        *pair, labels=names, average="macro", sample_weight=table["row_weight"], zero_division=0
    )
    assert runs[0].report["macro_f1"] == pytest.approx(expected)
    assert runs[0].record["metrics"]["macro_f1"] == pytest.approx(expected)
    assert runs[0].report["is_weighted"] is True
    assert "Metrics count rows by their weights." in runs[0].stdout


@pytest.mark.full
def test_a_comparison_counts_by_weights(runs):
    folders = [run.folder for run in runs]
    target = folders[0].parent / "compared"
    words = ("--metric", "accuracy", "--output_dir", target)
    succeeded(call_here(BIN / "ampft", "compare", *folders, *words))
    found = json.loads((target / "comparison.json").read_text())
    first, second = (run.record["metrics"]["accuracy"] for run in runs)
    means = [arm["metrics"]["accuracy"]["mean"] for arm in found["arms"]]
    assert means == pytest.approx([first, second])
    verdict = found["arms"][1]["difference"]
    assert verdict["estimate"] == pytest.approx(second - first)


@pytest.mark.full
def test_the_estimator_takes_sample_weight(tiny_model):
    table = rows(120, 0)
    texts = [text for text, _ in table]
    labels = np.array([label for _, label in table])
    wrong = np.arange(120) % 2 == 1
    noisy = np.where(wrong, labels[0], labels)
    classifier = ampft.Classifier(
        str(tiny_model), learning_rate=2e-3, num_train_epochs=20,
        settings={"use_cpu": True, "cpu_threads": 1},
    )  # fmt: skip
    with pytest.raises(ValueError, match="sample_weight has the shape"):
        classifier.fit(texts, labels, sample_weight=[1.0])
    plain = classifier.fit(texts, noisy).score(texts, labels)
    weights = np.where(wrong, 0.0, 3.0)
    assert classifier.fit(texts, noisy, sample_weight=weights).score(texts, labels) > plain + 0.2
    assert classifier.run_.record.arguments["weight_column"] == "weight"


def test_weights_and_promises_do_not_mix(tiny_model, tmp_path):
    words = ("--weight_column", "w", "--weighted_metrics", "--calibrate")
    done = call_here(CLASSIFY, *text_settings(tmp_path, tiny_model, tmp_path / "run"), *words)
    assert done.returncode == 2
    assert "--weighted_metrics and --calibrate: temperatures" in done.stderr
    done = call_here(
        CLASSIFY, *text_settings(tmp_path, tiny_model, tmp_path / "run"), "--weighted_metrics"
    )
    assert done.returncode == 2
    assert "--weight_column" in done.stderr
    assert not (tmp_path / "run").exists()
