"""Compare arms that consist only of predictions: of other frameworks, or of inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ampft.comparison.analysis.class_differences import class_differences
from ampft.comparison.analysis.compare import (
    ALPHA,
    check_margin,
    metric_infos,
    share_of_errors,
)
from ampft.comparison.analysis.differences import (
    estimate,
    metric_values,
    with_verdicts,
    without_verdict,
)
from ampft.comparison.analysis.predictions import (
    Texts,
    calibration_bins,
    class_figures,
    flips,
    summed_confusion,
)
from ampft.comparison.analysis.run_predictions import Cases, RunPredictions
from ampft.comparison.analysis.stamps import group_stamps
from ampft.comparison.analysis.subgroup_losses import with_subgroup_losses
from ampft.comparison.findings import (
    INFERENCE,
    PRECISION,
    UNKNOWN,
    ArmResult,
    ClassDifference,
    Comparison,
    Difference,
    RunOutcome,
)
from ampft.comparison.inference.cost import Inference
from ampft.comparison.verdict_text import verdict_texts
from ampft.metrics.sums import Metric


@dataclass(frozen=True, kw_only=True)
class PredictedArm:
    """The predictions of an arm.

    Attributes:
        name: Name of the arm.
        mode: Precision; the name of the arm if it is unknown.
        sources: File or folder of each prediction, in the order of the seeds.
        predictions: Predictions in the order of the seeds.
        is_placebo: Whether the arm is the baseline with the smallest possible change.
        execution: "native", "emulated" or "unknown".
        executed: What was executed, in one clause; None if it is unknown.
        inference: Cost of predicting; None if it was not measured.
        failure: Why the arm has no predictions; None if it has.
    """

    name: str
    mode: str
    sources: tuple[str, ...]
    predictions: tuple[RunPredictions, ...]
    is_placebo: bool = False
    execution: str = UNKNOWN
    executed: str | None = None
    inference: Inference | None = None
    failure: str | None = None


def compare_predicted_arms(
    arms: Sequence[PredictedArm],
    cases: Cases,
    texts: Texts,
    *,
    kind: str,
    noun: str = "texts",
    title: str,
    seeds: Sequence[int],
    metric: Metric,
    margin: float,
    stamps: Sequence[str] = (),
    setup: Mapping[str, str],
    environment: Mapping[str, str],
) -> Comparison:
    """Compare arms with the first one, by the statistics that runs are compared with.

    Args:
        arms: Arms with predictions of the same cases for the same seeds, the baseline first.
        cases: Cases that they predict.
        texts: Function that returns the inputs of examples.
        kind: Kind of the comparison, as in `Comparison`.
        noun: What the cases are called: "texts" if they have words.
        title: Title of the report.
        seeds: Seeds.
        metric: Primary metric.
        margin: Equivalence margin as a fraction.
        stamps: Caveats, the most serious first.
        setup: Settings that all arms share, for readers.
        environment: Hardware and versions, for readers.

    Raises:
        InputError: `margin` is out of range, or the metric is undefined for the predictions.
    """
    check_margin(margin)
    differences = _differences(arms, metric, margin)
    of_classes = _class_differences(arms)
    results = with_subgroup_losses(
        [_result(arm, arms[0], differences, of_classes, cases, texts, seeds) for arm in arms],
        {arm.name: arm.predictions for arm in arms},
        cases,
        texts if noun == "texts" else None,
        noun=noun,
    )
    comparison = Comparison(
        kind=kind,
        varied=(PRECISION,) if kind == INFERENCE else (),
        title=title,
        metric=metric.name,
        metrics=metric_infos(cases.problem),
        margin=margin,
        margin_share_of_errors=share_of_errors(results[0], metric, margin),
        alpha=ALPHA,
        seed_counts=(len(seeds),),
        seeds=tuple(seeds),
        split=cases.split,
        examples=len(cases.truth),
        groups=len(cases.groups) if cases.groups else None,
        label_names=cases.class_names,
        arms=results,
        verdicts=(),
        stamps=(*stamps, *group_stamps(cases)),
        setup=setup,
        environment=environment,
        yardstick=None,
        overhead_share=None,
    )
    return replace(comparison, verdicts=verdict_texts(comparison))


def _differences(
    arms: Sequence[PredictedArm], metric: Metric, margin: float
) -> dict[str, Difference]:
    base, *others = (arm for arm in arms if arm.failure is None)
    estimates = {arm.name: estimate(arm.predictions, base.predictions, metric) for arm in others}
    judged = {arm.name: estimates[arm.name] for arm in others if not arm.is_placebo}
    placebos = {arm.name: estimates[arm.name] for arm in others if arm.is_placebo}
    return with_verdicts(judged, metric, margin=margin, alpha=ALPHA) | {
        name: without_verdict(each, alpha=ALPHA) for name, each in placebos.items()
    }


def _class_differences(
    arms: Sequence[PredictedArm],
) -> dict[str, tuple[ClassDifference | None, ...]]:
    base, *others = (arm for arm in arms if arm.failure is None)
    return class_differences(
        {arm.name: arm.predictions for arm in others},
        base.predictions,
        judged={arm.name for arm in others if not arm.is_placebo},
        alpha=ALPHA,
    )


def _result(
    arm: PredictedArm,
    baseline: PredictedArm,
    differences: Mapping[str, Difference],
    of_classes: Mapping[str, Sequence[ClassDifference | None]],
    cases: Cases,
    texts: Texts,
    seeds: Sequence[int],
) -> ArmResult:
    predictions = arm.predictions
    base = None if arm is baseline else baseline.predictions
    return ArmResult(
        name=arm.name,
        mode=arm.mode,
        is_placebo=arm.is_placebo,
        execution=arm.execution,
        executed=arm.executed,
        status="complete" if arm.failure is None else "failed",
        status_words="complete" if arm.failure is None else "failed",
        runs=tuple(
            RunOutcome(
                seed=seed,
                status="finished" if arm.failure is None else "failed",
                reason=arm.failure,
                folder=source,
            )
            for seed, source in zip(seeds, arm.sources, strict=True)
        ),
        metrics=metric_values(predictions) if predictions else {},
        metrics_fp32={},
        difference=differences.get(arm.name),
        difference_fp32=None,
        speed=None,
        memory=None,
        skipped_steps=(),
        total_steps=(),
        flips=flips(cases, predictions, base, texts) if base and predictions else None,
        classes=class_figures(cases.class_names, predictions, base, of_classes.get(arm.name, ()))
        if predictions
        else (),
        confusion=summed_confusion(predictions),
        calibration=calibration_bins(predictions),
        curves=(),
        inference=arm.inference,
    )
