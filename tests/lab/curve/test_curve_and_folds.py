"""A whole learning curve, and a whole comparison by folds, of a tiny model."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from ampft import cli
from ampft.lab.curve.learning_curve import read_curve


@pytest.mark.full
@pytest.mark.slow
def test_a_curve_of_a_tiny_model(tmp_path, files, tiny_model, monkeypatch, capsys):
    folder = tmp_path / "curve"
    run = [
        *("--model_name_or_path", str(tiny_model), "--train_file", str(files / "train.csv")),
        *("--test_file", str(files / "test.csv"), "--learning_rate", "8e-3", "--use_cpu"),
        *("--num_train_epochs", "1", "--cpu_threads", "1"),
    ]
    command = ["curve", "--seeds", "3", "--sizes", "40,80,140", "--output_dir", str(folder)]
    assert cli.main([*command, "--", *run]) == 0
    curve = read_curve(folder / "curve.json")
    assert [size.labels for size in curve.sizes] == [40, 80, 140]
    assert [size.train for size in curve.sizes] == [36, 72, 126]
    assert curve.twice is None
    records = [json.loads(path.read_text()) for path in folder.glob("runs/*/run.json")]
    assert {record["arguments"]["data_seed"] for record in records} == {42, 43, 44}
    prints = {
        (r["arguments"]["max_train_samples"], r["data"]["fingerprints"]["train"]) for r in records
    }
    assert len(prints) == 9  # each seed draws its own rows, also of all
    page = (folder / "curve.html").read_text(encoding="utf-8")
    assert "<script" not in page
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/run.json")}
    capsys.readouterr()
    assert cli.main([*command, "--", *run]) == 0  # continues, with nothing to do
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert cli.main(["report", str(folder)]) == 0
    assert "It is unknown what twice the labels would add" in capsys.readouterr().out
    assert cli.main([*command[:4], "30,140", *command[5:], "--", *run]) == 2
    assert "the folder holds a curve with the sizes 40,80,140" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.slow
def test_folds_of_a_tiny_model(tmp_path, files, tiny_model, capsys):
    folder, train = tmp_path / "folds", tmp_path / "train.csv"
    rows = pd.read_csv(files / "train.csv")
    rows["author"] = [f"author {i // 2}" for i in range(len(rows))]
    rows = pd.concat([rows, rows[:2]])  # equal texts are groups, which each seed numbers anew
    rows.to_csv(train, index=False)
    command = [
        *("compare", "--folds", "2", "--seeds", "3", "--keep_models", "none"),
        *("--arm", "base", "--arm", "low: --learning_rate 1e-4", "--output_dir", str(folder)),
        *("--", "--model_name_or_path", str(tiny_model), "--learning_rate", "8e-3", "--use_cpu"),
        *("--train_file", str(train), "--cpu_threads", "1", "--group_column", "author"),
        *("--num_train_epochs", "1", "--validation_fraction", "0", "--no-load_best_model_at_end"),
    ]
    assert cli.main(command) == 0
    assert "cross-validation with 2 folds, 3 repeats" in capsys.readouterr().out
    tables = [pd.read_parquet(path) for path in sorted((folder / "tables").glob("*.parquet"))]
    assert len(tables) == 6
    for table in tables:
        assert sorted(table["text"]) == sorted(rows["text"])
        assert dict(zip(table["text"], table["label"], strict=True)) == dict(
            zip(rows["text"], rows["label"], strict=True)
        )
    base, _, _, low, *_ = (dict(zip(t["text"], t["fold"], strict=True)) for t in tables)
    assert base == low  # the arms of a seed have the same folds, those of another seed others
    assert base != dict(zip(tables[1]["text"], tables[1]["fold"], strict=True))
    runs = sorted(folder.glob("runs/base-seed42-fold*/predictions.parquet"))
    of_seed = pd.concat(map(pd.read_parquet, runs))
    assert sorted(set(of_seed["fold"])) == [1, 2]
    assert not of_seed.duplicated(["fold", "example_id"]).any()
    assert dict(zip(of_seed["text"], of_seed["fold"].map(str), strict=True)) == base
    stamps = json.loads((folder / "comparison.json").read_text())["stamps"]
    assert "no_record" not in [stamp["kind"] for stamp in stamps]
    (grouped,) = [stamp["values"] for stamp in stamps if stamp["kind"] == "grouped"]
    assert grouped == {
        "examples": len(rows), "groups": rows["author"].nunique(), "column": "author",
    }  # fmt: skip
    assert cli.main(["compare", str(folder)]) == 0
