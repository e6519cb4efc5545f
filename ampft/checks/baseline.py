"""Simple methods without fine-tuning: logistic or ridge regression on TF-IDF and frozen features.

Frozen features are the mean hidden states of texts, and otherwise what the model's head reads, as
they are where the head began at such a regression.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeCV
from transformers import PreTrainedModel

from ampft.data.dataset import ClassificationData
from ampft.errors import InputError
from ampft.evaluation.compared_methods import decided_as_model
from ampft.evaluation.probe import (
    BATCH,
    MAX_UNITS,
    probe_decoded,
    set_head,
    training_features,
    with_probed_head,
)
from ampft.evaluation.simple_methods import BAG_OF_CHARACTERS, BAG_OF_WORDS, FROZEN
from ampft.fast.packing.install import packing_of
from ampft.kinds.inputs import PredictedMasks
from ampft.kinds.logits import model_inputs
from ampft.models.mean_pooling import MARK
from ampft.models.weights import LoadedModel
from ampft.runs.extension_points import MethodLimit
from ampft.tasks.outcome import Outcome
from ampft.tasks.task import Task
from ampft.text.numbers import duration
from ampft.text.scripts import MOST_TEXTS, need_characters

SHARE, LEAST_SECONDS = 0.1, 5.0  # of the training that a method may take, and allowed anyway
# Seconds per entry and class that regressions took on two cores of a CPU; entries are those of the
# features that are not 0. They only decide whether a method fits the time.
SECONDS_PER_WORD, SECONDS_PER_FEATURE = 2e-6, 3e-8
# scikit-learn's default of 1 regularises a few thousand unit-length rows too strongly.
INVERSE_REGULARISATION = 10.0
# Of ridge regression on rows of unit length, among which folds choose.
RIDGE_STRENGTHS, RIDGE_FOLDS = (0.01, 0.1, 1.0, 10.0), 3
MEASURED = 2  # batches whose time is measured
TIMED_TEXTS = 2000  # whose terms are counted to know the time of all
CHARACTERS = (1, 3)  # least and most in a term
Check = Callable[[float], None]


def bag_of_words_baseline(task: Task, split: str, check: Check = lambda seconds: None) -> Outcome:
    """Fit TF-IDF with logistic or ridge regression, see `term_weights`.

    It is fitted on the training split. The two texts of a pair are joined. With several labels per
    text, one regression is fitted per label.

    Args:
        check: Function that refuses the expected seconds.

    Raises:
        InputError: The texts contain no words, or it would take too long.
    """
    _check_seconds_of_terms(task.data, check)
    texts, targets = joined_texts(task.data, "train"), np.asarray(task.labels["train"])
    weights, classes = task.data.weights("train"), len(task.label_names)
    try:
        predict = bag_of_words_model(
            texts,
            targets,
            classes,
            "--baseline",
            check,
            weights=weights,
            class_weights=task.class_weights,
        )
    except InputError as error:
        raise InputError(str(error).replace(": ", f": {task.data.name}: ", 1)) from None
    return task.outcome(split, {_predicted(task): predict(joined_texts(task.data, split))})


def _check_seconds_of_terms(data: ClassificationData, check: Check) -> None:
    """Check the seconds that counting terms will take, before a million texts are in memory."""
    rows = len(data.splits["train"])
    if rows <= 2 * TIMED_TEXTS:
        return
    texts = joined_texts(data, "train", TIMED_TEXTS)
    started = time.perf_counter()
    with suppress(ValueError):  # none of these texts has a word
        term_weights(texts).fit_transform(texts)
    check((time.perf_counter() - started) * rows / TIMED_TEXTS)


def _predicted(task: Task) -> str:
    """Return the name of decoded predictions."""
    return "values" if task.row.number_labels else "probabilities"


def bag_of_words_model(
    texts: Sequence[str],
    targets: npt.NDArray[Any],
    classes: int,
    flag: str,
    check: Check = lambda seconds: None,
    *,
    weights: npt.NDArray[np.float64] | None = None,
    class_weights: npt.NDArray[np.float32] | None = None,
) -> Callable[[Sequence[str]], npt.NDArray[np.float32]]:
    """Fit the baseline; return the function that predicts (n, classes) probabilities.

    Args:
        targets: Their labels, (n,) or (n, classes).
        classes: Number of classes; those that no text has get a probability of 0.
        check: Function that refuses the expected seconds.
        weights: Weights of the texts, (n,); None for 1.
        class_weights: Weights of the classes, (classes,), see `Task.class_weights`.

    Raises:
        InputError: The texts contain no words.
    """
    vectorizer = term_weights(texts)
    try:
        words = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise InputError(f"{flag}: {error}. Remove the flag.") from None
    check(SECONDS_PER_WORD * words.nnz * classes)
    predict = regression(words, targets, classes, weights, class_weights)
    return lambda new: predict(vectorizer.transform(new))


def term_weights(texts: Sequence[str]) -> TfidfVectorizer:
    """Return TF-IDF with logarithmic counts: of words and pairs of words, or of characters.

    Where a tenth of the texts has no spaces between words, as Chinese and Thai, the terms are one
    to three characters.
    """
    if need_characters(texts):
        return TfidfVectorizer(analyzer="char", ngram_range=CHARACTERS, sublinear_tf=True)
    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)


def regression(
    features: Any,
    targets: npt.NDArray[Any],
    classes: int,
    weights: npt.NDArray[np.float64] | None,
    class_weights: npt.NDArray[np.float32] | None = None,
) -> Callable[[Any], npt.NDArray[np.float32]]:
    """Fit (n, f) features of unit length; return the function of (n, classes) probabilities.

    Numbers are fitted by ridge regression, whose function returns (n, 1) numbers. With several
    labels per row, each label is a question of its own.
    """
    if targets.dtype == np.float64:
        ridge = RidgeCV(RIDGE_STRENGTHS, cv=RIDGE_FOLDS)
        ridge.fit(features, targets, sample_weight=weights)
        return lambda new: ridge.predict(new).astype(np.float32)[:, None]
    if targets.ndim == 2:
        factors = np.ones(classes) if class_weights is None else class_weights
        of_labels = [
            _logistic(features, has.astype(np.int64), 2, weights, np.array([1.0, factor]))
            for has, factor in zip(targets.T, factors, strict=True)
        ]
        return lambda new: np.column_stack([predict(new)[:, 1] for predict in of_labels])
    return _logistic(features, targets.astype(np.int64), classes, weights, class_weights)


def _logistic(
    features: Any,
    targets: npt.NDArray[np.int64],
    classes: int,
    weights: npt.NDArray[np.float64] | None,
    class_weights: npt.NDArray[Any] | None,
) -> Callable[[Any], npt.NDArray[np.float32]]:
    known = np.unique(targets)
    model: Any = DummyClassifier()  # logistic regression needs two classes
    if len(known) > 1:
        given = None if class_weights is None else {k: float(class_weights[k]) for k in known}
        model = LogisticRegression(C=INVERSE_REGULARISATION, solver="newton-cg", class_weight=given)
    model.fit(features, targets, sample_weight=weights)

    def predict(new: Any) -> npt.NDArray[np.float32]:
        predicted = model.predict_proba(new)
        probabilities = np.zeros((len(predicted), classes), dtype=np.float32)
        probabilities[:, model.classes_] = predicted
        return probabilities

    return predict


def frozen_encoder_baseline(
    task: Task,
    split: str,
    device: torch.device,
    seed: int,
    check: Check,
    probe: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Outcome:
    """Fit logistic regression on features of the model before fine-tuning.

    The features of a text are the mean of the last hidden states of its tokens, in float32 and of
    unit length, as sentence-transformers computes it for all-MiniLM-L6-v2. Other inputs, texts in
    windows and models with a decoder have the features that the head reads. If the head began at a
    regression on these features, or on the mean through an added layer, it is not fitted again.

    Args:
        seed: Seed of the parameters that are drawn at random.
        check: Function that refuses the expected seconds.
        probe: Weights and biases that the head of the run began at; None fits them.

    Raises:
        InputError: The model has no linear head, or it would take too long.
    """
    loaded, has_means = _frozen_model(task, seed)
    model: Any = loaded.model.to(device).eval()
    train, targets = task.examples("train"), np.asarray(task.labels["train"])
    if probe is not None and (not has_means or getattr(model.config, MARK, False)):
        check(_seconds_of_rows(task, model, len(task.labels[split])))
        set_head(task, model, probe, "--baseline")
        return task.outcome(split, probe_decoded(task, model, split))
    if has_means and loaded.padding_free:
        _undo_packing(model)
    rows = min(len(train.lengths), MAX_UNITS) + len(task.labels[split])
    width = getattr(model.config, "hidden_size", None) or 1024
    entries = min(len(targets), MAX_UNITS) * width * len(task.label_names)
    check(_seconds_of_rows(task, model, rows) + SECONDS_PER_FEATURE * entries)
    if not has_means:
        probed = with_probed_head(task, loaded, device, name="--baseline")
        return task.outcome(split, probe_decoded(task, probed.model.to(device).eval(), split))
    chosen = np.random.default_rng(0).permutation(len(targets))[:MAX_UNITS]
    weights = None if train.row_weights is None else train.row_weights[chosen]
    features = _embeddings(model, train, chosen)
    predict = regression(
        features, targets[chosen], len(task.label_names), weights, task.class_weights
    )
    new = task.examples(split)
    everything = np.arange(len(new.lengths))
    return task.outcome(split, {_predicted(task): predict(_embeddings(model, new, everything))})


def _frozen_model(task: Task, seed: int) -> tuple[LoadedModel, bool]:
    """Return the model before fine-tuning, and whether its features are means of tokens."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        loaded = task.load_model()
    model: Any = loaded.model
    train = task.examples("train")
    has_means = task.row.kind.has_texts and not model.config.is_encoder_decoder
    has_means = has_means and len(train.lengths) == len(task.labels["train"])
    # The body of a model of own code can be anything, such as a table of embeddings.
    return loaded, has_means and isinstance(model.base_model, PreTrainedModel)


