"""`ampft search`: refusals, a planted rate that it finds, rows, and kills that change nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from running import call, clean_environment, write_csv
from tiny_text import LABELS, WORDS, save_tiny_bert

import ampft
from ampft import cli
from ampft.arguments import parse_classify_arguments
from ampft.data.load import load_data
from ampft.lab.resume_check import differences
from ampft.lab.search.search_record import read_state

FILES = ("--train_file", "train.csv", "--test_file", "test.csv")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--", *FILES], "--time_budget"),
        (["--time_budget", "ten", "--", *FILES], "--time_budget: received 'ten'"),
        (
            ["--time_budget", "9min", "--learning_rates", "1e-4,0", "--", *FILES],
            "--learning_rates: received '1e-4,0'",
        ),
        (["--time_budget", "9min", "--seeds", "2", "--", *FILES], "--seeds"),
        (["--time_budget", "9min", "--", *FILES, "--max_time", "1min"], "with --time_budget"),
        (["--time_budget", "9min", "--", *FILES, "--leave_out_test"], "until it judges"),
        (["--time_budget", "9min", "--", *FILES], "train.csv"),  # no such file
    ],
)
def test_invalid_settings_exit_with_2(tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["search", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def planted(count, seed):
    """Rows whose label is told by one of seven words."""
    generator = np.random.default_rng(seed)
    table = []
    for _ in range(count):
        label = int(generator.integers(3))
        words = [*generator.choice(WORDS[10:], 6), WORDS[3 * label + int(generator.integers(3))]]
        table.append((" ".join(generator.permutation(words)), LABELS[label]))
    return table


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    save_tiny_bert(folder / "model")
    for seed, (name, count) in enumerate({"train": 400, "validation": 210, "test": 150}.items()):
        write_csv(folder / f"{name}.csv", planted(count, seed), ("text", "label"))
    return folder


def words(data: Path, folder: Path, budget: str, *own: str, validation: bool = True) -> list[str]:
    """The command of a search whose default rate is a hundredth of a good one."""
    runs = [
        *("--model_name_or_path", str(data / "model"), "--train_file", str(data / "train.csv")),
        *("--test_file", str(data / "test.csv"), "--learning_rate", "2e-5", "--use_cpu"),
        *("--num_train_epochs", "3", "--per_device_train_batch_size", "16", "--cpu_threads", "1"),
        *("--mixed_precision", "no"),
        *(("--validation_file", str(data / "validation.csv")) if validation else ()),
    ]
    start = ["-m", "ampft", "search", "--time_budget", budget, "--output_dir", str(folder)]
    return [*start, "--learning_rates", "2e-4,2e-3", *own, "--", *runs]


def searched(*args, **kwargs) -> subprocess.CompletedProcess[str]:
    return call(sys.executable, *words(*args, **kwargs), timeout=3000, warm=False)


@pytest.mark.slow
def test_too_little_time_is_refused_before_anything_is_written(data, tmp_path):
    done = searched(data, tmp_path / "search", "1s")
    assert done.returncode == 2
    assert "--time_budget 1s: the smallest search takes about" in done.stderr
    assert not (tmp_path / "search").exists()


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    """The folder of a search that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "search"
    started = time.time()
    done = searched(data, folder, "2h")
    assert done.returncode == 0, done.stderr
    assert "of accuracy" in done.stdout
    assert "at most about" in done.stdout
    answer = read_state(folder).answer
    assert answer.seconds <= time.time() - started + 2  # a process knows its start to a second
    return folder


@pytest.mark.full
@pytest.mark.slow
def test_it_finds_a_planted_rate_and_says_what_that_gained(whole, capsys):
    answer = read_state(whole).answer
    assert answer.settings == {"learning_rate": 2e-3, "num_train_epochs": 9}
    assert answer.answer == "keep"
    low, _ = answer.estimate.interval
    assert low > 0.2
    finals = {path.parent.name: path for path in whole.glob("final/runs/*/run.json")}
    assert sorted(finals) == sorted(
        f"{arm}-seed{seed}" for arm in ("chosen", "default") for seed in (42, 43, 44)
    )
    records = {name: json.loads(path.read_text()) for name, path in finals.items()}
    mean = {
        arm: np.mean([r["metrics"]["accuracy"] for n, r in records.items() if n.startswith(arm)])
        for arm in ("chosen", "default")
    }
    assert answer.estimate.gain == pytest.approx(mean["chosen"] - mean["default"])
    assert [path.parent.name for path in whole.glob("final/runs/*/model.safetensors")] == [
        "chosen-seed42"
    ]
    assert cli.main(["report", str(whole)]) == 0
    assert "test rows that the search did not use" in " ".join(capsys.readouterr().out.split())
    finished = ampft.FinishedSearch(whole)
    assert finished.model.folder == whole / "final/runs/chosen-seed42"
    predicted = finished.model.predict(["w0 w12 w13 w20"])
    assert list(predicted["prediction"]) == [LABELS[0]]


