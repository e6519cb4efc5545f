"""Labels that are numbers: how they are read, split and fingerprinted."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_files import csv_of, load

from ampft.data.dataset import number_strata
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError
from ampft.kinds.receipt import receipt_lines
from ampft.tasks.table import TASKS, default_task

NUMBERS = [*np.random.default_rng(0).normal(1990, 3, 38).tolist(), -1.0, 1e-7]
TEXTS = [f"text {index}" for index in range(40)]


def numbers_of(folder, content, name="train.csv", **options):
    return load(folder, content, name, task="regression", **options)


def test_every_format_has_the_same_numbers_to_the_last_bit(tmp_path):
    rows = [{"text": text, "score": n} for text, n in zip(TEXTS, NUMBERS, strict=True)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet")
    cells = [(row["text"], repr(row["score"])) for row in rows]
    files = {
        "a.csv": csv_of(cells, "text,score"),
        "b.jsonl": "\n".join(map(json.dumps, rows)),
        "c.parquet": (tmp_path / "c.parquet").read_bytes(),
    }  # fmt: skip
    prints = set()
    for name, content in files.items():
        data = numbers_of(tmp_path, content, name, label_column_name="score")
        assert data.labels("train").dtype == np.float64
        assert data.labels("train").tolist() == NUMBERS, name  # also -1, which is no class
        assert data.label_names == ("score",)
        prints.add(data.fingerprints["train"])
        lines = receipt_lines(data, TASKS[default_task(data.kind)].kind)
        assert lines[0].startswith("score from -1 to 199")
        assert lines[1].split()[3].startswith("19")
    assert len(prints) == 1
    changed = files["b.jsonl"].replace("1e-07", "2e-07")
    assert changed != files["b.jsonl"]
    other = numbers_of(tmp_path, changed, "d.jsonl", label_column_name="score")
    assert other.fingerprints["train"] not in prints


def test_splits_and_choices_have_all_fifths(tmp_path):
    content = csv_of([(f"text {i}", str(i)) for i in range(100)])
    split = {"validation_fraction": 0.2, "test_fraction": 0.2}
    data = numbers_of(tmp_path, content, **split, max_train_samples=10)
    for name, each in {"train": 2, "validation": 4, "test": 4}.items():
        fifths = np.bincount((data.labels(name) // 20).astype(int), minlength=5)
        assert fifths.tolist() == [each] * 5, name
    every = [numbers_of(tmp_path, content, folds=4, fold=k).labels("test") for k in (1, 2, 3, 4)]
    assert sorted(np.concatenate(every)) == list(range(100))


def test_equal_numbers_have_one_stratum():
    strata = number_strata(np.array([0.0] * 9 + [5.0]))
    assert len(set(strata[:9])) == 1
    assert strata[9] != strata[0]


def test_missing_numbers_are_refused_or_dropped(tmp_path):
    content = csv_of([("a", "1"), ("b", ""), ("c", "3"), ("d", "2.5")])
    with pytest.raises(InputError, match=r"line 3: no label in column 'label' \(1 of 4 rows\)"):
        numbers_of(tmp_path, content)
    kept = numbers_of(tmp_path, content, drop_missing_labels=True)
    assert kept.labels("train").tolist() == [1.0, 3.0, 2.5]
    with pytest.raises(InputError, match="--ignore_label has no effect on labels that are numbers"):
        numbers_of(tmp_path, content, ignore_label="1")


def test_numbers_that_teach_nothing_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"all 2 rows have the label 1\.0"):
        numbers_of(tmp_path, csv_of([("a", "1"), ("b", "1.0")]))
    with pytest.raises(InputError, match="the built-in stdlib has one class per example"):
        load_data(numbers_request(dataset_name="stdlib"))


def numbers_request(**options):
    from ampft.arguments import ClassifyArguments

    request = ClassifyArguments(task="regression", **options)
    assert isinstance(request, DataRequest)
    return request


def test_fractions_as_classes_name_the_task(tmp_path):
    content = csv_of([(f"text {i}", f"{i / 7:.3f}") for i in range(60)])
    with pytest.raises(InputError, match="add --task regression"):
        load(tmp_path, content)
