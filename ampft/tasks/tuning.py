"""Numbers fitted on the predictions of a validation split: a temperature, and thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ampft.decision import Decisions, Rule
from ampft.metrics.bootstrap import Statistic
from ampft.metrics.calibration import calibration_statistic, fit_temperature
from ampft.metrics.ranking import positive_class
from ampft.metrics.rounding import probability_rounding
from ampft.metrics.scores import case_binary_log_losses, case_brier_scores, case_log_losses
from ampft.metrics.targets import ThresholdTarget, parse_threshold_target
from ampft.tasks.loss_settings import ValidationFitSettings
from ampft.tasks.outcome import IntArray, Outcome, TunableOutcome

FloatArray = npt.NDArray[np.float64]
NEVER = float(np.nextafter(np.float32(1), np.float32(2)))  # no probability reaches it


def best_threshold(
    has: BoolArray,
    probabilities: npt.NDArray[np.float32],
    default: float,
    target: ThresholdTarget | None = None,
) -> float:
    """Return the threshold of a label that is best for a target.

    Of equally good thresholds, it is the nearest to 0.5. With a precision that no prediction
    reaches, it is above 1, so that the label is never predicted. Probabilities that only rounding
    tells apart are on the same side.

    Args:
        has: (n,) whether an example has the label.
        probabilities: (n,) float32.
        default: Threshold if no example has the label.
        target: What is chosen; None for the best F1.
    """
    if not has.any():
        return default
    target = target or ThresholdTarget()
    order = np.argsort(-probabilities, kind="stable")
    scores = probabilities[order].astype(np.float64)
    following = np.append(scores[1:], 0.0 if scores[-1] > 0 else -1.0)
    thresholds = ((scores + following) / 2).astype(np.float32).astype(np.float64)
    # What only rounding tells apart would be decided otherwise in a batch of another size.
    is_possible = scores - following > probability_rounding(scores)
    is_possible[-1] = True  # every row is predicted
    # First the threshold above all probabilities, at which nothing is predicted.
    none = max(float(np.float32((1 + scores[0]) / 2)), float(np.nextafter(scores[0], 2, dtype="f")))
    thresholds = np.append(none, thresholds[is_possible])
    right = np.append(0, np.cumsum(has[order])[is_possible]).astype(np.float64)
    predicted = np.append(0, np.arange(1, len(has) + 1)[is_possible]).astype(np.float64)
    goodness = _goodness(target, right, predicted, int(has.sum()))
    best = goodness >= goodness.max()
    if target.name == "precision" and predicted[best].max() == 0:
        return NEVER
    return float(min(thresholds[best], key=lambda threshold: abs(threshold - 0.5)))


def _goodness(
    target: ThresholdTarget, right: FloatArray, predicted: FloatArray, labelled: int
) -> FloatArray:
    """Return (m,) how good each threshold is for a target, higher is better.

    Args:
        right: (m,) number of right predictions.
        predicted: (m,) number of all predictions.
        labelled: Number of examples that have the label.
    """
    if target.name == "f1":
        return 2 * right / np.maximum(predicted + labelled, 1)
    if target.name == "cost":
        return -target.miss * (labelled - right) - target.false_alarm * (predicted - right)
    recall = right / labelled
    # Where nothing is predicted, the precision counts as 1.
    precision = np.where(predicted > 0, right / np.maximum(predicted, 1), 1.0)
    if target.name == "precision":
        return np.where(precision >= target.least, recall, -1.0)
    return np.where(recall >= target.least, precision, -1.0)


BoolArray = npt.NDArray[np.bool_]
FloatRows = npt.NDArray[np.float64]


T = TypeVar("T", bound=TunableOutcome)


def is_multi_label(outcome: Outcome) -> bool:
    """Return whether a case can have any number of labels; otherwise it has one."""
    return outcome.truth.ndim == 2


def label_columns(outcome: TunableOutcome) -> tuple[BoolArray, BoolArray]:
    """Return (n, K) whether each case has each label, and whether the label is predicted."""
    if is_multi_label(outcome):
        return outcome.truth, outcome.predicted
    classes = np.arange(len(outcome.label_names))
    return outcome.truth[:, None] == classes, outcome.predicted[:, None] == classes


def tuned_thresholds(outcome: TunableOutcome) -> dict[int, float]:
    """Return the tuned thresholds by the index of their label; empty without any."""
    decisions = outcome.decisions
    if decisions.positive is not None and decisions.positive_threshold is not None:
        return {decisions.positive: decisions.positive_threshold}
    return dict(enumerate(decisions.thresholds or ()))


def case_costs(
    outcome: TunableOutcome, target: ThresholdTarget, columns: Sequence[int]
) -> FloatArray:
    """Return the (n,) costs of the decisions about the labels with the indices `columns`."""
    has, predicted = (every[:, columns] for every in label_columns(outcome))
    misses, alarms = (has & ~predicted).sum(axis=1), (predicted & ~has).sum(axis=1)
    return np.asarray(target.miss * misses + target.false_alarm * alarms, dtype=np.float64)


def select_rows(outcome: T, rows: IntArray) -> T:
    """Return the predictions of some cases, by their indices."""
    parts: dict[str, Any] = {
        name: getattr(outcome, name)[rows] for name in ("labels", "probabilities")
    }
    if outcome.logits is not None:
        parts["logits"] = outcome.logits[rows]
    names = {field.name for field in fields(cast("Any", outcome))}
    if "example_ids" in names:
        parts["example_ids"] = np.arange(len(rows))
    return _changed(outcome, **parts)


def with_decisions(outcome: T, decisions: Decisions) -> T:
    """Return the predictions with other decisions; with a temperature, from their logits."""
    probabilities = outcome.probabilities
    if decisions.temperature is not None:
        assert outcome.logits is not None, "kept with --calibrate"
        several = is_multi_label(outcome)
        rule = Rule(outcome.label_names, several=several, decisions=decisions)
        probabilities = rule.probabilities(outcome.logits)
    return _changed(outcome, probabilities=probabilities, decisions=decisions)


def fit_decisions(
    outcome: T,
    settings: ValidationFitSettings,
    class_weights: npt.NDArray[np.float32] | None = None,
) -> T:
    """Return the predictions with the temperature and the thresholds that are best for them.

    A label that no case has keeps `threshold`.

    Args:
        outcome: Predictions of a validation split.
        class_weights: (K,) weights of the classes in the log loss; None for 1.
    """
    has, _ = label_columns(outcome)
    several, temperature = is_multi_label(outcome), None
    if settings.calibrate:
        assert outcome.logits is not None, "kept with --calibrate"
        temperature = fit_temperature(
            outcome.logits, has, several=several, class_weights=class_weights
        )
    tempered = with_decisions(outcome, Decisions(temperature))
    if settings.tune_thresholds is None:
        return tempered
    target = parse_threshold_target(settings.tune_thresholds)

    def threshold(column: int) -> float:
        scores = tempered.probabilities[:, column]
        return best_threshold(has[:, column], scores, outcome.threshold, target)

    if several:
        thresholds = tuple(map(threshold, range(has.shape[1])))
        return _changed(tempered, decisions=Decisions(temperature, thresholds))
    name = settings.positive_label
    positive = positive_class(has.sum(0)) if name is None else outcome.label_names.index(name)
    decisions = Decisions(temperature, positive=positive, positive_threshold=threshold(positive))
    return _changed(tempered, decisions=decisions)


def proper_scores(outcome: TunableOutcome) -> dict[str, FloatRows]:
    """Return the log loss and the Brier score of each case, (n,), by name.

    With several labels, both are means over the decisions.
    """
    labels, shares = outcome.truth, outcome.probabilities
    if is_multi_label(outcome):
        squares = ((shares.astype(np.float64) - labels) ** 2).mean(axis=1)
        return {"log_loss": case_binary_log_losses(labels, shares), "brier": squares}
    return {"log_loss": case_log_losses(labels, shares), "brier": case_brier_scores(labels, shares)}


def calibration_error(outcome: TunableOutcome, groups: IntArray | None) -> Statistic:
    """Return the expected calibration error as a function of sums, see `calibration_statistic`."""
    if not is_multi_label(outcome):
        confidence, correct = outcome.confidence[:, None], outcome.correct[:, None]
        return calibration_statistic(confidence, correct, groups)
    has, predicted = label_columns(outcome)
    confidence = np.where(predicted, outcome.probabilities, 1 - outcome.probabilities)
    return calibration_statistic(confidence, has == predicted, groups)


def _changed(outcome: T, **changes: Any) -> T:
    return cast("T", replace(cast("Any", outcome), **changes))
