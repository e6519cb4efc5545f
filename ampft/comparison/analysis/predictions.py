"""What the predictions of the arms show: differences, verdicts, changed predictions, classes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ampft.comparison.analysis.learned_nothing import result_of_gate, signs_of_no_learning
from ampft.comparison.analysis.run_predictions import (
    BINS,
    Cases,
    RunPredictions,
    numbers_differ,
    rows_differ,
)
from ampft.comparison.analysis.stamps import group_stamps
from ampft.comparison.analysis.subgroup_losses import class_differences, with_subgroup_losses
from ampft.comparison.findings import (
    ArmResult,
    CalibrationBin,
    ChangedPredictions,
    ClassDifference,
    ClassFigures,
    Comparison,
    FlippedExample,
    MetricOverSeeds,
    RunOutcome,
)
from ampft.comparison.remarks import Remark, remark
from ampft.comparison.settings import MIN_SEEDS
from ampft.comparison.statistics.folds import estimate_over_folds
from ampft.comparison.statistics.interval import DifferenceEstimate
from ampft.comparison.statistics.verdict import Difference, decide, mcnemar_mid_p
from ampft.data.splits import Groups
from ampft.errors import InputError
from ampft.metrics.sums import Metric
from ampft.precision.modes import BASELINE
from ampft.runs.predictions import is_input, read_rows

ALPHA = 0.05
MAX_EXAMPLES = 12
MAX_TEXT_LENGTH = 200  # characters


@dataclass(frozen=True)
class ArmPredictions:
    """The predictions of an arm by seed."""

    in_mode: Sequence[RunPredictions]  # Predictions in the mode of the arm.
    # Predictions of the same models in float32; None unless all runs have them.
    in_fp32: Sequence[RunPredictions] | None = None


def check_margin(margin: float) -> None:
    """Check that an equivalence margin, as a fraction, is between 0 and 1.

    Raises:
        InputError: It is not.
    """
    if not 0 < margin < 1:
        raise InputError(
            f"--margin {100 * margin:g}: the margin must be above 0 and below 100 points. Use a "
            "value such as 1 for one point."
        )


def with_prediction_results(
    draft: Comparison, predictions: Mapping[str, ArmPredictions], cases: Cases
) -> Comparison:
    """Return a comparison with its metrics, differences and verdicts, from the predictions.

    Args:
        draft: Comparison without differences, verdicts and figures of predictions.
        predictions: Predictions of the arms that have them for every seed, by name of the arm.

    Raises:
        InputError: The metric is undefined for the predictions.
    """
    draft = _with_signs(draft, predictions)
    metric, base = cases.problem.metrics[draft.metric], predictions.get(draft.baseline.name)
    in_mode = {name: each.in_mode for name, each in predictions.items()}
    estimates, in_fp32 = _estimates(draft, predictions, metric)
    judged = {
        arm.name: estimates[arm.name]
        for arm in draft.arms
        if arm.name in estimates and not arm.is_placebo
        if draft.has_fixed_models or not (arm.suspect_runs or draft.baseline.suspect_runs)
    }
    differences = {name: Difference.of(each, alpha=draft.alpha) for name, each in estimates.items()}
    decided = decide(
        judged, margin=draft.margin, alpha=draft.alpha, higher_is_better=metric.higher_is_better
    )
    differences |= {
        name: result_of_gate(
            each, [draft.arm(name), draft.baseline], has_fixed_models=draft.has_fixed_models
        )
        for name, each in decided.items()
    }
    of_classes: Mapping[str, Sequence[ClassDifference | None]] = {}
    if base is not None and estimates:
        of_classes = class_differences(
            {name: in_mode[name] for name in estimates},
            base.in_mode,
            judged=judged,
            alpha=draft.alpha,
        )
    of_fp32 = {name: Difference.of(each, alpha=draft.alpha) for name, each in in_fp32.items()}

    def with_figures(arm: ArmResult) -> ArmResult:
        own = predictions.get(arm.name)
        if own is None:
            return arm
        other = None if own is base else base
        differences_of_classes = of_classes.get(arm.name, ())
        return replace(
            arm,
            difference=differences.get(arm.name),
            difference_fp32=of_fp32.get(arm.name),
            metrics=_metric_values(own.in_mode),
            metrics_fp32=_metric_values(own.in_fp32) if own.in_fp32 else {},
            flips=None if other is None else _flips(cases, own, other),
            classes=_class_figures(cases.class_names, own, other, differences_of_classes),
            confusion=_summed_confusion(own.in_mode),
            calibration=_calibration_bins(own.in_mode),
        )

    arms = [with_figures(arm) for arm in draft.arms]
    return replace(
        draft,
        arms=with_subgroup_losses(arms, in_mode, cases),
        margin_share_of_errors=_share_of_errors(arms[0], metric, draft.margin),
        stamps=(
            *_abstention_stamps(in_mode),
            *draft.stamps,
            *group_stamps(
                draft.examples, draft.groups, cases.groups.column if cases.groups else None
            ),
        ),
    )


def _abstention_stamps(predictions: Mapping[str, Sequence[RunPredictions]]) -> Iterator[Remark]:
    """Yield for each arm with `--abstain` what it would answer, unless that is everything."""
    for arm, runs in predictions.items():
        answered = [_answered(run) for run in runs]
        if all(every.all() for every in answered):
            continue
        wrong = [
            int((every & ~run.correct).sum()) for every, run in zip(answered, runs, strict=True)
        ]
        yield remark(
            "not_answered",
            arm=arm,
            runs=len(runs),
            examples=len(runs[0].correct),
            answered=statistics.fmean(int(every.sum()) for every in answered),
            wrong=statistics.fmean(wrong),
        )


def _answered(run: RunPredictions) -> npt.NDArray[np.bool_]:
    return np.ones(len(run.correct), dtype=bool) if run.answered is None else run.answered


def _with_signs(draft: Comparison, predictions: Mapping[str, ArmPredictions]) -> Comparison:
    """Return a comparison in which models without a record have the warnings of predictions."""

    def run(each: RunOutcome, found: RunPredictions) -> RunOutcome:
        known = each.warnings
        return replace(each, warnings=signs_of_no_learning(found) if known is None else known)

    arms = [
        replace(arm, runs=tuple(map(run, arm.runs, predictions[arm.name].in_mode)))
        if arm.name in predictions
        else arm
        for arm in draft.arms
    ]
    suspects = [(arm, each) for arm in arms for each in arm.suspect_runs]
    has_stamp = any(each.kind in ("suspect", "suspect_model") for each in draft.stamps)
    stamps = draft.stamps
    if suspects and not has_stamp:
        arm, first = suspects[0]
        assert first.warnings is not None, "it is suspect"
        stamp = remark(
            "suspect",
            runs=len(suspects),
            total=sum(len(each.runs) for each in arms),
            arm=arm.name,
            seed=first.seed,
            warning=first.warnings[0],
        )
        stamps = (stamp, *stamps)
    return replace(draft, arms=tuple(arms), stamps=stamps)


def _estimates(
    draft: Comparison, predictions: Mapping[str, ArmPredictions], metric: Metric
) -> tuple[dict[str, DifferenceEstimate], dict[str, DifferenceEstimate]]:
    """Return the estimates of the arms in their modes and in float32; empty for too few seeds."""
    base = predictions.get(draft.baseline.name)
    if base is None or (len(draft.seeds) < MIN_SEEDS and not draft.has_fixed_models):
        return {}, {}
    base_fp32 = base.in_mode if draft.baseline.mode == BASELINE else base.in_fp32

    def estimate(
        arm: Sequence[RunPredictions], baseline: Sequence[RunPredictions]
    ) -> DifferenceEstimate:
        sides = [a.sums for a in arm], [b.sums for b in baseline]
        return estimate_over_folds(*sides, [b.folds for b in baseline], metric)

    others = {arm.name: predictions.get(arm.name) for arm in draft.arms[1:]}
    return (
        {name: estimate(arm.in_mode, base.in_mode) for name, arm in others.items() if arm},
        {
            name: estimate(arm.in_fp32, base_fp32)
            for name, arm in others.items()
            if arm and arm.in_fp32 and base_fp32
        },
    )


def _share_of_errors(baseline: ArmResult, metric: Metric, margin: float) -> float | None:
    """Return the margin over the baseline's distance from a perfect metric; None if undefined."""
    values = baseline.metrics.get(metric.name)
    if values is None or not metric.is_share or values.mean >= 1:
        return None
    return margin / (1 - values.mean)