def _undo_packing(model: Any) -> None:
    """Let a model compute all states: its last layer may compute only what the head reads."""
    packing_of(model).remove()


def frozen_features(
    task: Task, device: torch.device, seed: int, flag: str
) -> npt.NDArray[np.float32]:
    """Return features of all training rows, or words, of the model before fine-tuning, (n, H).

    These are the features of `frozen_encoder_baseline`, scaled to unit length.

    Args:
        seed: Seed of the parameters that are drawn at random.
        flag: Flag that asks for it, for the messages.

    Raises:
        InputError: The model has no linear head.
    """
    loaded, has_means = _frozen_model(task, seed)
    model: Any = loaded.model.to(device).eval()
    if not has_means:
        rows = training_features(task, model, flag).features
        return torch.nn.functional.normalize(rows).float().numpy()
    if loaded.padding_free:
        _undo_packing(model)
    train = task.examples("train")
    return _embeddings(model, train, np.arange(len(train.lengths)))


def _seconds_of_rows(task: Task, model: Any, rows: int) -> float:
    """Return the time that a number of rows will take, from a batch of rows of medium length.

    It is 0 for so few rows that measuring would take half as long.
    """
    if rows <= 2 * MEASURED * BATCH:
        return 0.0
    examples = task.examples("train")
    by_length = np.argsort(examples.lengths, kind="stable")
    start = max(0, (len(by_length) - BATCH) // 2)
    ids = by_length[start : start + BATCH]
    share = float(examples.lengths.mean() / max(1, examples.lengths[ids].max()))
    seconds = []
    with torch.no_grad():
        for _ in range(MEASURED):  # the first call can be slower
            started = time.perf_counter()
            task.logits(model, examples.collate(ids))
            seconds.append(time.perf_counter() - started)
    return rows * share * min(seconds) / len(ids)


def _embeddings(model: Any, examples: Any, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    order = np.argsort(examples.lengths[ids], kind="stable")
    rows = []
    with torch.no_grad():
        for start in range(0, len(order), BATCH):
            batch = model_inputs(examples.collate(ids[order[start : start + BATCH]]))
            inputs = {name: value.to(model.device) for name, value in batch.items()}
            states = model.base_model(**inputs)[0].float()
            real = inputs["attention_mask"].unsqueeze(-1)
            mean = (states * real).sum(1) / real.sum(1)
            rows.append(torch.nn.functional.normalize(mean).cpu().numpy())
    embeddings = np.concatenate(rows)
    return np.asarray(embeddings[np.argsort(order)])


def joined_texts(data: ClassificationData, split: str, rows: int | None = None) -> list[str]:
    """Return one string per example: the text, or the texts of a pair on two lines.

    Args:
        rows: How many of the first examples; None for all.
    """
    columns = (data.splits[split][name][:rows] for name in data.input_columns)
    return ["\n".join(texts) for texts in zip(*columns, strict=True)]


def baselines(
    task: Task,
    outcome: Outcome,
    device: torch.device,
    seed: int,
    limit: MethodLimit | None,
    probe: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> dict[str, Callable[[], Outcome]]:
    """Return functions that predict the rows of an outcome by the methods that fit its task.

    Args:
        outcome: Outcome of the fine-tuned model.
        limit: Time that each method may take; None for no limit.
        probe: Weights and biases that the head began at; None without any.
    """
    split = outcome.split

    def check(expected: float) -> None:
        if limit is None or expected <= limit.seconds:
            return
        most = "a tenth of the training"
        if limit.is_left_of_max_time:
            most = f"the {duration(limit.seconds)} that are left of --max_time"
        raise InputError(
            f"it would take about {duration(expected)}, more than {most}. --baseline computes it"
        )

    def frozen(of_split: str) -> Outcome:
        return frozen_encoder_baseline(task, of_split, device, seed, check, probe)

    def words(of_split: str) -> Outcome:
        return bag_of_words_baseline(task, of_split, check)

    methods: dict[str, Callable[[], Outcome]] = {}
    if not isinstance(outcome, PredictedMasks):
        methods[FROZEN] = lambda: decided_as_model(task, split, frozen)
    if task.row.kind.has_texts:
        texts = joined_texts(task.data, "train", MOST_TEXTS)
        name = BAG_OF_CHARACTERS if need_characters(texts) else BAG_OF_WORDS
        methods[name] = lambda: decided_as_model(task, split, words)
    return methods
