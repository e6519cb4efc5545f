"""The arguments of a run, from its record."""

from __future__ import annotations

import pytest

from ampft.runs.recorded_arguments import recorded_arguments


@pytest.mark.parametrize("value", [True, False])
def test_a_switch_is_as_it_was(make_record, value):
    switches = {"drop_missing_text": value, "load_best_model_at_end": value}
    record = make_record(arguments={"train_file": "t.csv", **switches, "warmup_ratio": None})
    found = recorded_arguments(record, ["--test_file=u.csv"])
    assert (found.drop_missing_text, found.load_best_model_at_end) == (value, value)
    assert (found.train_file, found.test_file) == ("t.csv", "u.csv")
    other = recorded_arguments(record, ["--drop_missing_text"])
    assert other.drop_missing_text
