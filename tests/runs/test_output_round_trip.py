"""The rows that `ampft predict` writes as CSV are read back as they were."""

import csv
import io
import sys

import pandas as pd
import pytest

from ampft.data.sources.text_files import read_csv
from ampft.runs.predict import opened_output

TEXTS = [
    *("=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\tx", " x ", "'x", "NA", "null", "007", "1e5"),
    *("a,b", 'a"b', '"', "a\nb", "a\rb", "a\r\nb", "\r", "\ufeffx", "x\u200b", "a;b", "#x", "\\"),
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_cell_is_read_back_as_it_was(tmp_path, text):
    path = tmp_path / "out.csv"
    with opened_output(str(path), ["id", "text"], ["prediction", "confidence"]) as write:
        write([["1", text, text, 0.5], ["2", "plain", "plain", 0.25]])
    expected = [["1", text, text, "0.500000"], ["2", "plain", "plain", "0.250000"]]
    with path.open(newline="") as file:
        assert list(csv.reader(file))[1:] == expected
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert frame.to_numpy().tolist() == expected
    table = read_csv(path, encoding="utf-8")
    rows = [[*values] for _, values in table.read(table.columns)]
    assert rows == expected
    assert b"plain\r" not in path.read_bytes()  # lines end in LF


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="csv quotes a carriage return itself")
def test_without_quotes_a_carriage_return_would_end_a_line():  # negative control
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(["a\rb"])
    assert list(csv.reader(io.StringIO(out.getvalue(), newline=""))) != [["a\rb"]]
