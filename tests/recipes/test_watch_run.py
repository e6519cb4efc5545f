"""A run with `--watch`: history, CSV and digits."""

import csv
import json

import pytest
from resumed_runs import TIMES, two_epochs
from running import CLASSIFY, call_here, succeeded

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(files, tiny_model, tmp_path_factory):
    root = tmp_path_factory.mktemp("watch")
    flags = {"off": (), "on": ("--watch", "4", "--history_csv")}
    for name, more in flags.items():
        words = two_epochs(files, tiny_model, root / name, "--mixed_precision", "fp16", *more)
        succeeded(call_here(CLASSIFY, *words))
    return {name: root / name for name in flags}


def history(folder):
    lines = (folder / "history.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def test_every_fourth_step_has_the_ranges_of_each_block(runs):
    off, on = history(runs["off"]), history(runs["on"])
    more = [sorted(row.keys() - plain.keys()) for row, plain in zip(on, off, strict=True)]
    blocks = ("classifier", "embeddings", "encoder.layer.0", "encoder.layer.1", "pooler")
    expected = sorted(
        f"{kind}/{block}"
        for block in blocks
        for kind in ("headroom", "underflow", "grad_norm")
        if block != "embeddings" or kind == "grad_norm"
    )
    assert [number for number, names in enumerate(more, 1) if names] == [4, 8, 12, 16]
    assert more[3] == expected
    assert all(on[3][name] > 8 for name in expected if name.startswith("headroom/"))


def test_no_other_digit_changes(runs):
    off, on = history(runs["off"]), history(runs["on"])
    assert [{k: row[k] for k in plain} for row, plain in zip(on, off, strict=True)] == off
    weights = [(folder / "model.safetensors").read_bytes() for folder in runs.values()]
    assert weights[0] == weights[1]


def test_the_csv_has_the_columns_of_watched_steps(runs):
    with (runs["on"] / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [bool(row["headroom/classifier"]) for row in rows[:5]] == [False] * 3 + [True, False]
