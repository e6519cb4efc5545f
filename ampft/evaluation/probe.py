"""Logistic regression on the features that a model's head reads, and as the start of the head.

The features are the inputs of the head's last layer, pooled and joined over windows or words as its
logits are. Fine-tuning from such a head distorts the pretrained features less (Kumar et al., 2022,
"Fine-Tuning can Distort Pretrained Features and Underperform Out-of-Distribution").
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn
from torch.nn import functional

from ampft.errors import InputError
from ampft.evaluation.evaluate import as_array
from ampft.kinds.logits import LABEL_WEIGHTS, NO_LABEL
from ampft.models.freezing import last_layers
from ampft.models.weights import LoadedModel
from ampft.tasks.loss import summed_binary_cross_entropy, summed_cross_entropy, summed_squared_error
from ampft.tasks.task import LabelledExamples, Task
from ampft.text.numbers import counted

CHECKED = 8  # examples whose logits are compared with the regression's
BATCH = 32  # examples per forward pass; fixed, so that no setting of a run changes the weights
MAX_UNITS = 20_000  # examples, or words, that a regression is fitted on
# Inverses of the strength of regularisation, for features whose mean squared norm is 1.
STRENGTHS = (1.0, 10.0, 100.0)
FOLDS, FOLDED_UNITS = 3, 2_000  # that choose among them
ITERATIONS = 200
# Products of rows, features and classes up to which one thread fits. Threads wait for each other
# in every one of thousands of small operations: 245 s instead of 10 s beside other programs.
ONE_THREAD = 10**8
SAME_LOGITS = 1e-3  # largest relative difference between a head and its regression, in float32
PROBE = "probe"
# Least share of the regression's logits that a head begins with: training makes whole ones
# overconfident (`benchmarks/LOG.md`, "The size of the probe").
START = 0.25
# Where folds choose a larger share: with so many classes and so few rows of each on average.
# Elsewhere only `START` was measured (`benchmarks/LOG.md`, "The start of the head by what folds
# say").
MANY_CLASSES, FEW_ROWS_OF_A_CLASS = 20, 20


def with_probed_head(
    task: Task,
    loaded: LoadedModel,
    device: torch.device,
    *,
    name: str = "--head_init probe",
    size: float | None = 1.0,
    share: Callable[[Tensor], Tensor] = lambda weights: weights,
) -> LoadedModel:
    """Set the last layer of a model's head to logistic regression on the features that it reads.

    It draws no random number, and the model is on the CPU and in training mode as before.

    Args:
        task: Task whose training split the regression is fitted on.
        loaded: Model in float32.
        name: Flag that asks for it, for the messages.
        size: Factor on the regression's weights, which changes no predicted class; None for
            `start_share`.
        share: Function that returns the weights of the first process, in all of them.

    Raises:
        InputError: The head has no single last linear layer that is trained.
    """
    if task.row.number_labels:
        size = 1.0  # its outputs are numbers, not logits
    model, layer = loaded.model, _last_layer(loaded.model, len(task.label_names), name)
    before, was_training = next(model.parameters()).device, model.training
    if before != device:
        model.to(device)
    model.eval()
    try:
        rows = _training_rows(task, model, layer)
        regression = fit_regression(rows, len(task.label_names))
        weight, bias = regression.weight, regression.bias
        if size is None:
            size = start_share(rows, regression)
        set_head(task, model, (share(size * weight), share(size * bias)), name)
        _check(task, model, layer)
    finally:
        if before != device:
            model.to(before)
        model.train(was_training)
    kind = "ridge" if task.row.number_labels else "logistic"
    scaled = f"; its logits are multiplied by {size:g}" if size != 1 else ""
    note = (
        f"the head begins as {kind} regression on {counted(len(rows.labels), 'feature vector')} of "
        f"the training split (inverse regularisation {regression.strength:g}, chosen by folds)"
        f"{scaled}"
    )
    return replace(loaded, notes=(*loaded.notes, note), probe=(weight, bias))


def set_head(task: Task, model: nn.Module, probe: tuple[Tensor, Tensor], flag: str) -> None:
    """Set the last layer of a model's head to a regression that was fitted before."""
    layer = _last_layer(model, len(task.label_names), flag)
    with torch.no_grad():
        layer.weight.copy_(probe[0])
        if layer.bias is not None:
            layer.bias.copy_(probe[1])


def _last_layer(model: nn.Module, classes: int, flag: str) -> nn.Linear:
    found = list(last_layers(model, classes).values())
    if len(found) != 1:
        raise InputError(
            f"{flag}: the head of {type(model).__name__} has {len(found) or 'no'} linear layers "
            f"that are trained and return {classes} logits, and exactly one is needed. Remove the "
            "flag."
        )
    return found[0]


@contextmanager
def _returning_features(layer: nn.Linear) -> Iterator[None]:
    """Make a layer return its inputs, so that a model's logits are the features of its head."""
    former = layer.__dict__.get("forward")
    layer.forward = lambda input: input  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.forward
        if former is not None:
            layer.forward = former  # type: ignore[method-assign]


