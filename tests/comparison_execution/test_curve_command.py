"""`ampft curve`: its arguments, and a whole curve of a tiny model."""

from __future__ import annotations

import json

import pytest

from ampft import cli
from ampft.arguments.compare import ArmSettings
from ampft.comparison.learning_curve.command import labels_of, parse_curve
from ampft.comparison.learning_curve.findings import read_curve

RUN = ("--train_file", "train.csv", "--test_file", "test.csv")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--", "--train_file", "train.csv"], "--test_file: a learning curve needs test rows"),
        (["--", *RUN, "--max_train_samples", "50"], "--max_train_samples after ` -- `"),
        (["--", *RUN, "--data_seed", "3"], "--data_seed after ` -- `: a curve sets it"),
        (["--learning_rate", "1e-4", "--", *RUN], "--learning_rate is a setting of ampft train"),
        (["--sizes", "200,100", "--", *RUN], "train.csv"),  # checked once the data exist
        (["--seedz", "3", "--", *RUN], "seedz"),
        (["--", *RUN, "--output_dir", "x"], "--output_dir"),
    ],
)
def test_invalid_settings_exit_with_2(tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["curve", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_sizes_are_read_from_the_names_of_arms():
    arms = [ArmSettings(f"labels-{count}", (), "fp32") for count in (400, 50, 200)]
    assert list(labels_of(arms).values()) == [50, 200, 400]


def test_settings_of_the_runs_are_kept():
    settings, argv, classify = parse_curve(["--seeds", "4", "--", *RUN])
    assert (settings.seeds, tuple(argv), classify.test_file) == ("4", RUN, "test.csv")


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
    assert "What twice the labels would add is not said" in capsys.readouterr().out
    assert cli.main([*command[:4], "30,140", *command[5:], "--", *run]) == 2
    assert "the folder holds a curve with the sizes 40,80,140" in capsys.readouterr().err
