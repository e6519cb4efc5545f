"""Entities and their scores, beside the package `seqeval`, and sums over sentences."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from seqeval.metrics import classification_report
from seqeval.scheme import IOB2

from ampft.data.row_labels import UnitLabels
from ampft.decision import bio_tags, entities
from ampft.features.trackers import confusion_table
from ampft.metrics.scores import report_scores
from ampft.tasks.report import report_from_json
from ampft.tasks.single_label import SingleLabel
from ampft.text.json_io import json_text
from ampft.words.token_labels import METRICS, TokenLabels, TokenPredictions, TokenReport

TYPES = ("LOC", "ORG", "PER")
TAGS = bio_tags(TYPES)


def random_outcome(seed, tags=TAGS, sentences=40, agreement=0.7) -> TokenPredictions:
    """Random tags, whether valid or not, and predictions that are often the same."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 9, sentences)
    words, k = int(counts.sum()), len(tags)
    labels = generator.integers(0, k, words)
    predicted = np.where(
        generator.random(words) < agreement, labels, generator.integers(0, k, words)
    )
    probabilities = generator.random((words, k)).astype(np.float32)
    probabilities[np.arange(words), predicted] += 1
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return TokenPredictions(labels, counts, probabilities, tags, "test")


def sentences_of(outcome, codes) -> list[list[str]]:
    parts = np.split(codes, np.cumsum(outcome.counts)[:-1])
    return [[outcome.label_names[code] for code in part] for part in parts]


@pytest.mark.parametrize("seed", range(8))
def test_scores_are_those_of_seqeval_in_strict_mode(seed):
    outcome = random_outcome(seed)
    expected = classification_report(
        sentences_of(outcome, outcome.labels),
        sentences_of(outcome, outcome.predicted),
        mode="strict",
        scheme=IOB2,
        output_dict=True,
        zero_division=0,
    )
    report = outcome.report()
    rows = dict(zip(TYPES, report.per_type, strict=True))
    rows |= {f"{name} avg": scores for name, scores in report.averages.items()}
    for name, scores in rows.items():
        theirs = expected[name]
        assert scores.precision == pytest.approx(theirs["precision"], abs=1e-12)
        assert scores.recall == pytest.approx(theirs["recall"], abs=1e-12)
        assert scores.f1 == pytest.approx(theirs["f1-score"], abs=1e-12)
        assert scores.support == theirs["support"]
        assert report.output_dict()[name] == pytest.approx(theirs, abs=1e-12)
    assert report.metrics()["micro_f1"] == outcome.metrics()["micro_f1"]


def test_entities_of_one_sentence_by_the_strict_rule():
    tags = ["I-PER", "B-PER", "I-PER", "I-LOC", "B-LOC", "B-LOC", "I-LOC", "O", "I-LOC"]
    assert list(entities(tags)) == [("PER", 1, 3), ("LOC", 4, 5), ("LOC", 5, 7)]


def test_an_entity_does_not_continue_in_the_next_sentence():
    labels = np.array([1, 2, 2])  # B-LOC I-LOC | I-LOC
    outcome = TokenPredictions(
        labels, np.array([2, 1]), np.eye(7, dtype=np.float32)[labels], TAGS, "test"
    )
    assert [row.support for row in outcome.scores()] == [1, 0, 0]
    assert outcome.metrics()["micro_f1"] == 1


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_leaving_a_sentence_out_is_a_subtraction(metric):
    outcome = random_outcome(3, sentences=12)
    sums = outcome.sums(metric.name)
    left_out = metric.leave_one_out(sums)[sums.pattern_of]
    ends = np.cumsum(outcome.counts)
    for sentence, (end, count) in enumerate(zip(ends, outcome.counts, strict=True)):
        words = np.r_[: end - count, end : ends[-1]]
        without = TokenPredictions(
            outcome.labels[words],
            np.delete(outcome.counts, sentence),
            outcome.probabilities[words],
            TAGS,
            "test",
        )
        assert left_out[sentence] == pytest.approx(metric.value(without.sums(metric.name)))


def test_plain_tags_are_scored_word_by_word():
    names = ("ADJ", "NOUN", "VERB")
    outcome = random_outcome(5, tags=names)
    one_hot = np.eye(3, dtype=bool)
    expected, _ = report_scores(one_hot[outcome.labels], one_hot[outcome.predicted], 3)
    for actual, theirs in zip(outcome.scores(), expected, strict=True):
        assert actual.f1 == pytest.approx(theirs.f1)
        assert actual.support == theirs.support
    assert outcome.metrics()["micro_f1"] == pytest.approx(outcome.metrics()["token_accuracy"])


def test_the_report_survives_its_file_and_names_the_confused_types():
    outcome = random_outcome(1)
    report = outcome.report()
    assert report_from_json(TokenReport, json.loads(json_text(report.as_dict()))) == report
    matrix = np.array(report.type_confusion)
    assert matrix.sum() == len(outcome.labels)
    is_person = np.isin(outcome.labels, [5, 6])
    assert matrix[2].tolist() == [
        np.isin(outcome.predicted[is_person], tags).sum() for tags in ([1, 2], [3, 4], [5, 6], [0])
    ]
    text = report.text()
    assert "micro average" in text
    assert "Confusion of types" in text


def test_cases_of_a_class_and_texts_of_choices():
    outcome = random_outcome(2)
    for index in range(3):
        tags = [1 + 2 * index, 2 + 2 * index]
        expected = [
            np.isin(s, tags).any() for s in np.split(outcome.labels, np.cumsum(outcome.counts)[:-1])
        ]
        found = TokenLabels.has_class(outcome.truth, TAGS, index)
        assert found.tolist() == expected
    choice = np.array([0, 5, 6, 1, -1])
    assert TokenLabels.choice_text(choice, TAGS) == "PER 2 to 3, LOC 4"
    assert TokenLabels.choice_text(np.array([0, 0]), TAGS) == "(no entity)"


def test_a_tag_that_continues_no_entity_is_shown():
    text = TokenLabels.choice_text(np.array([TAGS.index("I-LOC"), 0, TAGS.index("B-PER")]), TAGS)
    assert text == "PER 3, I-LOC 1 without B-LOC"


def test_the_constant_model_predicts_the_most_frequent_tag():
    problem = TokenLabels(SingleLabel(TAGS))
    train = UnitLabels(np.array([0, 0, 0, 1, 0, 5]), np.array([2, 4]))
    decoded = problem.constant(train, train)
    outcome = problem.outcome("test", train, decoded)
    assert outcome.only_prediction == "O"
    shares = np.array([4, 1, 1]) / 6
    assert outcome.metrics()["log_loss"] == pytest.approx(
        -(shares * np.log(shares)).sum(), rel=1e-5
    )
    assert problem.constant_loss(train) == pytest.approx(outcome.metrics()["log_loss"], rel=1e-4)
    assert random_outcome(0).only_prediction is None


def test_trackers_receive_the_confusion_matrix_of_the_types():
    outcome = random_outcome(0)
    table = confusion_table(outcome)
    assert [each.text for each in table.header[1:]] == list(TYPES)
    assert [[int(cell) for cell in row[1:]] for row in table.rows] == outcome.confusion().tolist()


def test_predictions_survive_their_table():
    found = random_outcome(3)
    table = pa.table(found.columns(slice(None)))
    back = TokenPredictions.from_table(table, json.loads(json.dumps(found.metadata())))
    for name in ("labels", "counts", "probabilities", "predicted"):
        np.testing.assert_array_equal(getattr(back, name), getattr(found, name))
    assert (back.label_names, back.split) == (TAGS, "test")
    assert back.report() == found.report()
