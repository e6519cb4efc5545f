"""A certificate for readers: every writer shows the same, and names of data stay inert."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from made import NAMES, certificate, drawn, without_times
from sklearn.metrics import f1_score

from ampft.decision import Rule
from ampft.errors import InputError
from ampft.export.certificate.certificate import finding
from ampft.export.certificate.certificate_page import (
    card_section,
    certificate_json,
    certificate_text,
    differences,
    headline,
    page,
    read_certificate,
)
from ampft.export.certificate.equality import AnswerTally


@pytest.fixture(scope="module")
def faulty():
    labels, logits = drawn()
    broken = logits.copy()
    broken[labels == 3, 0] += 10
    return certificate(labels, logits, broken)


@pytest.fixture(scope="module")
def faithful():
    labels, logits = drawn()
    return certificate(labels, logits, logits)


def test_few_cases_that_carry_a_difference_are_counted():
    assert "3 of 20 cases" in finding("carrying", carrying=3, cases=20).text


def test_a_certificate_is_read_as_it_was_written(faulty, tmp_path):
    path = tmp_path / "certificate.json"
    path.write_text(certificate_json(faulty))
    assert certificate_json(read_certificate(path)) == certificate_json(faulty)
    sentences = json.loads(path.read_text())["sentences"]
    assert sentences["failures"] == [each.text for each in faulty.failures]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1}'])
def test_a_damaged_certificate_is_refused(content, tmp_path):
    path = tmp_path / "certificate.json"
    path.write_text(content)
    with pytest.raises(InputError, match="certificate"):
        read_certificate(path)


def test_the_verdict_is_said_first(faithful, faulty):
    assert certificate_text(faithful).startswith("verdict    passed: onnx int8 is equivalent")
    assert headline(faulty) == "failed: onnx int8 is not shown to match its model; do not ship it"
    assert "harmful" in certificate_text(faulty)
    labels, logits = drawn(100)
    assert headline(certificate(labels, logits, logits)) == (
        "undecided: these examples cannot show that onnx int8 is equivalent to its model"
    )


def test_names_of_data_are_inert_on_the_page_and_in_the_card(faulty):
    text = page(faulty)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert text == page(faulty)
    assert "<script>" not in card_section(faulty)
    for name in NAMES[:3]:
        assert name in text


def test_the_page_has_every_class_with_its_result(faulty):
    text = page(faulty)
    assert text.count("up to ") >= len(NAMES)  # a bar per class, with its text alternative
    assert "falls" in text
    assert "Why it failed" in text


def test_nothing_that_was_not_measured_is_shown(faithful):
    assert "latency" in certificate_text(faithful)
    made = without_times(faithful)
    assert "latency" not in certificate_text(made)
    assert "batch of 1" not in page(made)


def test_changed_predictions_are_counted(faulty):
    text = certificate_text(faulty)
    lost = sum(each.lost for each in faulty.classes)
    assert f"{lost} harmful, 0 beneficial" in text
    assert np.isclose(faulty.arm.flips.lost, lost)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Rule(("stars",), numbers=True), "1 of 2 numbers differ by more than rounding, by up to 2"),
        (Rule(("a",), several=True), "1 of 2 labels differ, 0 are answered by one side only, and"),
    ],
)
def test_differences_of_numbers_are_no_labels(rule, text):
    tally = AnswerTally(rule, rule)
    tally.add(np.float32([[1], [2]]), np.float32([[-1], [2]]))
    assert tally.differences().text().startswith(text)
    assert tally.differences().decided == 0


def test_the_table_of_products_says_what_they_were_read_from(faithful):
    assert f"Products of one batch, from the {faithful.dtypes.source}" in page(faithful)


def test_another_value_of_the_metric_is_a_difference_from_the_certificate(faithful, faulty):
    assert list(differences(faithful, faithful)) == []
    labels, logits = drawn()
    broken = logits.copy()
    broken[labels == 3, 0] += 10
    # The verdict is the same, and only what was measured differs.
    stated = replace(faithful, comparison=faulty.comparison)
    (said,) = differences(stated, faithful)
    f1 = [f1_score(labels, each.argmax(axis=1), average="macro") for each in (logits, broken)]
    accuracy = [(labels == each.argmax(axis=1)).mean() for each in (logits, broken)]
    values = accuracy if stated.comparison.metric == "accuracy" else f1
    assert said.endswith(f"of model and artifact: {values[0]:.4f} and {values[1]:.4f}.")
    (said,) = differences(faithful, stated)
    assert said.endswith(f"of model and artifact: {values[0]:.4f} and {values[0]:.4f}.")


def test_the_longest_bar_of_a_class_almost_fills_its_cell(faulty):
    """The axis goes from 5 % to 95 % of the cell and ends 5 % after the largest loss."""
    bars = re.findall(r'<line x1="5%"[^>]* x2="([\d.]+)%"[^>]*class="inner a[23]"', page(faulty))
    most = max(each.hidden_loss for each in faulty.classes)
    expected = [5 + 90 * each.hidden_loss / (1.05 * most) for each in faulty.classes]
    assert [float(bar) for bar in bars] == pytest.approx(expected, abs=0.06)
    assert max(float(bar) for bar in bars) > 90
