"""Groups of examples: from the file to predictions.parquet."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from running import (
    CLASSIFY,
    call_here,
    printed,
    record_of,
    rows,
    succeeded,
    text_settings,
    write_csv,
)

from ampft.runs.predictions import read_groups

pytestmark = pytest.mark.slow

COPIES = 5


def write_splits(tmp_path):
    for seed, (name, count) in enumerate({"train": 60, "validation": 20, "test": 30}.items()):
        table = [(f"{text} {i}", label) for i, (text, label) in enumerate(rows(count, seed))]
        table += [(f"{text.upper()}!", label) for text, label in table[:COPIES]]
        authors = [(*row, f"author {i // 7}") for i, row in enumerate(table)]
        write_csv(tmp_path / f"{name}.csv", authors, ("text", "label", "author"))


@pytest.mark.parametrize("column", ["author", None])
def test_a_run_records_the_groups_of_its_test_split(tiny_model, tmp_path, column):
    write_splits(tmp_path)
    flags = ("--group_column", column) if column else ("--text_column_names", "text")
    settings = text_settings(tmp_path, tiny_model, tmp_path / "run")
    succeeded(call_here(CLASSIFY, *settings, *flags, "--learning_rate", 1e-12))
    path = tmp_path / "run" / "predictions.parquet"
    groups = read_groups(path)
    assert groups is not None
    assert groups.column == column
    # The copies at the end join the last author to the first.
    authors = [*(i // 7 for i in range(28)), *[0] * 7]
    expected = authors if column else [*range(30), *range(COPIES)]
    assert groups.ids.tolist() == expected
    assert pq.read_table(path)["group_id"].to_pylist() == expected
    warning = record_of(tmp_path / "run")["warnings"]["not_better_than_chance"]
    assert f"on 35 examples in {len(set(expected))} groups" in warning


@pytest.mark.parametrize(
    ("flags", "cases"),
    [
        # The copies join authors 2 and 3 to author 0, so that two of four are left.
        (("--group_column", "author"), 2),
        (("--text_column_names", "text"), 20),
        (("--text_column_names", "text", "--abstain", 0.4), 10),  # the other half proves it
    ],
)
def test_the_epoch_is_chosen_on_independent_rows(tiny_model, tmp_path, flags, cases):
    write_splits(tmp_path)
    settings = text_settings(tmp_path, tiny_model, tmp_path / "run")
    stdout = succeeded(call_here(CLASSIFY, *settings, *flags)).stdout
    best = record_of(tmp_path / "run")["best"]
    assert best["rows"] == cases
    assert f"({cases} independent validation rows)" in printed(stdout, "chosen")
