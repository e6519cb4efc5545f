"""Differences in the primary metric between the arms and the baseline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ampft.comparison.analysis.run_predictions import RunPredictions
from ampft.comparison.findings import Difference, MetricValues
from ampft.comparison.statistics.interval import (
    MIN_SEEDS,
    DifferenceEstimate,
    estimate_difference,
    estimate_over_cases,
)
from ampft.comparison.statistics.jackknife import jackknife_differences
from ampft.comparison.statistics.verdict import Decision, decide
from ampft.metrics.sums import CaseSums, Metric


def metric_values(predictions: Sequence[RunPredictions]) -> dict[str, MetricValues]:
    """Return mean, standard deviation and values over the seeds of every metric, by name."""
    return {
        name: _values([each.metrics[name] for each in predictions])
        for name in predictions[0].metrics
    }


def estimate(
    predictions: Sequence[RunPredictions], baseline: Sequence[RunPredictions], metric: Metric
) -> DifferenceEstimate:
    """Return the difference in a metric; both sides are in the order of the seeds.

    With fewer seeds than an interval over seeds needs, the estimate is over the cases only.
    """
    return estimate_of_sums(
        [each.sums for each in predictions], [each.sums for each in baseline], metric
    )


def estimate_of_sums(
    arm: Sequence[CaseSums], baseline: Sequence[CaseSums], metric: Metric
) -> DifferenceEstimate:
    """Return the difference in a metric from the sums of both sides, as `estimate` does."""
    differences = jackknife_differences(arm, baseline, metric)
    if len(arm) < MIN_SEEDS:
        return estimate_over_cases(differences)
    return estimate_difference(differences)


def with_verdicts(
    estimates: Mapping[str, DifferenceEstimate], metric: Metric, *, margin: float, alpha: float
) -> dict[str, Difference]:
    """Return the differences of the modes with their verdicts, after Holm over all modes."""
    decisions = decide(
        estimates, margin=margin, alpha=alpha, higher_is_better=metric.higher_is_better
    )
    return {name: _with_verdict(decision) for name, decision in decisions.items()}


def without_verdict(estimated: DifferenceEstimate, *, alpha: float) -> Difference:
    """Return an exploratory difference, with an interval but no verdict."""
    return Difference(
        estimate=estimated.estimate,
        per_seed=tuple(estimated.per_seed.tolist()),
        interval95=estimated.interval(1 - alpha),
        interval90=estimated.interval(1 - 2 * alpha),
        level95=1 - alpha,
        level90=1 - 2 * alpha,
        cases=estimated.cases,
        one_case=math.sqrt(estimated.min_variance),
        rare95=estimated.rare_limits(1 - alpha),
        rare90=estimated.rare_limits(1 - 2 * alpha),
        seed_variance=estimated.seed_variance,
        jackknife_variance=estimated.jackknife_variance,
        jackknife_covariance=estimated.jackknife_covariance,
        p_difference=None,
        p_equivalence=None,
        p_difference_holm=None,
        p_equivalence_holm=None,
        verdict=None,
        seeds_to_decide=None,
    )


def _with_verdict(decision: Decision) -> Difference:
    limits = decision.limits
    return replace(
        without_verdict(decision.estimate, alpha=decision.alpha),
        p_difference=decision.p_difference,
        p_equivalence=decision.p_equivalence,
        p_difference_holm=decision.p_difference_holm,
        p_equivalence_holm=decision.p_equivalence_holm,
        p_beyond=decision.p_beyond,
        p_beyond_holm=decision.p_beyond_holm,
        verdict=str(decision.verdict),
        seeds_to_decide=decision.seeds_to_decide,
        unseen_share=limits.unseen_share,
        failure_rate=limits.failure_rate,
        cases_needed=limits.cases_needed,
        rarest_class=limits.costliest.label if limits.costliest else None,
        rarest_cases=limits.costliest.support if limits.costliest else None,
    )


def _values(values: Sequence[float]) -> MetricValues:
    # `statistics` sums exactly, so equal values have a deviation of exactly 0.
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return MetricValues(mean=statistics.fmean(values), sd=deviation, per_seed=tuple(values))
