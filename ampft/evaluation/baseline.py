"""The bag-of-words baseline: TF-IDF with logistic regression, without a pretrained model."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from ampft.data.dataset import ClassificationData
from ampft.errors import InputError
from ampft.tasks.outcome import Outcome, headline
from ampft.tasks.task import Task

# scikit-learn's default of 1 regularises a few thousand unit-length rows too strongly.
INVERSE_REGULARISATION = 10.0


def check_baseline(task: Task) -> None:
    """Check that the data consist of texts.

    Raises:
        InputError: The inputs are not texts.
    """
    if not task.row.kind.has_texts:
        raise InputError(
            f"--baseline supports only texts, and {task.data.name} contains {task.data.kind} data. "
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
    texts, targets = joined_texts(task.data, "train"), np.asarray(task.labels["train"])
    try:
        predict = bag_of_words_model(texts, targets, len(task.label_names), "--baseline")
    except InputError as error:
        raise InputError(str(error).replace(": ", f": {task.data.name}: ", 1)) from None
    return task.outcome(split, {"probabilities": predict(joined_texts(task.data, split))})


def bag_of_words_model(
    texts: Sequence[str], targets: npt.NDArray[Any], classes: int, flag: str
) -> Callable[[Sequence[str]], npt.NDArray[np.float32]]:
    """Fit the baseline; return the function that predicts (n, classes) probabilities.

    Args:
        texts: Texts to fit.
        targets: Their labels, (n,) or (n, classes).
        classes: Number of classes; those that no text has get a probability of 0.
        flag: Flag that asks for it, for the message.

    Raises:
        InputError: The texts contain no words.
    """
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model: Any = LogisticRegression(C=INVERSE_REGULARISATION, solver="newton-cg")
    if targets.ndim == 2:
        model = OneVsRestClassifier(model)
    elif len(np.unique(targets)) == 1:
        model = DummyClassifier()  # logistic regression needs two classes
    try:
        words = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise InputError(f"{flag}: {error}. Remove the flag.") from None
    with warnings.catch_warnings():
        # A label that no text has, or every text, has a constant prediction, which is intended.
        warnings.filterwarnings("ignore", r"Label (not )?\d+ is present", UserWarning)
        model.fit(words, targets.astype(np.int64))

    def predict(new: Sequence[str]) -> npt.NDArray[np.float32]:
        predicted = model.predict_proba(vectorizer.transform(new))
        probabilities = np.zeros((len(predicted), classes), dtype=np.float32)
        probabilities[:, model.classes_] = predicted
        return probabilities

    return predict


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
