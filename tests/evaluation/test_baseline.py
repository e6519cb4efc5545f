import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from tiny_text import tiny_task

from ampft.data.dataset import ClassificationData
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError
from ampft.evaluation import baseline
from ampft.evaluation.baseline import (
    bag_of_words_baseline,
    baseline_summaries,
    check_has_texts,
    embedding_baseline,
)
from ampft.tasks.settings import TaskSettings
from ampft.tasks.task import make_task

CPU = torch.device("cpu")


def task_of(rows, columns):
    names = ClassLabel(names=["x", "y", "never"])
    features = Features({**{name: Value("string") for name in columns}, "label": names})
    table = dict(zip((*columns, "label"), map(list, zip(*rows, strict=True)), strict=True))
    part = Dataset.from_dict(table, features=features)
    splits = DatasetDict({"train": part, "test": part})
    return make_task(ClassificationData(splits, columns, "text", "made", {}, ()), TaskSettings())


@pytest.mark.full
@pytest.mark.slow
def test_it_equals_a_scikit_learn_pipeline():
    data = load_data(DataRequest(max_train_samples=300, max_predict_samples=100))
    twin = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        LogisticRegression(C=10.0, solver="newton-cg"),
    ).fit(data.splits["train"]["text"][:], data.splits["train"]["label"][:])
    test = data.splits["test"]
    task = make_task(data, TaskSettings())
    metrics = bag_of_words_baseline(task, "test").metrics()
    assert metrics["accuracy"] == twin.score(test["text"][:], test["label"][:])
    assert 0.3 < metrics["macro_f1"] < 0.9
    expected = f"accuracy {metrics['accuracy']:.4f}, macro F1 {metrics['macro_f1']:.4f}"
    words, _ = baseline_summaries(task, bag_of_words_baseline(task, "test"), CPU)
    assert words.startswith(f"TF-IDF with logistic regression: {expected}")


def test_a_baseline_that_is_clearly_better_than_the_model_is_named(monkeypatch, tiny_bert):
    task = tiny_task(tiny_bert, train=40, validation=40)
    truth = np.asarray(task.labels["validation"])

    def outcome(right):
        chosen = np.where(np.arange(len(truth)) < right, truth, (truth + 1) % 3)
        return task.outcome("validation", {"probabilities": np.eye(3, dtype=np.float32)[chosen]})

    found = outcome(30)
    monkeypatch.setattr(baseline, "bag_of_words_baseline", lambda task, split: found)
    monkeypatch.setattr(baseline, "embedding_baseline", lambda task, split, device: outcome(22))
    lines = baseline_summaries(task, outcome(20), CPU)
    assert len(lines) == 3, "two more right answers are no more than chance"
    assert lines[2].startswith("TF-IDF is better than the fine-tuned model by more than chance: it")
    assert "on 25.0 % more of the 40 examples" in lines[2]
    assert len(baseline_summaries(task, outcome(30), CPU)) == 2


@pytest.mark.slow
def test_the_frozen_encoder_equals_its_twin(tiny_bert):
    """A twin by hand: mean of the states of the real tokens, one text at a time, unit length."""
    task = tiny_task(tiny_bert, train=12)
    model = task.load_model().model.eval()

    def embed(split):
        rows, examples = [], task.examples(split)
        for index in range(len(examples.lengths)):
            batch = examples.collate(np.array([index]))
            # Arguments by position take the padded path.
            states = model.bert(batch["input_ids"], batch["attention_mask"])[0][0]
            rows.append(torch.nn.functional.normalize(states.mean(0), dim=0))
        return torch.stack(rows).detach().numpy()

    regression = LogisticRegression(C=10.0, solver="newton-cg")
    regression.fit(embed("train"), np.asarray(task.labels["train"]))
    expected = regression.predict_proba(embed("validation"))
    outcome = embedding_baseline(task, "validation", CPU)
    np.testing.assert_allclose(outcome.probabilities, expected, atol=1e-5)
    assert task.load_model().model.training == model.training


@pytest.mark.slow
def test_both_texts_of_a_pair_are_used():
    rows = [("same", "good", 0), ("same", "bad", 1)] * 5
    pairs = bag_of_words_baseline(task_of(rows, ("a", "b")), "test").metrics()
    first = bag_of_words_baseline(task_of([(a, y) for a, _, y in rows], ("a",)), "test").metrics()
    assert (pairs["accuracy"], first["accuracy"]) == (1.0, 0.5)


@pytest.mark.slow
def test_a_class_without_rows_counts_as_zero():
    metrics = bag_of_words_baseline(
        task_of([("good", 0), ("bad", 1)] * 5, ("a",)), "test"
    ).metrics()
    assert metrics["macro_f1"] == pytest.approx(2 / 3)


@pytest.mark.slow
def test_images_have_no_words():
    with pytest.raises(
        InputError, match=r"--baseline supports only texts, and digits contains image data"
    ):
        check_has_texts(
            make_task(load_data(DataRequest(dataset_name="digits")), TaskSettings()), "--baseline"
        )


@pytest.mark.slow
def test_texts_without_words_are_refused():
    with pytest.raises(InputError, match=r"--baseline: made: empty vocabulary"):
        bag_of_words_baseline(task_of([("!", 0), ("?", 1)], ("a",)), "test")
