"""Ordered labels: from the file to the report, other clients, errors, a comparison, an artifact."""

from __future__ import annotations

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import sklearn.metrics as sk
from running import (
    BIN,
    CLASSIFY,
    Finished,
    call_here,
    succeeded,
    text_settings,
    trained_in_two_modes,
)

import ampft

pytestmark = pytest.mark.slow

NAMES = ("poor", "fair", "good", "best")
FLAGS = ("--task", "ordinal", "--label_order", ",".join(NAMES))


def rated(count: int, seed: int) -> list[tuple[str, str]]:
    """Return texts whose number of words of the first half says their rank."""
    random = np.random.default_rng(seed)
    table = []
    for index in range(count):
        rank = index % 4
        words = [*random.integers(0, 20, 2 * rank), *random.integers(20, 40, 6 - 2 * rank)]
        text = " ".join(f"w{word}" for word in random.permutation(words))
        table.append((text, NAMES[rank]))
    return table


@pytest.fixture(scope="module")
def runs(tiny_bert, tmp_path_factory) -> list[Finished]:
    return trained_in_two_modes(tiny_bert, tmp_path_factory, rated, ("text", "label"), *FLAGS)


@pytest.fixture(scope="module")
def run(runs) -> Finished:
    return runs[0]


def ranks_of(run) -> tuple[list[int], list[int]]:
    table = pq.read_table(run.folder / "predictions.parquet").to_pydict()
    return tuple([NAMES.index(name) for name in table[n]] for n in ("label", "prediction"))


def test_it_learns_and_reports(runs):
    for run in runs:
        labels, predictions = ranks_of(run)
        kappa = sk.cohen_kappa_score(labels, predictions, weights="quadratic")
        assert run.report["quadratic_kappa"] == pytest.approx(kappa)
        assert kappa > 0.6
        mae = sk.mean_absolute_error(labels, predictions)
        assert run.record["metrics"]["mae"] == pytest.approx(mae)
        assert run.record["label_names"] == list(NAMES)
        assert run.record["best"]["metric"] == "quadratic_kappa"
        assert "mean absolute error in ranks" in run.stdout
        methods = {each["name"]: each for each in run.record["simple_methods"]}
        assert methods["TF-IDF + regression"]["metrics"]["mae"] < 1
        served = run.record["served_back"]["clients"]
        assert [each["asked"] == each["equal"] > 0 for each in served] == [True, True]


def test_a_pipeline_of_transformers_gives_the_same_probabilities(run):
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(run.folder), device="cpu", top_k=None)
    table = pq.read_table(run.folder / "predictions.parquet").to_pydict()
    for row in range(10):
        (found,) = classify([table["text"][row]])
        scores = {each["label"]: each["score"] for each in found}
        expected = dict(zip(NAMES, table["probabilities"][row], strict=True))
        assert scores == pytest.approx(expected, abs=1e-5)
        assert found[0]["label"] == table["prediction"][row]


def test_predict_scores_distances(run, tmp_path):
    file, target = run.record["arguments"]["test_file"], tmp_path / "out.csv"
    command = (BIN / "ampft", "predict", "--model", run.folder, file, "--output_file", target)
    done = succeeded(call_here(*command, "--all_probabilities"))
    found = list(csv.DictReader(target.read_text().splitlines()))
    assert [NAMES.index(row["prediction"]) for row in found] == ranks_of(run)[1]
    assert f"mean absolute error in ranks {run.report['mae']:.4f}" in done.stdout
    assert list(found[0])[-4:] == [f"probability_{name}" for name in NAMES]


def test_an_order_that_is_not_known_stops_before_the_run(run, tiny_bert, tmp_path):
    words = text_settings(tmp_path, tiny_bert, tmp_path / "new")
    for name in ("train", "validation", "test"):
        words[words.index(f"--{name}_file") + 1] = str(run.record["arguments"][f"{name}_file"])
    done = call_here(CLASSIFY, *words, "--task", "ordinal")
    assert done.returncode == 2
    assert "Add --label_order" in done.stderr
    assert not (tmp_path / "new").exists()


def test_precisions_are_compared_by_kappa_with_an_interval(runs, tmp_path):
    target = tmp_path / "compared"
    folders = [run.folder for run in runs]
    succeeded(call_here(BIN / "ampft", "compare", *folders, "--output_dir", target))
    found = json.loads((target / "comparison.json").read_text())
    assert found["metric"] == "quadratic_kappa"
    (difference,) = [arm["difference"] for arm in found["arms"] if arm["difference"]]
    expected = runs[1].report["quadratic_kappa"] - runs[0].report["quadratic_kappa"]
    assert difference["estimate"] == pytest.approx(expected, abs=1e-9)
    low, high = difference["interval95"]
    assert low <= expected <= high


@pytest.mark.full
def test_errors_audit_and_artifact(run, tmp_path):
    done = succeeded(call_here(BIN / "ampft", "errors", run.folder))
    assert "quadratic weighted kappa" in done.stdout
    page = (run.folder / "errors.html").read_text()
    assert "expected distance from the label, in ranks" in page
    target = tmp_path / "artifact"
    words = ("--format", "onnx", "--output_dir", target, "--no_measure")
    assert "passed" in succeeded(call_here(BIN / "ampft", "export", run.folder, *words)).stdout
    assert "confirmed" in succeeded(call_here(BIN / "ampft", "audit", run.folder)).stdout


@pytest.mark.full
@pytest.mark.parametrize("numbers", [True, False])
def test_the_estimator_takes_the_task_as_a_setting(tiny_bert, numbers):
    table = rated(80, 3)
    texts, names = [text for text, _ in table], [name for _, name in table]
    labels = np.array([NAMES.index(name) for name in names]) if numbers else np.array(names)
    more = {} if numbers else {"label_order": ",".join(NAMES)}
    classifier = ampft.Classifier(
        str(tiny_bert), learning_rate=8e-3, num_train_epochs=6,
        settings={"use_cpu": True, "cpu_threads": 1, "task": "ordinal", **more},
    )  # fmt: skip
    found = classifier.fit(texts, labels).predict(texts)
    assert found.dtype == labels.dtype
    assert classifier.run_.record.arguments["task"] == "ordinal"
    assert classifier.score(texts, labels) > 0.4
    shares = classifier.predict_proba(texts)
    assert (classifier.classes_[shares.argmax(1)] == found).all()
