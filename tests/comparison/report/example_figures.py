"""The figures of the example comparisons, from simulated predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import binom

from ampft.comparison.findings import (
    ArmResult,
    CalibrationBin,
    ChangedPredictions,
    ClassFigures,
    FlippedExample,
    MetricOverSeeds,
)
from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.comparison.statistics.verdict import Difference, holm
from ampft.metrics.sums import ACCURACY
from ampft.tasks.single_label import Predictions, classification_report

MARGIN = 0.01
METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "macro_f1",
    "balanced_accuracy": "balanced_accuracy",
    "matthews": "matthews",
    "log_loss": "log_loss",
    "brier": "brier",
    "expected_calibration_error": "expected_calibration_error",
}


def metric_values(seeds: Sequence[Predictions]) -> dict[str, MetricOverSeeds]:
    reports = [classification_report(predictions).metrics() for predictions in seeds]
    columns = {name: [float(report[key]) for report in reports] for name, key in METRICS.items()}
    return {
        name: MetricOverSeeds(
            mean=float(np.mean(column)), sd=float(np.std(column, ddof=1)), per_seed=tuple(column)
        )
        for name, column in columns.items()
    }


def difference(
    arm: Sequence[Predictions], base: Sequence[Predictions], *, is_placebo: bool = False
) -> Difference:
    sums = ([each.sums("accuracy") for each in side] for side in (arm, base))
    found = estimate_of_sums(*sums, ACCURACY)
    without_verdict = Difference.of(found, alpha=0.05)
    if is_placebo:
        return without_verdict
    return replace(
        without_verdict,
        p_difference=found.p_difference(),
        p_equivalence=found.p_equivalence(MARGIN),
    )


def with_verdicts(arms: Sequence[ArmResult]) -> tuple[ArmResult, ...]:
    """Add what depends on all modes: p-values after Holm and verdicts."""
    modes = {arm.name: arm.difference for arm in arms[2:] if arm.difference is not None}
    differs = holm({name: d.p_difference or 0.0 for name, d in modes.items()})
    equals = holm({name: d.p_equivalence or 0.0 for name, d in modes.items()})
    decided = {
        name: replace(
            d,
            p_difference_holm=differs[name],
            p_equivalence_holm=equals[name],
            verdict="equivalent" if equals[name] <= 0.05 else "undecided",
            seeds_to_decide=None if equals[name] <= 0.05 else (9, 21),
        )
        for name, d in modes.items()
    }
    return tuple(replace(arm, difference=decided.get(arm.name, arm.difference)) for arm in arms)


def flips(
    arm: Sequence[Predictions], base: Sequence[Predictions], texts: Sequence[str]
) -> ChangedPredictions:
    pairs = list(zip(arm, base, strict=True))
    differ = np.stack([a.predicted != b.predicted for a, b in pairs])
    gained = [int(np.sum(_is_correct(a) > _is_correct(b))) for a, b in pairs]
    lost = [int(np.sum(_is_correct(a) < _is_correct(b))) for a, b in pairs]
    counts = Counter({int(i): int(k) for i, k in enumerate(differ.sum(axis=0)) if k})
    chosen = sorted(counts, key=lambda i: (-counts[i], i))[:8]
    return ChangedPredictions(
        per_seed=tuple(int(k) for k in differ.sum(axis=1)),
        mean=float(differ.sum(axis=1).mean()),
        gained=float(np.mean(gained)),
        lost=float(np.mean(lost)),
        mcnemar_mid_p=tuple(_mid_p(g, k) for g, k in zip(gained, lost, strict=True)),
        examples=tuple(
            _flipped(i, counts[i], *pairs[int(differ[:, i].argmax())], texts) for i in chosen
        ),
    )


def class_figures(
    arm: Sequence[Predictions], base: Sequence[Predictions] | None
) -> tuple[ClassFigures, ...]:
    scores = _mean_scores(arm)
    base_scores = None if base is None else _mean_scores(base)
    return tuple(
        ClassFigures(
            name=name,
            support=int(np.sum(arm[0].labels == index)),
            precision=float(scores[index, 0]),
            recall=float(scores[index, 1]),
            f1=float(scores[index, 2]),
            f1_difference=None
            if base_scores is None
            else float(scores[index, 2] - base_scores[index, 2]),
        )
        for index, name in enumerate(arm[0].label_names)
    )


def total_confusion(seeds: Sequence[Predictions]) -> tuple[tuple[int, ...], ...]:
    total = sum(np.array(classification_report(p).confusion_matrix) for p in seeds)
    return tuple(tuple(int(x) for x in row) for row in total)


def calibration_bins(seeds: Sequence[Predictions], bins: int = 15) -> tuple[CalibrationBin, ...]:
    confidence = np.concatenate([p.confidence for p in seeds]).astype(float)
    correct = np.concatenate([_is_correct(p) for p in seeds])
    index = np.digitize(confidence, np.arange(1, bins) / bins, right=True)
    return tuple(
        CalibrationBin(
            low=b / bins,
            high=(b + 1) / bins,
            count=int(np.sum(index == b)),
            confidence=float(confidence[index == b].mean()) if np.any(index == b) else None,
            accuracy=float(correct[index == b].mean()) if np.any(index == b) else None,
        )
        for b in range(bins)
    )


def _is_correct(predictions: Predictions) -> np.ndarray:
    return (predictions.predicted == predictions.labels).astype(float)


def _mid_p(gained: int, lost: int) -> float:
    n, k = gained + lost, min(gained, lost)
    return min(1.0, float(2 * binom.cdf(k, n, 0.5) - binom.pmf(k, n, 0.5))) if n else 1.0


def _mean_scores(seeds: Sequence[Predictions]) -> np.ndarray:
    rows = [classification_report(p).per_class for p in seeds]
    return np.mean([[(r.precision, r.recall, r.f1) for r in one] for one in rows], axis=0)


def _flipped(
    index: int, seeds: int, arm: Predictions, base: Predictions, texts: Sequence[str]
) -> FlippedExample:
    names = arm.label_names
    return FlippedExample(
        example_id=index,
        text=texts[index % len(texts)],
        label=names[arm.labels[index]],
        seeds=seeds,
        baseline=names[base.predicted[index]],
        baseline_confidence=float(base.confidence[index]),
        arm=names[arm.predicted[index]],
        arm_confidence=float(arm.confidence[index]),
    )
