"""GoEmotions, part of it: from the file to the report, the comparison and a pipeline."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from running import CLASSIFY, call_here, succeeded, write_csv
from test_saved_model import FLOAT32_TOLERANCE

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.report.report_files import terminal_text

FOLDER = Path(__file__).resolve().parents[2] / "../shared/data/goemotions"
KEPT = {"gratitude", "amusement", "love", "admiration"}
MODES = ("fp32", "bf16")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="no ../shared/data beside the repository"),
]


def part(name: str, count: int) -> list[tuple[str, str]]:
    """Return the first texts whose labels are all in `KEPT`, with their labels."""
    names = (FOLDER / "labels.txt").read_text(encoding="utf-8").split()
    table = []
    for line in (FOLDER / f"{name}.tsv").read_text(encoding="utf-8").splitlines():
        text, indices, _ = line.split("\t")
        labels = [names[int(index)] for index in indices.split(",")]
        if KEPT.issuperset(labels):
            table.append((text, ",".join(labels)))
    return table[:count]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    files = tmp_path_factory.mktemp("goemotions")
    for name, split, count in (("train", "train", 400), ("dev", "validation", 60)):
        write_csv(files / f"{split}.csv", part(name, count), ("text", "labels"))
    write_csv(files / "test.csv", part("test", 150), ("text", "labels"))
    for mode in MODES:
        words = ["--mixed_precision", mode, "--task", "multi-label", "--output_dir", files / mode]
        words += [
            f"--{split}_file={files / split}.csv" for split in ("train", "validation", "test")
        ]
        words += ["--max_seq_length", 32, "--max_train_steps", 60, "--learning_rate", 2e-4]
        words += ["--per_device_train_batch_size", 16]
        succeeded(call_here(CLASSIFY, *words, "--use_cpu", "--cpu_threads", 1))
    return files


def test_both_precisions_learn_and_are_compared(runs):
    comparison = compare_folders([runs / mode for mode in MODES], metric="micro_f1")
    assert comparison.label_names == tuple(sorted(KEPT))
    assert all(arm.metrics["micro_f1"].mean > 0.6 for arm in comparison.arms)
    assert not any(arm.suspect_runs for arm in comparison.arms)
    text = " ".join(terminal_text(comparison).split())  # wherever lines break
    assert "Micro F1 on test, 150 examples" in text
    assert "Micro F1 difference" in text


def test_a_pipeline_gives_the_same_probabilities(runs):
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(runs / "fp32"), device="cpu")
    rows = pq.read_table(runs / "fp32" / "predictions.parquet").to_pylist()[:20]
    for row, found in zip(rows, classify([row["text"] for row in rows], top_k=None), strict=True):
        by_name = {each["label"]: each["score"] for each in found}
        expected = dict(zip(sorted(KEPT), row["probabilities"], strict=True))
        assert by_name == pytest.approx(expected, abs=FLOAT32_TOLERANCE)


def test_few_rows_of_many_labels_are_predicted_only_with_tuned_thresholds(tmp_path):
    """With 28 labels and few rows no probability reaches one half."""
    names = (FOLDER / "labels.txt").read_text(encoding="utf-8").split()
    for name, count in (("train", 240), ("dev", 80), ("test", 80)):
        lines = (FOLDER / f"{name}.tsv").read_text(encoding="utf-8").splitlines()[:count]
        cells = [line.split("\t")[:2] for line in lines]
        table = [(text, ",".join(names[int(i)] for i in ids.split(","))) for text, ids in cells]
        write_csv(tmp_path / f"{name}.csv", table, ("text", "labels"))
    words = ["--task", "multi-label", "--tune_thresholds", "--output_dir", tmp_path / "run"]
    words += ["--train_file", tmp_path / "train.csv", "--validation_file", tmp_path / "dev.csv"]
    words += ["--test_file", tmp_path / "test.csv", "--max_seq_length", 24]
    words += ["--num_train_epochs", 1, "--per_device_train_batch_size", 16, "--use_cpu"]
    words += ["--learning_rate", 4e-4]
    succeeded(call_here(CLASSIFY, *words, "--cpu_threads", 1))
    rows = pq.read_table(tmp_path / "run" / "predictions.parquet").to_pydict()
    assert max(max(row) for row in rows["probabilities"]) < 0.5
    assert sum(map(len, rows["prediction"])) > 40
    assert '"micro_f1": 0.0,' not in (tmp_path / "run" / "report.json").read_text()