def _metric_values(predictions: Sequence[RunPredictions]) -> dict[str, MetricOverSeeds]:
    """Return mean, standard deviation and values over the seeds of every metric, by name.

    A metric that a seed leaves undefined, such as one of classes that do not occur, is left out.
    """
    columns = {name: [p.metrics[name] for p in predictions] for name in predictions[0].metrics}
    # `statistics` sums exactly, so equal values have a deviation of exactly 0.
    return {
        name: MetricOverSeeds(
            mean=statistics.fmean(values),
            sd=statistics.stdev(values) if len(values) > 1 else None,
            per_seed=tuple(values),
        )
        for name, values in columns.items()
        if all(map(math.isfinite, values))
    }


def _flips(
    cases: Cases, predictions: ArmPredictions, baseline: ArmPredictions
) -> ChangedPredictions:
    """Count changed predictions seed by seed, and choose a few examples."""
    pairs = list(zip(predictions.in_mode, baseline.in_mode, strict=True))
    if cases.class_names:
        flipped = np.stack([rows_differ(arm.choices, base.choices) for arm, base in pairs])
    else:  # labels are numbers
        spread = float(np.std(cases.truth))
        flipped = np.stack(
            [numbers_differ(arm.choices, base.choices, spread) for arm, base in pairs]
        )
    gained = [int((arm.correct & ~base.correct).sum()) for arm, base in pairs]
    lost = [int((base.correct & ~arm.correct).sum()) for arm, base in pairs]
    both = [int((arm.correct & base.correct).sum()) for arm, base in pairs]
    per_seed = flipped.sum(axis=1).tolist()
    closer: list[int] = []
    farther: list[int] = []
    if not cases.class_names:
        for (arm, base), differs in zip(pairs, flipped, strict=True):
            errors, base_errors = (np.abs(each.choices - cases.truth) for each in (arm, base))
            closer.append(int((differs & (errors < base_errors)).sum()))
            farther.append(int((differs & (errors > base_errors)).sum()))
    return ChangedPredictions(
        per_seed=tuple(per_seed),
        mean=float(np.mean(per_seed)),
        gained=float(np.mean(gained)),
        lost=float(np.mean(lost)),
        mcnemar_mid_p=tuple(_mcnemar(arm, base, cases.groups) for arm, base in pairs),
        examples=_examples(cases, predictions.in_mode, baseline.in_mode, flipped),
        both_correct=float(np.mean(both)),
        closer=float(np.mean(closer)) if closer else None,
        farther=float(np.mean(farther)) if farther else None,
    )


