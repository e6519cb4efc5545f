"""The printed table is scikit-learn's, and a label cannot leave its row."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from ampft.evaluation.simple_methods import FREQUENCIES, SimpleMethodResult, methods_table
from ampft.labels.multi_label import MultiLabelPredictions
from ampft.labels.ordinal import Ordinal, OrdinalPredictions
from ampft.labels.regression import RegressionPredictions
from ampft.runs.run_text import report_with_heading
from ampft.tasks.outcome import main_metrics_text
from ampft.tasks.single_label import Predictions
from ampft.text.escaping import display_width, inert
from ampft.text.numbers import number

MATRIX = ((3, 1, 0), (2, 4, 0), (0, 1, 0))
LABELS = np.repeat([0, 1, 2], [4, 6, 1])
PREDICTED = np.array([0, 0, 0, 1, 0, 0, 1, 1, 1, 1, 1])


def report_table(matrix, names):
    """Return the printed report of predictions with a confusion matrix."""
    labels, predicted = np.nonzero(np.array(matrix))
    counts = np.array(matrix)[labels, predicted]
    outcome = Predictions(
        example_ids=np.arange(counts.sum()),
        labels=labels.repeat(counts),
        probabilities=np.eye(len(names), dtype=np.float32)[predicted.repeat(counts)],
        label_names=tuple(names),
        split="test",
    )
    return outcome.report().text().partition("\nFurther metrics")[0]


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a much longer class name", "", "x y")])
def test_equals_scikit_learn_to_the_character(names: tuple[str, ...]):
    expected = sklearn_metrics.classification_report(
        LABELS, PREDICTED, labels=range(3), target_names=names, digits=3, zero_division=0
    )
    assert report_table(MATRIX, names) == expected


def test_classes_without_an_example_are_listed_after_the_table():
    def report(absent):
        truth = np.array([0, 1, 1] if absent else [0, 1, 2])
        outcome = Predictions(
            example_ids=np.arange(3),
            labels=truth,
            probabilities=np.eye(3, dtype=np.float32)[truth],
            label_names=("a", "b", "rare"),
            split="test",
        )
        return outcome.report()

    line = "No example has the label 'rare'; its F1 counts as 0."
    assert line in report(absent=True).text().splitlines()
    assert line in report(absent=True).tables()[0].note
    assert "No example" not in report(absent=False).text()


HOSTILE = {
    "newline": ("a\nb", r"a\nb"),
    "terminal colour": ("\x1b[31mred", r"\x1b[31mred"),
    "carriage return": ("good\rbad", r"good\rbad"),
    "right to left override": ("abc\u202etxt", r"abc\u202etxt"),
    "right to left mark": ("\u200fabc", r"\u200fabc"),
    "line separator": ("a\u2028b", r"a\u2028b"),
    "lone surrogate": ("\ud800", r"\ud800"),
    "a second kind of newline": ("a\x85b", r"a\x85b"),
}


@pytest.mark.parametrize(("label", "shown"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_labels_are_shown_not_obeyed(label: str, shown: str):
    table = report_table(MATRIX, (label, "plain", "other"))
    assert inert(label) == shown
    assert shown in table
    assert len(table.splitlines()) == len(report_table(MATRIX, ("a", "b", "c")).splitlines())
    table.encode("utf-8")


def test_letters_of_every_script_stay_and_columns_align():
    names = ("日本語", "\u06a9\u200c\u06a9", "e\u0301tude")
    lines = report_table(MATRIX, names).splitlines()[2:5]
    assert all(name in line for name, line in zip(names, lines, strict=True))
    assert len({display_width(line) for line in lines}) == 1


def test_a_long_name_is_cut_in_the_table():
    table = report_table(MATRIX, ("long" * 300, "b", "c"))
    assert max(len(line) for line in table.splitlines()) < 110
    assert "longlon…" in table


def test_supports_are_whole_numbers_without_one_correct_prediction():
    expected = sklearn_metrics.classification_report(
        [0, 0, 1], [1, 1, 0], target_names=("a", "b"), digits=3, zero_division=0
    )
    assert expected.split()[8] == "2.0"  # negative control: scikit-learn's supports are floats here
    table = report_table(((0, 2), (1, 0)), ("a", "b"))
    assert [line.split()[-1] for line in table.splitlines() if line][1:] == [*"21333"]
    shapes = [[len(line) for line in text.splitlines()] for text in (table, expected)]
    assert shapes[0] == shapes[1]


TINY = -1e-9


def reports_with_tiny_negative_values():
    """Yield texts in which a metric is a little below 0, as rounding of sums makes it."""
    truth = np.array([0, 1, 2])
    outcome = Predictions(
        np.arange(3), truth, np.eye(3, dtype=np.float32)[truth], ("a", "b", "c"), "test"
    )
    report = replace(outcome.report(), cohen_kappa=TINY, matthews=TINY, balanced_accuracy=-0.0)
    yield report.tables()[0].note
    ordinal = OrdinalPredictions(
        np.arange(3), truth, np.eye(3, dtype=np.float32)[truth], ("1", "2", "3"), "test"
    ).report()
    added = [replace(each, value=TINY) for each in ordinal.added]
    assert added
    yield replace(ordinal, added=tuple(added)).text()
    metrics = dict.fromkeys(Ordinal.printed, TINY)
    yield main_metrics_text(Ordinal, metrics)
    constant = SimpleMethodResult(name=FREQUENCIES, metrics=metrics)
    yield str(methods_table(Ordinal, metrics, 1.0, (constant,)).rows)
    yield number(TINY, 4)


def test_no_report_has_a_negative_zero():
    for text in reports_with_tiny_negative_values():
        assert "0.0000" in text
        assert re.search(r"[-\N{MINUS SIGN}]0\.?0*(?![\d.])", text) is None, text


@pytest.mark.parametrize("kind", ["classes", "ranks", "labels", "numbers"])
def test_every_report_ends_with_one_line_break_so_that_a_blank_line_follows(kind):
    truth, shares = np.array([0, 1, 2]), np.eye(3, dtype=np.float32)
    names, ids = ("1", "2", "3"), np.arange(3)
    outcome = {
        "classes": lambda: Predictions(ids, truth, shares, names, "test"),
        "ranks": lambda: OrdinalPredictions(ids, truth, shares, names, "test"),
        "labels": lambda: MultiLabelPredictions(shares > 0, shares, names, "test"),
        "numbers": lambda: RegressionPredictions(
            truth.astype(float), shares[:, 1].astype(float), ("price",), "test"
        ),
    }[kind]()
    text = report_with_heading(outcome.report(), selected=False)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