def rows_read(record) -> dict[str, set[str]]:
    """The texts that a run read, by split, from its recorded settings."""
    given = {
        name: value
        for name, value in record["arguments"].items()
        if name in ("train_file", "validation_file", "test_file", "folds", "fold", "data_seed")
        and value is not None
    }
    line = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    line += ["--leave_out_test"] * record["arguments"]["leave_out_test"]
    found = load_data(parse_classify_arguments(line))
    assert (
        dict(found.fingerprints) == record["data"]["fingerprints"]
    )  # these are the rows that it read
    return {split: set(part["text"]) for split, part in found.splits.items()}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("validation", [True, False])
def test_the_search_never_reads_the_rows_that_judge(data, tmp_path, whole, validation):
    folder = whole
    if not validation:
        folder = tmp_path / "search"
        assert searched(data, folder, "3h", "--folds", "2", validation=False).returncode == 0
        assert read_state(folder).plan.folds == 2
    judged = set(pd.read_csv(data / "test.csv")["text"])
    runs = [json.loads(path.read_text()) for path in folder.glob("candidates/runs/*/run.json")]
    assert len(runs) >= 5
    for record in runs:
        read = rows_read(record)
        assert not judged & set.union(*read.values())
        assert record["arguments"]["seed"] == 45
    for path in folder.glob("candidates/runs/*/predictions.parquet"):
        assert not judged & set(pd.read_parquet(path)["text"])
    finals = [json.loads(path.read_text()) for path in folder.glob("final/runs/*/run.json")]
    for record in finals:
        assert rows_read(record)["test"] == judged  # and the same check fails for these
        assert record["arguments"]["seed"] in (42, 43, 44)


@pytest.mark.full
@pytest.mark.slow
def test_a_killed_search_continues_to_the_same_result(data, tmp_path, whole):
    folder, log = tmp_path / "search", tmp_path / "log"
    command = [sys.executable, *words(data, folder, "2h")]
    for place, count in (("candidates", 2), ("candidates", 4), ("final", 3)):
        with (
            log.open("w") as output,
            subprocess.Popen(
                command, env=clean_environment(), stdout=output, stderr=output
            ) as process,
        ):
            while process.poll() is None:
                done = list(folder.glob(f"{place}/runs/*/model.safetensors")) + list(
                    folder.glob(f"{place}/runs/*/predictions.parquet")
                )
                running = list(folder.glob(f"{place}/runs/*/history.jsonl"))
                if len({path.parent for path in done}) >= count < len(running):
                    os.kill(process.pid, signal.SIGKILL)
                    break
                time.sleep(0.05)
        assert process.returncode == -signal.SIGKILL, log.read_text()
        assert read_state(folder).answer is None
    before = {path: path.stat().st_mtime_ns for path in folder.glob("candidates/runs/*/run.json")}
    assert searched(data, folder, "2h").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for part in ("candidates", "final"):
        names = {path.name for path in (whole / part / "runs").iterdir()}
        assert names == {path.name for path in (folder / part / "runs").iterdir()}
        for name in names:
            found = list(differences(whole / part / "runs" / name, folder / part / "runs" / name))
            assert found == []
    one, other = (read_state(each).answer for each in (whole, folder))
    for name in ("chosen", "settings", "choices", "answer", "estimate", "model", "rows"):
        assert getattr(one, name) == getattr(other, name)
    again = searched(data, folder, "2h")  # repeats the answer
    assert "of accuracy" in again.stdout
    refused = searched(data, folder, "1h")
    assert refused.returncode == 2
    assert "--time_budget was 2h and is now 1h" in refused.stderr
