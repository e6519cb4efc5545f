"""Notes on training rows with equal inputs and different labels."""

from __future__ import annotations

import pytest
from tiny_files import csv_of, load

pytestmark = pytest.mark.add_ons
ROWS = [(f"text {n}", "ab"[n % 2]) for n in range(8)]


def contradictions(data):
    return [note for note in data.notes if "with a different label" in note]


def test_equal_texts_with_different_labels_are_located(tmp_path):
    rows = [*ROWS, ("text 0", "b"), ("text 1", "b"), ("TEXT 3!", "a")]  # one in another spelling
    (note,) = contradictions(load(tmp_path, csv_of(rows)))
    assert note.startswith("2 training rows repeat the inputs of an earlier row with a different")
    assert "lines 10, 12" in note


def test_equal_texts_with_equal_labels_are_not(tmp_path):
    assert not contradictions(load(tmp_path, csv_of([*ROWS, ("text 0", "a"), ("TEXT 1!", "b")])))


def test_pairs_are_equal_if_both_texts_are(tmp_path):
    rows = [f"q {n},a {n},{'ab'[n % 2]}" for n in range(8)] + ["q 0,a 1,b", "q 1,a 1,a"]

    content = "\n".join(["question,answer,label", *rows, ""])
    (note,) = contradictions(load(tmp_path, content, text_column_names="question,answer"))
    assert note.startswith("1 training row repeats")
    assert "line 11" in note


def test_numbers_may_differ(tmp_path):
    rows = [(text, str(n)) for n, (text, _) in enumerate([*ROWS, *ROWS])]

    assert not contradictions(load(tmp_path, csv_of(rows), task="regression"))
