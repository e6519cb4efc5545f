"""The bag-of-words baseline: TF-IDF with logistic regression, without a pretrained model."""

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

# scikit-learn's default of 1 regularises a few thousand unit-length rows too strongly.
INVERSE_REGULARISATION = 10.0


def check_baseline(data: ClassificationData) -> None:
    """Check that the data consist of texts.

    Raises:
        InputError: The inputs are not texts.
    """
    if data.kind != "text":
        raise InputError(
            f"--baseline supports only text, and {data.name} contains {data.kind}s. "
            "Remove the flag."
        )


def bag_of_words_baseline(task: Task, split: str) -> Outcome:
    """Fit TF-IDF (words and pairs of words, logarithmic counts) with logistic regression.

    It is fitted on the training split. The two texts of a pair are joined. With several labels per
    text, one regression is fitted per label.

    Args:
        task: Task on texts or pairs of texts.
        split: Split to predict.

    Raises:
        InputError: The texts contain no words.
    """
    targets = np.asarray(task.labels["train"])
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model: Any = LogisticRegression(C=INVERSE_REGULARISATION, solver="newton-cg")
    if targets.ndim == 2:
        model = OneVsRestClassifier(model)
    try:
        words = vectorizer.fit_transform(joined_texts(task.data, "train"))
    except ValueError as error:
        raise InputError(f"--baseline: {task.data.name}: {error}. Remove the flag.") from None
    with warnings.catch_warnings():
        # A label without training texts has a constant prediction, which is intended.
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
    """Return the metrics of the baseline on `split` as text, or why it failed."""
    started = time.perf_counter()
    try:
        metrics = bag_of_words_baseline(task, split).metrics()
    except InputError as error:  # must not fail a run whose model is already trained
        return f"none: {error}"
    return (
        f"TF-IDF with logistic regression: {headline(task.problem, metrics)}, "
        f"{time.perf_counter() - started:.1f} s"
    )