def _mcnemar(arm: RunPredictions, base: RunPredictions, groups: Groups | None) -> float:
    """Return McNemar's mid-p; a group counts once, by the sign of its net gain."""
    gain = arm.correct.astype(np.int64) - base.correct
    if groups is not None:
        gain = np.rint(np.bincount(groups.ids, weights=gain)).astype(np.int64)
    return mcnemar_mid_p(int((gain > 0).sum()), int((gain < 0).sum()))


def _examples(
    cases: Cases,
    predictions: Sequence[RunPredictions],
    baseline: Sequence[RunPredictions],
    flipped: npt.NDArray[np.bool_],
) -> tuple[FlippedExample, ...]:
    """Return the examples that flip for the most seeds; ties by confidence, then by id."""
    times = flipped.sum(axis=0)
    candidates = np.flatnonzero(times)
    first = flipped[:, candidates].argmax(axis=0)
    confidence, base_confidence = (
        _confidences(side, first, candidates) for side in (predictions, baseline)
    )
    by_confidence = -np.minimum(confidence, base_confidence)
    order = np.lexsort((candidates, by_confidence, -times[candidates]))[:MAX_EXAMPLES]
    text_of = cases.inputs.read(candidates[order].tolist())
    problem, names = cases.problem, cases.label_names
    return tuple(
        FlippedExample(
            example_id=(example := int(candidates[k])),
            text=_truncated(text_of[example]),
            label=problem.truth_text(cases.truth[example], names),
            seeds=int(times[example]),
            baseline=problem.choice_text(baseline[first[k]].choices[example], names),
            baseline_confidence=_known(base_confidence[k]),
            arm=problem.choice_text(predictions[first[k]].choices[example], names),
            arm_confidence=_known(confidence[k]),
        )
        for k in order
    )


