"""The bag-of-words baseline: what can be had without any pretrained model."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from ampft.data.dataset import ClassificationData
from ampft.errors import InputError
from ampft.tasks.outcome import Outcome, headline
from ampft.tasks.task import Task

# scikit-learn's default of 1 regularises too strongly for unit-length rows of some thousand texts
INVERSE_REGULARISATION = 10.0


def check_baseline(data: ClassificationData) -> None:
    """Check that data has words to count.

    Raises:
        InputError: The inputs are not texts.
    """
    if data.kind != "text":
        raise InputError(
            f"--baseline: counts words, and {data.name} contains {data.kind}s. Remove the flag."
        )


def bag_of_words_baseline(task: Task, split: str) -> Outcome:
    """Fit TF-IDF (words and pairs of words, logarithmic counts) with logistic regression.

    Trained on `train`. The two texts of a pair are joined. Where a text can have any number of
    labels, each label has a regression of its own.

    Args:
        task: A task on texts or pairs of texts.
        split: Split to predict.

    Raises:
        InputError: The texts hold no words.
    """
    targets = task.labels["train"]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model: Any = LogisticRegression(C=INVERSE_REGULARISATION, solver="newton-cg")
    if targets.ndim == 2:
        model = OneVsRestClassifier(model)
    try:
        words = vectorizer.fit_transform(joined_texts(task.data, "train"))
    except ValueError as error:
        raise InputError(f"--baseline: {task.data.name}: {error}. Remove the flag.") from None
    with warnings.catch_warnings():
        # A label that no training text has gets a constant, and that is meant.
        warnings.filterwarnings("ignore", r"Label not \d+ is present", UserWarning)
        model.fit(words, targets.astype(np.int64))
    predicted = model.predict_proba(vectorizer.transform(joined_texts(task.data, split)))
    probabilities = np.zeros((len(predicted), len(task.label_names)), dtype=np.float32)
    probabilities[:, model.classes_] = predicted
    return task.outcome(split, {"probabilities": probabilities})


def joined_texts(data: ClassificationData, split: str) -> list[str]:
    """Return one string per example: the text, or the texts of a pair on two lines."""
    columns = (data.splits[split][name][:] for name in data.input_columns)
    return ["\n".join(texts) for texts in zip(*columns, strict=True)]


def baseline_summary(task: Task, split: str) -> str:
    """Return what TF-IDF with logistic regression reaches on `split`, or why there is no result."""
    started = time.perf_counter()
    try:
        metrics = bag_of_words_baseline(task, split).metrics()
    except InputError as error:  # a trained model is not given up for it
        return f"none: {error}"
    return (
        f"TF-IDF with logistic regression: {headline(task.problem, metrics)}, "
        f"{time.perf_counter() - started:.1f} s"
    )
