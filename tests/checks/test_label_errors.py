"""Likely label errors: planted ones are found, and the rule is that of confident learning."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from running import WORDS, rows

from ampft.checks.label_errors import (
    _confidently_other,
    find_label_errors,
    inspection_text,
    label_errors_csv,
    label_errors_table,
)
from ampft.data.dataset import ClassificationData
from ampft.tasks.task import make_task
from ampft.tasks.task_settings import TaskSettings

NAMES = sorted(WORDS)
PLANTED = {7: "river", 30: "metal", 52: "fruit"}


def task_of(labels, *, several=False):
    texts = [text for text, _ in rows(len(labels), 0)]
    names = ClassLabel(names=NAMES)
    features = Features({"text": Value("string"), "label": List(names) if several else names})
    part = Dataset.from_dict({"text": texts, "label": labels}, features=features)
    data = ClassificationData(
        DatasetDict({"train": part, "test": part}), ("text",), "text", "made", {}, ()
    )
    return make_task(data, TaskSettings(task="multi-label" if several else "text"))


def planted():
    labels = [label for _, label in rows(90, 0)]
    assert all(labels[row] != label for row, label in PLANTED.items())
    return [PLANTED.get(row, label) for row, label in enumerate(labels)]


@pytest.mark.slow
def test_planted_errors_are_found_and_little_else():
    found = find_label_errors(task_of([NAMES.index(label) for label in planted()]))
    truth = [label for _, label in rows(90, 0)]
    assert {each.row for each in found[:3]} == set(PLANTED)
    for each in found[:3]:
        assert each.label == PLANTED[each.row]
        assert each.suggested == truth[each.row]
        assert each.label_probability < each.suggested_probability
    assert len(found) <= 6
    assert f"{len(found)} training labels may be wrong" in inspection_text(found)
    assert label_errors_table(found).rows[0][1].text in WORDS
    table = list(csv.DictReader(io.StringIO(label_errors_csv(found))))
    assert [int(row["row"]) for row in table] == [each.row for each in found]


@pytest.mark.slow
def test_missing_and_wrong_labels_of_label_sets_are_found():
    labels = [[NAMES.index(label)] for _, label in rows(90, 0)]
    wrong = (labels[10][0] + 1) % 3
    labels[10], labels[41] = [*labels[10], wrong], []
    found = find_label_errors(task_of(labels, several=True))
    described = {(each.row, each.label, each.suggested) for each in found}
    missing = dict(enumerate(label for _, label in rows(90, 0)))[41]
    assert (41, f"without {missing}", f"with {missing}") in described
    assert (10, f"with {NAMES[wrong]}", f"without {NAMES[wrong]}") in described


@pytest.mark.slow
def test_a_class_with_a_single_text_is_held_out_as_any_other():
    found = find_label_errors(task_of([0] * 9 + [1]))
    assert (found[0].row, found[0].label, found[0].suggested) == (9, NAMES[1], NAMES[0])
    assert found[0].label_probability == 0


@pytest.mark.slow
def test_a_label_that_every_text_has_is_not_suspicious():
    found = find_label_errors(task_of([[0, 1 + row % 2] for row in range(20)], several=True))
    assert not any(NAMES[0] in each.label for each in found)


def test_the_rule_is_that_of_confident_learning():
    labels = np.array([0, 0, 0, 1, 1, 2])
    probabilities = np.array([
        [0.9, 0.1, 0.0],
        [0.2, 0.7, 0.1],  # as probable as texts of class 1 are: suspicious
        [0.5, 0.3, 0.2],  # below the mean of class 1
        [0.3, 0.7, 0.0],
        [0.4, 0.6, 0.0],  # class 0 is below its mean of 0.53
        [0.0, 0.3, 0.7],
    ])  # fmt: skip
    assert _confidently_other(labels, probabilities) == [(1, 1)]