def _batches(
    task: Task, model: nn.Module, examples: LabelledExamples, order: npt.NDArray[np.int64]
) -> Iterator[tuple[Tensor, Mapping[str, Tensor]]]:
    with torch.no_grad():
        for start in range(0, len(order), BATCH):
            inputs = examples.collate(order[start : start + BATCH])
            yield task.logits(model, inputs), inputs


def training_features(task: Task, model: nn.Module, flag: str) -> Rows:
    """Return what the last layer of a model reads of all training rows, or words, in order.

    Raises:
        InputError: The head has no single last linear layer.
    """
    layer = _last_layer(model, len(task.label_names), flag)
    return _training_rows(task, model, layer, np.arange(len(task.examples("train").lengths)))


def _training_rows(
    task: Task, model: nn.Module, layer: nn.Linear, order: npt.NDArray[np.int64] | None = None
) -> Rows:
    """Return the rows of a layer's regression: the examples, or words, of training.

    Args:
        order: Indices of all examples; None for at most `MAX_UNITS` at random.
    """
    examples = task.examples("train")
    is_sample = order is None
    if order is None:
        order = np.random.default_rng(0).permutation(len(examples.lengths))
    features: list[Tensor] = []
    labels: list[Tensor] = []
    weights: list[Tensor] = []
    with _returning_features(layer):
        for rows, inputs in _batches(task, model, examples, order):
            targets = inputs["labels"]
            has_gaps = targets.ndim == 1 and not targets.is_floating_point()
            counts = targets != NO_LABEL if has_gaps else slice(None)
            features.append(rows.cpu().double()[counts])
            labels.append(targets[counts])
            if LABEL_WEIGHTS in inputs:
                weights.append(inputs[LABEL_WEIGHTS].double()[counts])
            if is_sample and sum(map(len, labels)) >= MAX_UNITS:
                break
    given = torch.cat(weights) if weights else None
    of_classes = None if task.class_weights is None else torch.from_numpy(task.class_weights)
    return Rows(torch.cat(features), torch.cat(labels), given, layer.bias is not None, of_classes)


class Rows(NamedTuple):
    """What a regression is fitted on."""

    features: Tensor  # (n, H) float64.
    # (n,) classes, or (n, K) whether a row has a label; or (n,) float64 numbers, which ridge
    # regression fits.
    labels: Tensor
    weights: Tensor | None = None  # (n,) float64, as scikit-learn's `sample_weight`; None for 1.
    has_bias: bool = True  # Whether the regression has biases; heads of decoders have none.
    # (K,) weights of the classes, or of rows that have a label; None for 1.
    class_weights: Tensor | None = None

    @property
    def are_numbers(self) -> bool:
        """Whether labels are numbers."""
        return self.labels.ndim == 1 and self.labels.is_floating_point()

    def of(self, chosen: Any) -> Rows:
        """Return some of the rows."""
        weights = None if self.weights is None else self.weights[chosen]
        return self._replace(
            features=self.features[chosen], labels=self.labels[chosen], weights=weights
        )


class Regression(NamedTuple):
    """A regression, and how well folds of its rows predict each other."""

    weight: Tensor  # (K, H) float64.
    bias: Tensor  # (K,) float64.
    strength: float  # Inverse strength of the regularisation, chosen by folds.
    # Summed loss of the first `FOLDED_UNITS` rows by regressions on other folds; None if there were
    # no folds.
    unseen_loss: float | None = None


def fit_regression(rows: Rows, classes: int) -> Regression:
    """Fit logistic regression, regularised as strongly as folds of the rows ask for.

    The bias is not regularised, as in scikit-learn, whose loss this is. Numbers are standardized.

    Args:
        rows: Features, labels and weights.
        classes: Number of classes, K; 1 for numbers.
    """
    features, labels = rows.features, rows.labels
    scale = float(features.square().sum(1).mean().sqrt().clamp(min=1e-12))
    mean, unit = 0.0, 1.0
    if rows.are_numbers:
        mean = float(labels.mean()) * rows.has_bias
        unit = float((labels - mean).square().mean().sqrt().clamp(min=1e-12))
        labels = (labels - mean) / unit
    rows = rows._replace(features=features / scale, labels=labels)
    threads = torch.get_num_threads()
    if features.numel() * classes <= ONE_THREAD:
        torch.set_num_threads(1)
    try:
        strength, unseen_loss = _strength(rows.of(slice(FOLDED_UNITS)), classes)
        weight, bias = _fit(rows, classes, strength)
    finally:
        torch.set_num_threads(threads)
    return Regression(weight * (unit / scale), bias * unit + mean, strength, unseen_loss)


