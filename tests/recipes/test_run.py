"""One run in emulated fp16 through `accelerate launch`: its output and its files."""

from __future__ import annotations

import csv
import hashlib
import re
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from running import CANARIES, WORDS, own_lines, printed
from sklearn.metrics import accuracy_score, classification_report, confusion_matrix

pytestmark = pytest.mark.slow

LABELS = tuple(sorted(WORDS))
SHA256 = re.compile(r"[0-9a-f]{64}")


# Output


def test_the_plan_shows_the_resolved_settings(fp16_run):
    out = fp16_run.stdout
    assert printed(out, "device") == "CPU, 1 thread"
    assert printed(out, "precision").startswith("fp16, emulated: ")
    assert re.search(r"tiny-bert\d*, 0\.\d+ M float32 weights", printed(out, "model"))
    assert "train 140, validation 30, test 45; 3 classes" in printed(out, "data")
    assert printed(out, "steps") == (
        "36 = 4 epochs x 9; effective batch 16 = 1 process x 2 micro-batches x 8 "
        "learning rate 0.008, linear"
    )


def test_the_executed_dtypes_are_printed(fp16_run):
    ran = printed(fp16_run.stdout, "ran")
    assert "projections float16 x float16 -> float16 (float32 sums)" in ran
    assert "attention float16 x float16 -> float16 (float32 sums)" in ran
    assert ran.endswith("emulated; weights, gradients, optimizer state float32")


def test_every_epoch_is_printed(fp16_run):
    epochs = re.findall(r"^epoch (\d) +validation accuracy", fp16_run.stdout, re.MULTILINE)
    assert epochs == ["1", "2", "3", "4"]


def test_the_printed_report_equals_the_file(fp16_run):
    report = (fp16_run.folder / "report.txt").read_text()
    assert report.strip() in fp16_run.stdout
    assert "\nclassification report, test, 45 examples\n" in fp16_run.stdout


def test_the_closing_line(fp16_run):
    last = fp16_run.stdout.splitlines()[-1]
    assert re.fullmatch(
        r"result     accuracy [01]\.\d{4}, macro F1 [01]\.\d{4}, \d+ s, peak memory \d+ MiB, "
        r"\d+ steps? skipped, fp16 emulated",
        last,
    )
    assert "TF-IDF + regression" in fp16_run.stdout
    assert "frozen encoder + regression" in fp16_run.stdout
    assert str(fp16_run.folder) in printed(fp16_run.stdout, "wrote")


def test_output_to_a_file_has_no_progress_bars_and_no_tracebacks(fp16_run):
    for text in (fp16_run.stdout, fp16_run.stderr):
        assert "\r" not in text
        assert "it/s" not in text
        assert "Traceback" not in text
        assert "Warning" not in text
    # Only Accelerate's advice may be on stderr.
    unexpected = [
        line
        for line in own_lines(fp16_run.stderr)
        if not re.match(r"\t`--|The following values were not passed|To avoid this warning", line)
    ]
    assert unexpected == []


# Files


def test_the_files(fp16_run):
    names = {path.name for path in fp16_run.folder.iterdir()}
    assert names >= {
        "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json",
        "report.txt", "report.json", "predictions.parquet", "history.jsonl", "history.csv",
        "run.json", "README.md",
    }  # fmt: skip
    assert not [name for name in names if name.startswith(".")]
    assert set(fp16_run.record["files"]) == names - {"run.json", "ampft"}  # ampft: TensorBoard


