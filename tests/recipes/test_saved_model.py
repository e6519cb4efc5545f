"""Uses of the folder of a finished run: pipelines, evaluators, `ampft predict`."""

from __future__ import annotations

import csv
import io
import os

import pyarrow.parquet as pq
import pytest
from running import BIN, CLASSIFY, call, call_here, succeeded, text_settings

from ampft.fast.packing.verification import PackingError
from ampft.runs.finished import FinishedRun

pytestmark = pytest.mark.slow

# Of a float32 probability, for other batch shapes and padded texts.
FLOAT32_TOLERANCE = 1e-5
SIX_DECIMALS = 1e-6


def predictions_of(run):
    return pq.read_table(run.folder / "predictions.parquet").to_pydict()


@pytest.fixture(scope="module")
def predictions(fp16_run):
    return predictions_of(fp16_run)


def test_a_pipeline_of_transformers_gives_the_same_predictions(fp32_run):
    from transformers import pipeline

    expected = predictions_of(fp32_run)
    classify = pipeline("text-classification", model=str(fp32_run.folder), device="cpu")
    found = classify(expected["text"])
    assert [row["label"] for row in found] == expected["prediction"]
    scores = [row["score"] for row in found]
    assert scores == pytest.approx(expected["confidence"], abs=FLOAT32_TOLERANCE)


def test_a_pipeline_that_truncates_does_so_where_the_training_did(files, tiny_model, tmp_path):
    from transformers import AutoTokenizer, pipeline

    folder = tmp_path / "run"
    words = text_settings(files, tiny_model, folder)
    succeeded(call_here(CLASSIFY, *words, "--max_seq_length", 5, "--num_train_epochs", 1))
    assert AutoTokenizer.from_pretrained(folder).model_max_length == 5
    expected = pq.read_table(folder / "predictions.parquet").to_pydict()
    classify = pipeline("text-classification", model=str(folder), device="cpu")
    scores = [row["score"] for row in classify(expected["text"], truncation=True)]
    assert scores == pytest.approx(expected["confidence"], abs=FLOAT32_TOLERANCE)
    longer = [row["score"] for row in classify(expected["text"], truncation=True, max_length=16)]
    assert longer != pytest.approx(expected["confidence"], abs=FLOAT32_TOLERANCE)  # control


def test_every_file_of_a_run_has_the_permissions_of_the_umask(fp16_run):
    mask = os.umask(0o022)
    os.umask(mask)
    files = [path for path in fp16_run.folder.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}


def test_the_evaluator_of_evaluate_gives_the_same_accuracy(fp32_run):
    import datasets
    import evaluate

    from ampft.integrations.evaluate_metric import metric_path

    expected = predictions_of(fp32_run)
    names = fp32_run.record["label_names"]
    found = evaluate.evaluator("text-classification").compute(
        model_or_pipeline=str(fp32_run.folder),
        data=datasets.Dataset.from_dict({"text": expected["text"], "label": expected["label_id"]}),
        metric=evaluate.load(metric_path()),
        label_mapping={name: index for index, name in enumerate(names)},
        device=-1,
    )
    assert found["accuracy"] == pytest.approx(fp32_run.report["accuracy"])


@pytest.fixture(scope="module")
def predicted(fp16_run, files) -> str:
    """The standard output of `ampft predict` on the test file."""
    done = succeeded(call(BIN / "ampft", "predict", "--model", fp16_run.folder, files / "test.csv"))
    assert done.stderr.startswith("labels from column 'label'\nclassification report, file, 45")
    return done.stdout


def test_predict_agrees_with_the_run(predicted, predictions):
    rows = list(csv.DictReader(io.StringIO(predicted)))
    assert list(rows[0]) == ["text", "label", "prediction", "confidence"]
    assert [row["text"] for row in rows] == predictions["text"]
    # Float32 instead of emulated fp16 may change an example between two classes.
    changed = sum(
        row["prediction"] != label
        for row, label in zip(rows, predictions["prediction"], strict=True)
    )
    assert changed <= 1
    for row in rows:
        assert 1 / 3 <= float(row["confidence"]) <= 1


def test_predict_in_the_precision_of_the_training_gives_its_probabilities(
    fp16_run, files, predictions, tmp_path
):
    target = tmp_path / "predicted.csv"
    done = succeeded(
        call_here(
            BIN / "ampft", "predict", "--model", fp16_run.folder, "--mixed_precision", "fp16",
            "--output_file", target, "--batch_size", 64, files / "test.csv",
        )
    )  # fmt: skip
    assert done.stdout.startswith("labels from column 'label'")
    assert "classification report, file, 45 examples" in done.stdout
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] for row in rows] == predictions["prediction"]
    confidence = [float(row["confidence"]) for row in rows]
    assert confidence == pytest.approx(predictions["confidence"], abs=SIX_DECIMALS)


def test_report_prints_the_run_again(fp16_run):
    done = succeeded(call_here(BIN / "ampft", "report", fp16_run.folder))
    assert (fp16_run.folder / "report.txt").read_text().strip() in done.stdout
    assert fp16_run.record["precision"]["summary"] in done.stdout
    assert f"accuracy {fp16_run.report['accuracy']:.4f}" in done.stdout.splitlines()[-1]
    assert done.stderr == ""


def test_predict_is_padded_where_logits_without_padding_differed(
    files, tiny_model, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "ampft.fast.packing.choice.verify_packing", lambda model, batch: PackingError(0.1, 0.0)
    )
    words = text_settings(files, tiny_model, tmp_path / "run")
    succeeded(call_here(CLASSIFY, *words, "--num_train_epochs", 1))
    run = FinishedRun(tmp_path / "run")
    assert run.record.model.padding_free is False
    monkeypatch.delattr("ampft.fast.packing.choice.install_packing")  # calling it would fail
    assert len(run.predict(["the old apple", "iron"])) == 2
