"""Columns beside the texts: from the file to the report, other clients and the estimator."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from running import BIN, CLASSIFY, Finished, call_here, succeeded, text_settings, write_csv

import ampft
from ampft.decision import Contract

pytestmark = pytest.mark.slow

FLAGS = ("--feature_columns", "zone,age")


def table_of(count: int, seed: int) -> list[tuple[str, str, object, str]]:
    """Return texts that say nothing, a zone that decides the label, and an age with gaps."""
    random = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        zone = ("w1", "w2")[index % 2]
        text = " ".join(f"w{word}" for word in random.integers(5, 40, 6))
        rows.append((text, zone, "" if index % 5 == 0 else float(index), ("bee", "ant")[index % 2]))
    return rows


@pytest.fixture(scope="module")
def run(tiny_bert, tmp_path_factory) -> Finished:
    files, folder = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("runs") / "run"
    for seed, (name, count) in enumerate({"train": 120, "validation": 20, "test": 40}.items()):
        write_csv(files / f"{name}.csv", table_of(count, seed), ("text", "zone", "age", "label"))
    done = succeeded(call_here(CLASSIFY, *text_settings(files, tiny_bert, folder), *FLAGS))
    return Finished(folder, done.stdout, done.stderr)


def shown(run):
    return pq.read_table(run.folder / "predictions.parquet").to_pydict()


def test_the_columns_decide_and_are_shown(run):
    assert run.report["accuracy"] > 0.9  # 0.5 from the texts
    texts = shown(run)["text"]
    assert texts[0].startswith("zone: w1. age: unknown. w")
    assert texts[1].startswith("zone: w2. age: 1. w")
    contract = Contract.read(run.folder)
    assert contract.feature_columns == ("zone", "age")
    served = run.record["served_back"]
    assert [each["asked"] == each["equal"] > 0 for each in served["clients"]] == [True, True]
    assert served["clients"][1]["source"] == "test.csv"  # as ampft predict reads it again
    assert "transformers.pipeline was given texts with their columns" in " ".join(served["notes"])
    assert "'zone: ZONE. age: AGE. TEXT'" in run.stdout
    card = (run.folder / "README.md").read_text()
    assert 'classify("zone: ZONE. age: AGE. a text"' in card
    assert "a missing value is `unknown`" in card


def test_a_pipeline_gives_the_same_only_for_the_text_of_the_card(run):
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(run.folder), device="cpu", top_k=None)
    table, moved = shown(run), 0
    for text, expected in list(zip(table["text"], table["confidence"], strict=True))[:10]:
        assert classify(text)[0][0]["score"] == pytest.approx(expected, abs=1e-4)
        bare = text.split(". ", 2)[2]
        moved += abs(classify(bare)[0][0]["score"] - expected) > 1e-3
    assert moved  # what the checks below guard against


def test_predict_reads_the_columns_and_refuses_texts_without_them(run, tmp_path):
    file, target = run.record["arguments"]["test_file"], tmp_path / "out.csv"
    command = (BIN / "ampft", "predict", "--model", run.folder)
    succeeded(call_here(*command, file, "--output_file", target))
    found = list(csv.DictReader(target.read_text().splitlines()))
    assert [row["prediction"] for row in found] == shown(run)["prediction"]
    assert found[0]["text"].startswith("w")  # the user's own columns
    write_csv(tmp_path / "bare.csv", [("w5 w6", "w1")], ("text", "zone"))
    done = call_here(*command, tmp_path / "bare.csv")
    assert done.returncode == 2
    assert "has no column 'age'" in done.stderr
    done = call_here(*command, "--text", "w5 w6")
    assert done.returncode == 2
    assert "write them before each text: zone: ZONE. age: AGE. TEXT" in done.stderr
    assert "ant" in succeeded(call_here(*command, "--text", "zone: w2. age: 3. w5 w6")).stdout


def test_python_and_a_server_say_rows_as_the_training_did(run):
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForSequenceClassification

    table = shown(run)
    cells = pd.read_csv(run.record["arguments"]["test_file"]).to_dict("records")
    found = ampft.FinishedRun(run.folder).predict(cells)
    assert found["prediction"].tolist() == table["prediction"]
    assert found["confidence"].tolist() == pytest.approx(table["confidence"], abs=1e-4)
    model = AutoModelForSequenceClassification.from_pretrained(run.folder).eval()

    def logits(arrays):
        with torch.no_grad():
            return model(**{n: torch.from_numpy(a) for n, a in arrays.items()}).logits.numpy()

    contract = Contract.read(run.folder)
    tokenizer = Tokenizer.from_file(str(run.folder / "tokenizer.json"))
    answers = contract.answer(cells, tokenizer, logits)
    assert answers["confidence"] == pytest.approx(table["confidence"], abs=1e-4)
    assert contract.answer(table["text"], tokenizer, logits) == answers
    with pytest.raises(ValueError, match="zone: ZONE"):
        contract.answer(["w5 w6"], tokenizer, logits)


def test_windows_would_lack_them(run, tiny_bert, tmp_path):
    words = text_settings(tmp_path, tiny_bert, tmp_path / "new")
    for name in ("train", "validation", "test"):
        place = words.index(f"--{name}_file")
        words[place + 1] = str(run.record["arguments"][f"{name}_file"])
    done = call_here(CLASSIFY, *words, *FLAGS, "--long_text", "windows")
    assert done.returncode == 2
    assert "only the first window has them" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.full
def test_errors_and_artifact_use_them(run, tmp_path):
    done = succeeded(call_here(BIN / "ampft", "errors", run.folder))
    assert "zone: w" in done.stdout or run.report["accuracy"] == 1
    target = tmp_path / "artifact"
    words = ("--format", "onnx", "--output_dir", target, "--no_measure")
    assert "passed" in succeeded(call_here(BIN / "ampft", "export", run.folder, *words)).stdout
    assert json.loads((target / "decision.json").read_text())["feature_columns"] == ["zone", "age"]
    file = run.record["arguments"]["test_file"]
    command = (BIN / "ampft", "predict", "--model", target, file, "--output_file")
    succeeded(call_here(*command, tmp_path / "out.csv"))
    found = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["prediction"] for row in found] == shown(run)["prediction"]
    assert "confirmed" in succeeded(call_here(BIN / "ampft", "audit", run.folder)).stdout


@pytest.mark.full
def test_the_estimator_takes_a_table(tiny_bert):
    frame = pd.DataFrame(table_of(60, 0), columns=["body", "zone", "age", "label"])
    classifier = ampft.Classifier(
        str(tiny_bert), learning_rate=8e-3, num_train_epochs=6,
        settings={"use_cpu": True, "cpu_threads": 1, "feature_columns": "zone,age"},
    )  # fmt: skip
    X = frame[["zone", "body", "age"]].assign(age=pd.to_numeric(frame["age"]))
    classifier.fit(X, frame["label"])
    assert classifier.score(X, frame["label"]) > 0.9
    assert classifier.predict_proba(X[:0]).shape == (0, 2)
    for wrong in (frame["body"], frame[["body", "zone"]], frame[["body", "zone", "age", "label"]]):
        with pytest.raises(ValueError, match="X: "):
            classifier.predict(wrong)