def _confidences(
    predictions: Sequence[RunPredictions],
    seeds: npt.NDArray[np.integer],
    cases: npt.NDArray[np.integer],
) -> npt.NDArray[np.floating]:
    """Return the confidence of each case at its seed; NaN if no probabilities are known."""
    if any(each.confidence is None for each in predictions):
        return np.full(len(cases), np.nan)
    confidences = np.stack([each.confidence[cases] for each in predictions])  # type: ignore[index]
    return confidences[seeds, np.arange(len(cases))]


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def read_texts(path: Path, rows: Sequence[int]) -> dict[int, str]:
    """Return the inputs of a few rows of a predictions.parquet, joined, by example id.

    They are empty if the file has no inputs.

    Raises:
        InputError: The inputs are damaged.
    """
    found = read_rows(path, rows, is_input)
    return {row: " | ".join(map(str, values.values())) for row, values in found.items()}


def _truncated(text: str) -> str:
    """Return a text on one line, shortened to `MAX_TEXT_LENGTH` characters."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[: MAX_TEXT_LENGTH - 1]}…"


def _class_figures(
    label_names: Sequence[str],
    predictions: ArmPredictions,
    baseline: ArmPredictions | None,
    differences: Sequence[ClassDifference | None],
) -> tuple[ClassFigures, ...]:
    """Return the figures of each class, as means over the seeds; no baseline for itself."""
    figures = []
    for index, name in enumerate(label_names):
        rows = [each.scores[index] for each in predictions.in_mode]
        f1 = float(np.mean([row.f1 for row in rows]))
        base_f1 = [each.scores[index].f1 for each in baseline.in_mode] if baseline else None
        figures.append(
            ClassFigures(
                name=name,
                support=rows[0].support,
                precision=float(np.mean([row.precision for row in rows])),
                recall=float(np.mean([row.recall for row in rows])),
                f1=f1,
                f1_difference=None if base_f1 is None else f1 - float(np.mean(base_f1)),
                difference=differences[index] if differences else None,
            )
        )
    return tuple(figures)


def _summed_confusion(predictions: Sequence[RunPredictions]) -> tuple[tuple[int, ...], ...]:
    """Return the sum of the confusion matrices of all seeds, with labels as rows."""
    matrices = [each.confusion for each in predictions if each.confusion is not None]
    if not matrices:
        return ()
    return tuple(tuple(row) for row in np.sum(matrices, axis=0).tolist())


def _calibration_bins(predictions: Sequence[RunPredictions]) -> tuple[CalibrationBin, ...]:
    """Return bins of equal width over the predictions of all seeds."""
    binned = [each.bins for each in predictions if each.bins is not None]
    if not binned:
        return ()
    counts, confidences, correct = np.sum(binned, axis=0)
    return tuple(
        CalibrationBin(
            low=index / BINS,
            high=(index + 1) / BINS,
            count=int(count),
            confidence=float(confidences[index] / count) if count else None,
            accuracy=float(correct[index] / count) if count else None,
        )
        for index, count in enumerate(counts)
    )
