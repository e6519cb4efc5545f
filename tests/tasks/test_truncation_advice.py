"""What is said where many texts are truncated: how to read them, and how many more tokens it costs.

The numbers are compared with a training that does what is advised.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tiny_text import tiny_task, write_contract

from ampft.kinds.inputs import TRUNCATED
from ampft.kinds.text import prepare_inputs, saved_reader

TIMES = r"with (\d+\.\d) times the tokens"


def _advice(notes) -> str:
    return next((note for note in notes if note.startswith("The model does not read")), "")


def _tokens(task) -> int:
    return int(task.examples("train").lengths.sum())


@pytest.mark.parametrize("max_length", [8, 13])
def test_the_costs_are_those_of_the_trainings_that_are_advised(tiny_bert, max_length):
    task = tiny_task(tiny_bert, train=40, max_seq_length=max_length)
    advice = _advice(task.notes)
    longest = int(re.search(r"--max_seq_length (\d+) reads all", advice)[1])
    windows = tiny_task(tiny_bert, train=40, max_seq_length=max_length, long_text="windows")
    longer = tiny_task(tiny_bert, train=40, max_seq_length=longest)
    costs = [f"{_tokens(other) / _tokens(task):.1f}" for other in (windows, longer)]
    assert re.findall(TIMES, advice) == costs
    assert "--long_text windows reads all of them" in advice
    assert not any("train" in note for note in longer.notes)  # nothing is truncated there
    assert not _advice(windows.notes)
    found = [each.examples("train").inputs.truncated for each in (task, windows, longer)]
    assert found[0] > 20
    assert found[1:] == [0, 0]
    assert not _advice(longer.notes)


def test_few_truncated_texts_are_only_counted(tiny_bert):
    task = tiny_task(tiny_bert, train=40, max_seq_length=31)
    assert re.match(r"train: [123] of 40 texts", task.notes[0])
    assert not _advice(task.notes)


def test_windows_are_not_advised_where_they_are_refused(tiny_bert):
    task = tiny_task(tiny_bert, train=40, max_seq_length=8)
    splits = task.data.splits.map(lambda row: {"second": row["text"]})
    pairs = replace(task.data, splits=splits, input_columns=("text", "second"))
    joined = replace(task.data, feature_columns=("label",))
    for data in (pairs, joined):
        advice = _advice(prepare_inputs(data, task.settings).notes)
        assert "--long_text" not in advice
        assert "--max_seq_length" in advice


def test_a_model_at_its_limit_is_told_apart(tiny_bert):
    task = tiny_task(tiny_bert, train=40, max_seq_length=8)
    splits = task.data.splits.map(lambda row: {"text": " ".join([row["text"]] * 80)})
    data = replace(task.data, splits=splits)
    asked = replace(task.settings, max_seq_length=64)  # as many as the model has positions
    assert "--max_seq_length" not in _advice(prepare_inputs(data, asked).notes)
    pairs = replace(data, input_columns=("text", "text"))
    assert "a model that reads longer texts" in _advice(prepare_inputs(pairs, asked).notes)


def test_a_saved_model_says_which_texts_it_truncates(tiny_bert, tmp_path):
    task = tiny_task(tiny_bert, train=8, max_seq_length=8)
    task.inputs.save_processor(tmp_path)
    write_contract(tmp_path, 8)
    reader = saved_reader(tmp_path, {}, task.load_model().model.config)
    batch = reader.collate([["w1 w2", "w1 w2 w3 w4 w5 w6", "w1 w2 w3 w4 w5 w6 w7"]])
    assert batch[TRUNCATED].tolist() == [False, False, True]
    assert TRUNCATED not in reader.collate([["w1 w2"]])
