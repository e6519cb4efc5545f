"""Rules that detect a training that learned nothing or was destroyed.

The rules compare the result with a constant model, which predicts for every example the
frequencies of the classes in `train` (scikit-learn's `DummyClassifier(strategy="prior")`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ampft.data.row_labels import UnitLabels
from ampft.data.splits import Groups, dependent_groups
from ampft.errors import TrainingStopped
from ampft.metrics.paired import FloatArray, paired_gain
from ampft.metrics.sums import class_counts
from ampft.tasks.loss import MAX_EXAMPLES
from ampft.tasks.outcome import Outcome
from ampft.tasks.rare_classes import never_predicted_text
from ampft.tasks.task import Task
from ampft.text.numbers import counted
from ampft.text.warning_names import (
    EXPLODED,
    NEAR_CHANCE,
    NEVER_MOVED,
    NEVER_PREDICTED,
    NOT_BETTER,
    ONE_PREDICTION,
)

# A loss that rests at chance differs from it by a few percent over some hundred examples; a model
# that has lost its weights is far above it (1.8 to 15,000 times in `benchmarks/LOG.md`).
EXPLODED_ABOVE = 1.5
# A training that is not over could still recover, so more is needed than at its end: random classes
# lose three times as much as their frequencies only if each gets a probability of 98 % or more (two
# classes: ln 2 * 3 = -ln(1 - 0.984) / 2; with more classes, the probability is higher).
FAR_ABOVE = 3.0
NEAR_CHANCE_ABOVE = 0.9
STANDARD_ERRORS = 2.0  # by which a model must be better than the constant one
LAST_STEPS = 5  # the end of a training is a tenth of its steps, and at least these


def constant_outcome(task: Task, split: str) -> Outcome:
    """Return the outcome of predicting the class frequencies of `train` for each example."""
    problem = task.problem
    return task.outcome(split, problem.constant(task.labels["train"], task.labels[split]))


def chance_loss(task: Task) -> float:
    """Return the training loss of the constant model, per unit of weight, as training does."""
    targets, weights = task.labels["train"], task.data.weights("train")
    if weights is not None:  # rows drawn by their weights have the weighted loss on average
        generator = np.random.default_rng(0)
        size = min(len(weights), MAX_EXAMPLES)
        drawn = generator.choice(len(weights), size, p=weights / weights.sum())
        if isinstance(targets, UnitLabels):
            targets = UnitLabels(targets[drawn], targets.counts[drawn])
        elif isinstance(targets, np.ndarray):
            targets = targets[drawn]
    return task.problem.constant_loss(targets)


def loss_warnings(
    losses: Sequence[float],
    chance: float,
    constant: str = "the class frequencies",
    *,
    truncated: int = 0,
) -> dict[str, str]:
    """Return the problems of a training's losses, by the name of the rule.

    Args:
        losses: Loss of each applied step, per unit of weight.
        chance: Loss of the constant model, from `chance_loss`.
        constant: What it predicts.
        truncated: Number of truncated training texts.
    """
    if not losses:
        return {}
    last = np.asarray(losses[-max(LAST_STEPS, len(losses) // 10) :], np.float64)
    end, start = float(np.mean(last)), float(losses[0])
    # With few rows of a class that weighs much, single steps have several times the mean loss.
    error = float(np.std(last, ddof=1)) / len(last) ** 0.5 if len(last) > 1 else 0.0
    if end - STANDARD_ERRORS * error > EXPLODED_ABOVE * max(start, chance):
        return {
            EXPLODED: f"the training loss rose from {start:.4g} to {end:.4g}, and predicting "
            f"only {constant} gives {chance:.4g}. Lower --learning_rate."
        }
    if end > NEAR_CHANCE_ABOVE * chance and end > NEAR_CHANCE_ABOVE * start:
        return {
            NEAR_CHANCE: f"the training loss ended at {end:.4g}, and predicting only "
            f"{constant} gives {chance:.4g}: next to nothing was learned. Train longer, or change "
            f"--learning_rate{_read_more(truncated)}."
        }
    return {}


def _read_more(truncated: int) -> str:
    if not truncated:
        return ""
    one = truncated == 1
    return (
        f"; or, as {counted(truncated, 'training text')} {'is' if one else 'are'} truncated, let "
        f"the model read more of {'it' if one else 'them'}"
    )


def outcome_warnings(
    outcome: Outcome, constant: Outcome, groups: Groups | None = None
) -> dict[str, str]:
    """Return the problems of the final predictions, by the name of the rule.

    Args:
        constant: Outcome of the constant model on the same split.
        groups: Groups of its examples, counted as one case each; None if all are independent.
    """
    warnings = {}
    always = outcome.only_prediction
    if always is not None and len(np.unique(outcome.truth, axis=0)) > 1:
        warnings[ONE_PREDICTION] = f"the model predicts {always!r} for every example."
    are_numbers = not outcome.class_names
    loss = "mse" if are_numbers else "log_loss"
    losses, units = _losses(outcome, loss)
    if _is_higher(_losses(constant, loss)[0], losses, units, groups):
        return warnings
    where = f"{len(outcome)} examples" + (f" in {len(groups)} groups" if groups else "")
    if are_numbers:
        warnings[NOT_BETTER] = (
            f"on {where} the predictions are not shown to be better than the mean of the training "
            f"labels: their squared error is not lower by {STANDARD_ERRORS:g} standard errors."
        )
    elif not _is_higher(youden_j_values(outcome), 0 * losses, units, groups):
        warnings[NOT_BETTER] = (
            f"on {where} the predictions are not shown to be better than the class frequencies: "
            "neither their log loss nor their informedness (Youden's J: how much more often a "
            "class is predicted for its own rows than for others) is better by "
            f"{STANDARD_ERRORS:g} standard errors."
        )
    return warnings


def never_predicted_warnings(task: Task, outcome: Outcome) -> dict[str, str]:
    """Return that classes of rows are never predicted, and what helps, by name of the rule."""
    if not task.row.decides_per_case:
        return {}
    labels, several = task.labels["train"], task.row.several_labels
    assert isinstance(labels, np.ndarray), "rows have classes"
    counts = labels.sum(0) if several else np.bincount(labels, minlength=len(task.label_names))
    text = never_predicted_text(
        outcome, np.append(counts, len(labels)), task.settings, several=several
    )
    return {} if text is None else {NEVER_PREDICTED: text}


def result_warnings(
    losses: Sequence[float],
    chance: float,
    outcome: Outcome,
    constant: Outcome,
    groups: Groups | None = None,
    *,
    truncated: int = 0,
) -> dict[str, str]:
    """Return the problems of a training's losses and of its final predictions.

    A training loss near chance is none if the predictions are better than chance beyond their
    uncertainty: a model may rank examples well before its probabilities move.

    Args:
        losses: As in `loss_warnings`.
        chance: Loss of the constant model, from `chance_loss`.
        constant: Outcome of the constant model on the same split.
        groups: Groups of the examples, as in `outcome_warnings`.
        truncated: Number of truncated training texts.
    """
    what = "the class frequencies" if outcome.class_names else "the mean label"
    of_losses = loss_warnings(losses, chance, what, truncated=truncated)
    of_outcome = outcome_warnings(outcome, constant, groups)
    if not of_outcome:
        of_losses.pop(NEAR_CHANCE, None)
    return of_losses | of_outcome


def validation_warnings(validations: Sequence[Mapping[str, float | None]]) -> dict[str, str]:
    """Return the problems of the metrics of successive validations."""
    if len(validations) < 2 or any(metrics != validations[0] for metrics in validations):
        return {}
    return {
        NEVER_MOVED: f"all {len(validations)} validations gave the same metrics: training changed "
        "no prediction. Raise --learning_rate, and check that the weights are trainable."
    }


def stop_if_far_above_chance(
    task: Task,
    outcome: Outcome,
    losses: Sequence[float],
    earlier: Sequence[Mapping[str, float | None]],
) -> None:
    """Check after a validation that the training has not destroyed its model.

    The loss is far above chance if it is more than `FAR_ABOVE` times the loss of the constant model
    and of the first step, with predictions that are not better than chance. A run whose earlier
    validations have a loss below chance goes on, because it has a useful model already.

    Args:
        losses: Loss of each applied step, per unit of weight.
        earlier: Metrics of the validations before it.

    Raises:
        TrainingStopped: The loss is far above chance.
    """
    loss = outcome.metrics().get("log_loss")  # the squared error has another unit than training
    if loss is None or not losses or loss <= FAR_ABOVE * max(losses[0], chance_loss(task)):
        return
    if np.mean(losses[-LAST_STEPS:]) < chance_loss(task):
        return  # a model that fits its training rows is not destroyed, but sure of itself
    constant = constant_outcome(task, outcome.split)
    chance = constant.metrics()["log_loss"]
    assert chance is not None, "the class frequencies have a log loss"
    values = [metrics["log_loss"] for metrics in earlier]
    if loss <= FAR_ABOVE * chance or any(value is not None and value < chance for value in values):
        return
    groups = dependent_groups(task.data, outcome.split)
    if is_destroyed(outcome, constant, groups):
        raise TrainingStopped(
            f"the validation loss is {loss:.4g}, the first training loss was {losses[0]:.4g}, and "
            f"predicting only the class frequencies gives {chance:.4g}: training destroyed the "
            "model. Lower --learning_rate."
        )


def is_destroyed(outcome: Outcome, constant: Outcome, groups: Groups | None) -> bool:
    """Return whether predictions are worse than the constant model's, and no class ranks well.

    A model that is too sure of the frequent class is not destroyed if the rows of the rare class
    have higher probabilities of it: another threshold finds them.

    Args:
        constant: Outcome of the constant model on the same split.
        groups: Groups of its examples, counted as one case each; None if all are independent.
    """
    if NOT_BETTER not in outcome_warnings(outcome, constant, groups):
        return False
    loss = "log_loss" if outcome.class_names else "mse"
    losses, units = _losses(outcome, loss)
    is_worse = _is_higher(losses, _losses(constant, loss)[0], units, groups)
    return is_worse and not _ranks_better(outcome, groups)


def _ranks_better(outcome: Outcome, groups: Groups | None) -> bool:
    """Return whether the (macro) ROC AUC is above 0.5 by `STANDARD_ERRORS` of a random order.

    The standard error is the mean over the classes (Mann and Whitney, 1947), an upper bound for
    the standard error of their mean, times the square root of the units per independent case.
    """
    metrics = outcome.report().metrics()
    area = metrics.get("roc_auc") or metrics.get("macro_roc_auc")
    if area is None:
        return False
    counts = class_counts(outcome.unit_sums.totals())
    n, positive = float(counts.cases), counts.labelled
    ranked = positive[(positive > 0) & (positive < n)]
    errors = np.sqrt((n + 1) / (12 * ranked * (n - ranked)))
    units = n / len(outcome if groups is None else groups)
    return area > 0.5 + STANDARD_ERRORS * float(np.mean(errors)) * max(units, 1.0) ** 0.5


def youden_j_values(outcome: Outcome) -> npt.NDArray[np.float64]:
    """Return the (n,) values whose mean is Youden's J (true minus false positive rate) of a class.

    It is summed over the classes that some but not all units have. Whatever a model predicts
    regardless of the example has a J of 0, so that rare classes count as much as frequent ones
    (Youden, "Index for rating diagnostic tests", 1950).
    """
    sums = outcome.unit_sums
    counts = class_counts(sums.totals())
    classes, n = len(counts.labelled), float(counts.cases)
    varied = (counts.labelled > 0) & (counts.labelled < n)
    positive = np.where(varied, n / np.maximum(counts.labelled, 1), 0.0)
    negative = np.where(varied, n / np.maximum(n - counts.labelled, 1), 0.0)
    correct = sums.patterns[:, :classes] @ (positive + negative)
    predicted = sums.patterns[:, 2 * classes : 3 * classes] @ negative
    return (correct - predicted)[sums.pattern_of]


def _losses(outcome: Outcome, metric: str) -> tuple[FloatArray, FloatArray]:
    """Return (n,) sums over the units of each case, and (n,) numbers of its units."""
    sums = outcome.sums(metric)
    table = sums.patterns[:, [0, -1]].toarray()[sums.pattern_of]
    return table[:, 0], table[:, 1]


def _is_higher(
    higher: FloatArray, lower: FloatArray, units: FloatArray, groups: Groups | None
) -> bool:
    """Return whether the mean over the units is higher by `STANDARD_ERRORS`, in whole groups."""
    cases = [
        each if groups is None else np.bincount(groups.ids, each).astype(np.float64)
        for each in (higher, lower, units)
    ]
    gain = paired_gain(*cases)
    return gain.cases > 1 and gain.mean > STANDARD_ERRORS * gain.error
