"""Several labels per text: from the file to the report, `ampft predict` and a pipeline."""

from __future__ import annotations

import csv
import io
import re

import pyarrow.parquet as pq
import pytest
from running import (
    BIN,
    CLASSIFY,
    WORDS,
    Finished,
    call_here,
    printed,
    rows,
    succeeded,
    text_settings,
    write_csv,
)
from test_saved_model import FLOAT32_TOLERANCE

from ampft.decision import Contract

pytestmark = pytest.mark.slow


def labelled(count: int, seed: int) -> list[tuple[str, str]]:
    """Return texts with the words of none, one or two classes, and those classes."""
    names = list(WORDS)
    table = []
    for index, (text, label) in enumerate(rows(count, seed)):
        labels = [label] if index % 3 else [label, names[(names.index(label) + 1) % len(names)]]
        words = " ".join(WORDS[name][index % len(WORDS[name])] for name in labels[1:])
        table.append((f"{text} {words}".strip(), "|".join(labels)))
    return table


@pytest.fixture(scope="module")
def run(tiny_model, tmp_path_factory) -> Finished:
    files = tmp_path_factory.mktemp("files")
    for seed, (name, count) in enumerate({"train": 140, "validation": 30, "test": 45}.items()):
        write_csv(files / f"{name}.csv", labelled(count, seed), ("text", "labels"))
    folder = tmp_path_factory.mktemp("runs") / "multi-label"
    done = succeeded(
        call_here(
            CLASSIFY, "--task", "multi-label",
            "--label_separator", "|", "--threshold", 0.4, "--class_weights", "balanced",
            "--baseline", *text_settings(files, tiny_model, folder),
        )
    )  # fmt: skip
    return Finished(folder, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def predictions(run):
    return pq.read_table(run.folder / "predictions.parquet").to_pydict()


def test_it_learns_and_reports(run):
    report = run.report
    assert report["micro_f1"] > 0.85
    for name in ("macro_f1", "samples_f1", "subset_accuracy", "hamming_loss"):
        assert 0 <= report[name] <= 1
    assert f"micro F1 {report['micro_f1']:.4f}" in run.stdout.splitlines()[-1]
    methods = {each["name"]: each for each in run.record["simple_methods"]}
    assert methods["TF-IDF + regression"]["metrics"]["micro_f1"] > 0.8
    assert methods["TF-IDF + regression"]["difference"]["cases"] > 2
    assert "answer  " in run.stdout
    assert run.record["metrics"]["macro_average_precision"] > 0.9
    assert run.record["best"]["metric"] == "micro_f1"


def test_the_card_calls_the_pipeline_for_all_labels(run):
    card = (run.folder / "README.md").read_text(encoding="utf-8")
    assert 'classify("a text", top_k=None, truncation=True)' in card
    assert "micro average" in card


def test_a_pipeline_of_transformers_gives_the_same_probabilities(run, predictions):
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(run.folder), device="cpu")
    found = classify(predictions["text"], top_k=None)
    names = run.record["label_names"]
    for scores, expected in zip(found, predictions["probabilities"], strict=True):
        by_name = {score["label"]: score["score"] for score in scores}
        own = [by_name[name] for name in names]
        assert own == pytest.approx(expected, abs=FLOAT32_TOLERANCE)


def test_predict_writes_labels_as_the_training_file_has_them(run, predictions, tmp_path):
    texts = write_csv(tmp_path / "new.csv", [(text,) for text in predictions["text"]], ["text"])
    done = succeeded(call_here(BIN / "ampft", "predict", "--model", run.folder, texts))
    table = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["prediction"] for row in table] == [
        "|".join(names) for names in predictions["prediction"]
    ]


# Tuned thresholds, and the focal loss


@pytest.fixture(scope="module")
def tuned(tiny_model, tmp_path_factory) -> Finished:
    files = tmp_path_factory.mktemp("files")
    for seed, (name, count) in enumerate({"train": 140, "validation": 30, "test": 45}.items()):
        write_csv(files / f"{name}.csv", labelled(count, seed), ("text", "labels"))
    folder = tmp_path_factory.mktemp("runs") / "tuned"
    done = succeeded(
        call_here(
            CLASSIFY, *text_settings(files, tiny_model, folder), "--task", "multi-label",
            "--label_separator", "|", "--tune_thresholds", "--focal_gamma", 2,
            "--learning_rate", 2e-3, "--num_train_epochs", 2,
        )
    )  # fmt: skip
    return Finished(folder, done.stdout, done.stderr)


def test_the_card_moves_thresholds_into_a_copy_that_a_pipeline_reads(tuned, tmp_path, monkeypatch):
    from transformers import pipeline

    monkeypatch.chdir(tmp_path)
    card = (tuned.folder / "README.md").read_text()
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", card, re.DOTALL) if "folded" in c]
    exec(code.replace("path/to/this/folder", str(tuned.folder)), {})
    rows = pq.read_table(tuned.folder / "predictions.parquet").to_pydict()

    def agreeing(folder) -> int:
        answers = pipeline("text-classification", model=str(folder), device="cpu", top_k=None)(
            rows["text"]
        )
        found = [{each["label"] for each in a if each["score"] >= 0.5} for a in answers]
        return sum(a == {*b} for a, b in zip(found, rows["prediction"], strict=True))

    assert agreeing("folded") == len(rows["text"])
    assert agreeing(tuned.folder) < len(rows["text"]), "thresholds of 0.5 agree already"


def test_tuned_thresholds_are_saved_reported_and_used(tuned, tmp_path):
    thresholds = list(Contract.read(tuned.folder).rule.decisions.thresholds)
    assert tuned.report["label_thresholds"] == thresholds
    assert len(set(thresholds)) == 3
    assert 0.5 not in thresholds
    card = (tuned.folder / "README.md").read_text()
    assert f"{thresholds[0]:.3f}" in card
    assert f"{thresholds[0]:.3f}" in tuned.stdout
    rows = pq.read_table(tuned.folder / "predictions.parquet").to_pydict()
    decided = [[p >= t for p, t in zip(row, thresholds, strict=True)]
               for row in rows["probabilities"]]  # fmt: skip
    names = tuned.record["label_names"]
    assert rows["prediction"] == [
        [name for name, has in zip(names, row, strict=True) if has] for row in decided
    ]
    texts = write_csv(tmp_path / "new.csv", [(text,) for text in rows["text"]], ["text"])
    done = succeeded(call_here(BIN / "ampft", "predict", "--model", tuned.folder, texts))
    table = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["prediction"] for row in table] == ["|".join(p) for p in rows["prediction"]]
    # Tuned on the validation split: the metrics of an epoch there are those with its thresholds.
    assert tuned.record["validations"][-1]["metrics"]["micro_f1"] > 0.3


def test_an_audit_confirms_the_thresholds(tuned):
    audit = succeeded(call_here(BIN / "ampft", "audit", tuned.folder, "--use_cpu"))
    assert "bit for bit" in printed(audit.stdout, "predicted")
    assert printed(audit.stdout, "verdict").startswith("confirmed")
