"""Likely label errors: planted ones are found, and the rule is that of confident learning."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from cleanlab.filter import find_label_issues
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from running import WORDS, rows
from tiny_words import tiny_word_task

from ampft.checks.label_errors import (
    FILTER,
    _folds,
    _units,
    find_label_errors,
    inspection_text,
    label_errors_csv,
    label_errors_page,
    label_errors_table,
    suspicious,
)
from ampft.data.dataset import ClassificationData
from ampft.errors import InputError
from ampft.evaluation.simple_methods import FROZEN
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
    first = found.errors[:3]
    assert {each.row for each in first} == set(PLANTED)
    for each in first:
        assert each.label == PLANTED[each.row]
        assert each.suggested == truth[each.row]
        assert each.label_probability < each.suggested_probability
    assert len(found.errors) <= 6
    assert f"{len(found.errors)} training labels of 90 may be wrong" in inspection_text(found)
    assert label_errors_table(found).rows[0][1].text in WORDS
    table = list(csv.DictReader(io.StringIO(label_errors_csv(found))))
    assert [int(row["row"]) for row in table] == [each.row for each in found.errors]
    assert {row["corrected"] for row in table} == {""}
    page = label_errors_page(found, "made")
    assert page.index(first[0].text) < page.index(first[1].text)


@pytest.mark.slow
def test_missing_and_wrong_labels_of_label_sets_are_found():
    labels = [[NAMES.index(label)] for _, label in rows(90, 0)]
    wrong = (labels[10][0] + 1) % 3
    labels[10], labels[41] = [*labels[10], wrong], []
    found = find_label_errors(task_of(labels, several=True)).errors
    described = {(each.row, each.label, each.suggested) for each in found}
    missing = dict(enumerate(label for _, label in rows(90, 0)))[41]
    assert (41, f"without {missing}", f"with {missing}") in described
    assert (10, f"with {NAMES[wrong]}", f"without {NAMES[wrong]}") in described


@pytest.mark.slow
def test_a_label_that_every_text_has_is_not_suspicious():
    found = find_label_errors(task_of([[0, 1 + row % 2] for row in range(20)], several=True))
    assert not any(NAMES[0] in each.label for each in found.errors)


def test_the_rule_is_cleanlabs_and_ignores_classes_without_rows():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 300)
    labels = truth.copy()
    flipped = rng.choice(300, 30, replace=False)
    labels[flipped] = (labels[flipped] + 1) % 3
    logits = 3 * np.eye(3)[truth] + rng.normal(size=(300, 3))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = suspicious(labels, shares)
    assert len(set(found) & set(flipped)) > 20
    assert len(set(found) - set(flipped)) < 10
    twin = find_label_issues(labels, shares, filter_by=FILTER, n_jobs=1)
    np.testing.assert_array_equal(found, np.flatnonzero(twin))
    wider = np.column_stack([shares[:, :1], np.zeros(300), shares[:, 1:]])
    np.testing.assert_array_equal(suspicious(labels + (labels > 0), wider), found)
    assert not len(suspicious(np.zeros(5, dtype=int), np.ones((5, 1))))


@pytest.mark.slow
def test_words_are_judged_with_the_other_words_of_their_sentence_held_out(tiny_bert):
    task = tiny_word_task(tiny_bert, train=60)
    codes = task.labels["train"].codes
    found = find_label_errors(task)
    assert found.judged == len(codes)
    assert found.method == FROZEN
    for each in found.errors[:5]:
        tokens = task.data.splits["train"][each.row]["tokens"]
        assert each.word == tokens[each.place - 1]
    units = _units(task)
    for train, held_out in _folds(units):
        assert not set(units.row_of[train]) & set(units.row_of[held_out])


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([0, 1, 2] * 4, "no class has more than 4 rows"),
        ([0, 1, 2, 0], "it has 4 independent rows"),
        ([0, 1, 2] * 5, None),
    ],
)
def test_too_few_rows_are_refused_in_plain_words(labels, problem):
    units = _units(task_of(labels))
    if problem is None:
        assert len(list(_folds(units))) == 5
        return
    with pytest.raises(InputError, match=rf"{problem}\. Add rows until a class has 5") as error:
        list(_folds(units))
    assert "n_splits" not in str(error.value)
