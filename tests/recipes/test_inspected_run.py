"""A run with `--inspect_data` prints likely label errors and lists them in a file."""

from __future__ import annotations

import csv

import pytest
from running import CLASSIFY, call_here, rows, succeeded, text_settings, write_csv

pytestmark = pytest.mark.slow


def test_a_planted_error_is_printed_and_listed_with_its_line(files, tiny_model, tmp_path):
    table = rows(140, 0)
    table[20] = (table[20][0], "fruit" if table[20][1] != "fruit" else "metal")
    write_csv(tmp_path / "train.csv", table, ("text", "label"))
    words = text_settings(files, tiny_model, tmp_path / "run")
    words[words.index("--train_file") + 1] = str(tmp_path / "train.csv")
    done = succeeded(call_here(CLASSIFY, *words, "--max_train_steps", 1, "--inspect_data"))
    assert "may be wrong, according to frozen encoder" in done.stdout
    assert "file line 22" in done.stdout
    with (tmp_path / "run" / "label_errors.csv").open(encoding="utf-8") as file:
        listed = list(csv.DictReader(file))
    assert (listed[0]["file_line"], listed[0]["label"]) == ("22", table[20][1])
