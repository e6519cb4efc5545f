"""The arguments of a run, from its record."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from ampft.arguments import parse_classify_arguments
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


@pytest.mark.parametrize(
    "words",
    [
        ["--text_column_names=claim,evidence"],
        ["--text_column_names=title+body,comment", "--text_column_delimiter=[SEP]"],
        ["--text_column_names=title,body", "--text_column_delimiter=[SEP]"],
        ["--text_column_names=title+body", "--text_column_delimiter= / "],
        ["--label_column_name=a,b", "--task=multi-label", "--label_separator=;"],
        ["--class_weights=balanced", "--weight_column=w", "--group_column=customer"],
    ],
)
def test_they_are_the_settings_of_the_run(make_record, words):
    given = parse_classify_arguments(["--train_file=train.csv", "--no-serve_back", *words])
    record = make_record(arguments=asdict(given))
    again = recorded_arguments(record, ())
    assert asdict(again) == {**asdict(given), "mixed_precision": again.mixed_precision}