def start_share(rows: Rows, regression: Regression) -> float:
    """Return the share of a regression's logits that a head begins with, from `START` to 1.

    With it, the head is as sure of its training rows as the regression is right about rows that it
    did not see: their losses are equal. A smaller share pulls a good regression of many classes
    away from what it knows; a larger one leaves nothing to learn from.
    """
    classes = len(regression.bias)
    has_few_rows = len(rows.labels) <= FEW_ROWS_OF_A_CLASS * classes
    is_measured = rows.labels.ndim == 1 and classes >= MANY_CLASSES and has_few_rows
    if regression.unseen_loss is None or rows.are_numbers or not is_measured:
        return START
    weight, bias, unseen_loss = regression.weight, regression.bias, regression.unseen_loss
    seen = rows.of(slice(FOLDED_UNITS))
    # The loss of the rows of the regression falls as its logits grow.
    shares = np.arange(round(START * 100), 100) / 100
    for share in shares.tolist():
        if float(_loss(seen, share * weight, share * bias)) <= unseen_loss:
            return share
    return 1.0


def _strength(rows: Rows, classes: int) -> tuple[float, float | None]:
    """Return the inverse strength with the lowest loss of unseen rows, and that loss."""
    labels = rows.labels
    if rows.are_numbers:
        labels = torch.zeros(len(labels), dtype=torch.int64)
    strata = labels.numpy() if labels.ndim == 1 else labels.numpy().argmax(1)
    if np.unique(strata, return_counts=True)[1].max() < FOLDS:
        return STRENGTHS[1], None
    losses = np.zeros(len(STRENGTHS))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(strata, strata))
    for train, held_out in folds:
        for place, strength in enumerate(STRENGTHS):
            weight, bias = _fit(rows.of(train), classes, strength)
            losses[place] += float(_loss(rows.of(held_out), weight, bias))
    return STRENGTHS[int(losses.argmin())], float(losses.min())


def _loss(rows: Rows, weight: Tensor, bias: Tensor) -> Tensor:
    logits = rows.features @ weight.T + bias
    if rows.are_numbers:
        return summed_squared_error(logits[:, 0], rows.labels, weights=rows.weights)
    if rows.labels.ndim == 1:
        return summed_cross_entropy(
            logits, rows.labels.long(), weights=rows.weights, class_weights=rows.class_weights
        )
    return summed_binary_cross_entropy(
        logits, rows.labels, weights=rows.weights, positive_weights=rows.class_weights
    )


def _fit(rows: Rows, classes: int, strength: float) -> tuple[Tensor, Tensor]:
    """Minimise strength * loss + |weights|^2 / 2 by L-BFGS, from zeros; for numbers exactly."""
    if rows.are_numbers:
        return _ridge(rows, strength)
    weight = torch.zeros(classes, rows.features.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=rows.has_bias)
    trained = [weight, bias] if rows.has_bias else [weight]
    optimizer = torch.optim.LBFGS(
        trained, max_iter=ITERATIONS, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = weight.square().sum() / (2 * strength)
        # A class without rows, or with all of them, would send its bias to infinity.
        penalty = penalty + 1e-4 * bias.square().sum()
        loss = _loss(rows, weight, bias) + penalty
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach(), bias.detach()


def _ridge(rows: Rows, strength: float) -> tuple[Tensor, Tensor]:
    """Minimise strength * half the squared error + |weights|^2 / 2; a bias is free."""
    features, labels, weights, has_bias, _ = rows
    if weights is None:
        weights = torch.ones_like(labels)
    means = [has_bias * (weights @ each) / weights.sum() for each in (features, labels)]
    centred, target = features - means[0], labels - means[1]
    gram = centred.T @ (centred * weights[:, None])
    gram += torch.eye(len(gram), dtype=gram.dtype) / strength
    weight = torch.linalg.solve(gram, centred.T @ (weights * target))
    return weight[None], (means[1] - weight @ means[0])[None]


def _check(task: Task, model: nn.Module, layer: nn.Linear) -> None:
    """Check on a few examples that the model's logits are the regression's.

    Raises:
        InputError: They are not, so that the layer is not the last one.
    """
    examples = task.examples("train")
    order = np.arange(min(CHECKED, len(examples.lengths)))
    ((logits, _),) = _batches(task, model, examples, order)
    with _returning_features(layer):
        ((features, _),) = _batches(task, model, examples, order)
    expected = functional.linear(features.float(), layer.weight, layer.bias)
    if (logits - expected).abs().max() > SAME_LOGITS * expected.abs().max().clamp(min=1.0):
        raise InputError(
            f"--head_init probe: the logits of {type(model).__name__} are not those of its last "
            "linear layer. Remove the flag."
        )


def probe_decoded(task: Task, model: Any, split: str) -> dict[str, npt.NDArray[Any]]:
    """Return the decoded predictions of a model for a split, in the order of its examples."""
    examples = task.examples(split)
    order = np.argsort(examples.lengths, kind="stable")
    parts = [
        {name: as_array(rows) for name, rows in task.problem.decode(logits, inputs).items()}
        for logits, inputs in _batches(task, model, examples, order)
    ]
    back = np.argsort(order)
    return {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}
