"""Baselines without fine-tuning: logistic regression on TF-IDF and on the model's embeddings."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from ampft.data.dataset import ClassificationData
from ampft.errors import InputError
from ampft.kinds.logits import model_inputs
from ampft.metrics.paired import paired_gain
from ampft.models.packing.install import packing_of
from ampft.tasks.outcome import Outcome, main_metrics_text
from ampft.tasks.task import Task

EMBEDDING_BATCH = 32  # examples
# scikit-learn's default of 1 regularises a few thousand unit-length rows too strongly.
INVERSE_REGULARISATION = 10.0


def check_has_texts(task: Task, flag: str) -> None:
    """Check that the data consist of texts, which a flag needs.

    Raises:
        InputError: The inputs are not texts.
    """
    if not task.row.kind.has_texts:
        raise InputError(
            f"{flag} supports only texts, and {task.data.name} contains {task.data.kind} data. "
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
    try:
        words = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise InputError(f"{flag}: {error}. Remove the flag.") from None
    predict = _logistic_regression(words, targets, classes)
    return lambda new: predict(vectorizer.transform(new))


def _logistic_regression(
    features: Any, targets: npt.NDArray[Any], classes: int
) -> Callable[[Any], npt.NDArray[np.float32]]:
    """Fit (n, f) features of unit length; return the function of (n, classes) probabilities."""
    model: Any = LogisticRegression(C=INVERSE_REGULARISATION, solver="newton-cg")
    if targets.ndim == 2:
        model = OneVsRestClassifier(model)
    elif len(np.unique(targets)) == 1:
        model = DummyClassifier()  # logistic regression needs two classes
    with warnings.catch_warnings():
        # A label that no text has, or every text, has a constant prediction, which is intended.
        warnings.filterwarnings("ignore", r"Label (not )?\d+ is present", UserWarning)
        model.fit(features, targets.astype(np.int64))

    def predict(new: Any) -> npt.NDArray[np.float32]:
        predicted = model.predict_proba(new)
        probabilities = np.zeros((len(predicted), classes), dtype=np.float32)
        probabilities[:, model.classes_] = predicted
        return probabilities

    return predict


def embedding_baseline(task: Task, split: str, device: torch.device) -> Outcome:
    """Fit logistic regression on the embeddings of the model before fine-tuning.

    An embedding is the mean of the last hidden states of an example's tokens, in float32 and of
    unit length, as sentence-transformers computes it for all-MiniLM-L6-v2.

    Args:
        task: Task on texts or pairs of texts.
        split: Split to predict.
        device: Device of the encoder.

    Raises:
        InputError: The model has no hidden states per token, or the examples are split into windows
            or words.
    """
    loaded = task.load_model()
    model: Any = loaded.model.to(device).eval()
    if loaded.padding_free:
        packing_of(model).remove()  # its last layer may compute only what the head reads
    if model.config.is_encoder_decoder:
        raise InputError(f"{type(model).__name__} has no encoder of its own")
    train, new = (_embeddings(model, task.examples(name)) for name in ("train", split))
    targets = np.asarray(task.labels["train"])
    if len(train) != len(targets):
        raise InputError("long texts are split into windows")
    predict = _logistic_regression(train, targets, len(task.label_names))
    return task.outcome(split, {"probabilities": predict(new)})


def _embeddings(model: Any, examples: Any) -> npt.NDArray[np.float32]:
    order = np.argsort(examples.lengths, kind="stable")
    rows = []
    with torch.no_grad():
        for start in range(0, len(order), EMBEDDING_BATCH):
            batch = model_inputs(examples.collate(order[start : start + EMBEDDING_BATCH]))
            inputs = {name: value.to(model.device) for name, value in batch.items()}
            states = model.base_model(**inputs)[0].float()
            real = inputs["attention_mask"].unsqueeze(-1)
            mean = (states * real).sum(1) / real.sum(1)
            rows.append(torch.nn.functional.normalize(mean).cpu().numpy())
    embeddings = np.concatenate(rows)
    return np.asarray(embeddings[np.argsort(order)])


def joined_texts(data: ClassificationData, split: str) -> list[str]:
    """Return one string per example: the text, or the texts of a pair on two lines."""
    columns = (data.splits[split][name][:] for name in data.input_columns)
    return ["\n".join(texts) for texts in zip(*columns, strict=True)]


def baseline_summaries(task: Task, outcome: Outcome, device: torch.device) -> list[str]:
    """Return the metrics of both baselines as text, or why one failed, and which beats the model.

    Args:
        task: Task on texts or pairs of texts.
        outcome: Outcome of the fine-tuned model on the split to predict.
        device: Device of the encoder.
    """
    split = outcome.split
    baselines: dict[str, Callable[[], Outcome]] = {
        "TF-IDF": lambda: bag_of_words_baseline(task, split),
        "frozen encoder": lambda: embedding_baseline(task, split, device),
    }
    summaries, better = [], []
    for name, predict in baselines.items():
        started, found = time.perf_counter(), None
        try:
            found = predict()
            result = main_metrics_text(task.problem, found.metrics())
        except InputError as error:  # must not fail a run whose model is already trained
            result = f"none: {error}"
        seconds = time.perf_counter() - started
        summaries.append(f"{name} with logistic regression: {result}, {seconds:.1f} s")
        if found is not None:
            ours, theirs = (each.correct.astype(np.float64) for each in (outcome, found))
            gain = paired_gain(theirs, ours, np.ones(len(outcome)))
            if gain.is_beyond_chance:
                better.append(
                    f"{name} is better than the fine-tuned model by more than chance: it is right "
                    f"on {100 * gain.mean:.1f} % more of the {len(outcome)} examples. Use it, or "
                    "train longer or on more rows"
                )
    return [*summaries, *better]