def test_the_report_agrees_with_scikit_learn(fp16_run):
    table = pq.read_table(fp16_run.folder / "predictions.parquet").to_pydict()
    truth, predicted = table["label"], table["prediction"]
    report = fp16_run.report
    assert report["accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    matrix = np.array(report["confusion_matrix"])
    assert matrix.sum() == 45
    assert np.array_equal(matrix, confusion_matrix(truth, predicted, labels=LABELS))
    expected = classification_report(
        truth, predicted, labels=LABELS, output_dict=True, zero_division=0
    )
    for name in LABELS:
        actual = next(row for row in per_class(report) if row["label"] == name)
        assert actual["f1"] == pytest.approx(expected[name]["f1-score"])
        assert actual["support"] == expected[name]["support"]


def per_class(report):
    names = report["label_names"]
    return [{"label": name} | row for name, row in zip(names, report["per_class"], strict=True)]


def test_predictions_have_the_texts_of_the_file_in_its_order(fp16_run, files):
    table = pq.read_table(fp16_run.folder / "predictions.parquet").to_pydict()
    with (files / "test.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert table["text"] == [row["text"] for row in rows]
    assert table["label"] == [row["label"] for row in rows]


def test_the_model_learned(fp16_run):
    # The words determine the class, so that only a broken pipeline could fail to learn.
    assert fp16_run.report["accuracy"] > 0.8


def test_the_saved_model_has_the_label_names(fp16_run):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(fp16_run.folder)
    assert config.id2label == dict(enumerate(LABELS))
    assert config.label2id == {name: index for index, name in enumerate(LABELS)}
    assert config.architectures == ["BertForSequenceClassification"]


def test_the_history_has_a_line_per_optimizer_step(fp16_run):
    history = fp16_run.history
    assert [row["step"] for row in history] == list(range(1, 37))
    assert [row["examples"] for row in history] == ([16] * 8 + [12]) * 4
    for row in history:
        assert row["loss_scale"] > 0
        assert isinstance(row["skipped"], bool)
        assert 0 <= row["waiting_share"] <= 1
        assert row["memory_mib"] > 0
        assert row["tokens"] > row["examples"]
    applied = [row for row in history if not row["skipped"]]
    assert max(row["learning_rate"] for row in applied) == pytest.approx(8e-3)


def test_the_history_as_csv(fp16_run):
    with (fp16_run.folder / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in fp16_run.history]


def test_trackers_receive_the_history(fp16_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folders = {path.parent for path in fp16_run.folder.rglob("events.out.tfevents*")}
    scalars: dict[str, list[tuple[int, float]]] = {}
    texts: dict[str, str] = {}
    for folder in folders:
        events = EventAccumulator(str(folder))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            scalars[tag] = [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["tensors"]:
            texts[tag] = events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
    for tag in ("loss", "learning_rate", "loss_scale"):
        steps, values = zip(*scalars[tag], strict=True)
        assert steps == tuple(row["step"] for row in fp16_run.history)
        # Event files hold float32.
        assert values == pytest.approx([row[tag] for row in fp16_run.history], rel=1e-6)
    validations = fp16_run.record["validations"]
    assert len(validations) == 4
    for tag, name in (("accuracy", "accuracy"), ("loss", "log_loss"), ("macro_f1", "macro_f1")):
        expected = [(part["step"], pytest.approx(part["metrics"][name])) for part in validations]
        assert scalars[f"eval/{tag}"] == expected  # the names that transformers' Trainer gives
    assert scalars["test/accuracy"] == [(36, pytest.approx(fp16_run.report["accuracy"]))]
    assert "| macro average |" in texts["report/text_summary"]
    for row in fp16_run.report["confusion_matrix"]:
        assert "| " + " | ".join(map(str, row)) + " |" in texts["confusion_matrix/text_summary"]


# The record


def test_the_reported_precision_ran(fp16_run):
    precision = fp16_run.record["precision"]
    assert precision["requested"] == "fp16"
    assert precision["resolved"]["execution"] == "emulated"
    assert precision["resolved"]["compute_dtype"] == "float16"
    assert precision["resolved"]["storage_dtype"] == "float32"
    assert precision["summary"] in printed(fp16_run.stdout, "ran")
    rows = precision["executed"]["rows"]
    assert {row["kind"] for row in rows} == {"projection", "attention"}
    assert {row["direction"] for row in rows} == {"forward", "backward"}
    for row in rows:
        assert set(row["inputs"]) == {"float16"}
        assert row["count"] > 0
    assert precision["executed"]["is_emulated"] is True
    assert set(precision["executed"]["parameters"]) == {"float32"}


def test_the_record_describes_the_run(fp16_run):
    record = fp16_run.record
    assert record["status"] == "finished"
    assert record["label_names"] == list(LABELS)
    assert record["arguments"]["learning_rate"] == 8e-3
    assert record["arguments"]["seed"] == 42
    assert record["topology"] == {
        "num_processes": 1, "cpu_threads": 1, "device": "cpu", "sharded": False,
        "compiled": None,
    }  # fmt: skip
    assert record["data"]["examples"] == {"train": 140, "validation": 30, "test": 45}
    assert all(SHA256.fullmatch(value) for value in record["data"]["fingerprints"].values())
    assert SHA256.fullmatch(record["model"]["initial_weights_sha256"])
    assert record["model"]["padding_free"] is True
    assert SHA256.fullmatch(record["example_ids_sha256"])
    assert record["steps"]["total"] == 36
    assert record["steps"]["applied"] + record["steps"]["skipped"] == 36
    assert record["metrics"]["accuracy"] == pytest.approx(fp16_run.report["accuracy"])
    assert record["metrics"]["split"] == "test"
    assert record["metrics"]["selected"] is False
    assert record["best"]["metric"] == "accuracy"
    assert 1 <= record["best"]["epoch"] <= 4
    assert record["memory"]["peak"] > 0
    assert record["timings"]["total_seconds"] > record["timings"]["training_seconds"] > 0


def test_the_record_has_the_versions(fp16_run):
    import torch
    import transformers

    versions = fp16_run.record["versions"]
    assert torch.__version__.startswith(versions["torch"])  # a wheel of PyPI omits "+cu130"
    assert versions["transformers"] == transformers.__version__
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "accelerate" in versions
    assert "ampft" in versions


def test_the_hash_of_the_example_ids_is_that_of_the_steps(fp16_run):
    from ampft.data.step_batches import StepBatches

    class Rows:
        weights = np.ones(140)
        lengths = np.ones(140, dtype=np.int64)

    batches = StepBatches(Rows(), effective_batch_size=16, seed=42)  # type: ignore[arg-type]
    digest = hashlib.sha256().digest()
    for epoch in range(4):
        for step in range(9):
            ids = np.sort(batches.effective_ids(epoch, step)).astype("<i8")
            digest = hashlib.sha256(digest + ids.tobytes()).digest()
    assert fp16_run.record["example_ids_sha256"] == digest.hex()


def test_no_secret_reaches_the_disk_or_the_terminal(fp16_run):
    files = [path for path in fp16_run.folder.rglob("*") if path.is_file()]
    assert len(files) >= 11
    for secret in CANARIES.values():
        assert secret not in fp16_run.stdout + fp16_run.stderr
        for path in files:
            assert secret.encode() not in path.read_bytes(), path.name


def test_the_model_card(fp16_run):
    from huggingface_hub import ModelCard

    card = ModelCard.load(fp16_run.folder / "README.md")
    (accuracy,) = [r for r in card.data.eval_results if r.metric_type == "accuracy"]
    assert accuracy.metric_value == pytest.approx(fp16_run.report["accuracy"], abs=1e-6)
    assert "fp16, emulated" in card.text
