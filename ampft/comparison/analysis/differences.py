"""The primary metric of every arm against the baseline's, as the statistics have it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ampft.comparison.analysis.answers import Answers
from ampft.comparison.findings import Difference, MetricValues
from ampft.comparison.statistics.interval import DifferenceEstimate, estimate_difference
from ampft.comparison.statistics.jackknife import jackknife_differences
from ampft.comparison.statistics.verdict import Decision, decide
from ampft.metrics.sums import Metric


def metric_values(answers: Sequence[Answers]) -> dict[str, MetricValues]:
    """Return mean, deviation and values over the seeds of every metric, by name."""
    return {name: _values([each.metrics[name] for each in answers]) for name in answers[0].metrics}


def estimate(
    answers: Sequence[Answers], baseline: Sequence[Answers], metric: Metric
) -> DifferenceEstimate:
    """Return the difference in the primary metric; both sides are in the order of the seeds."""
    return estimate_difference(
        jackknife_differences(
            [each.sums for each in answers], [each.sums for each in baseline], metric
        )
    )


def decided(
    estimates: Mapping[str, DifferenceEstimate], metric: Metric, *, margin: float, alpha: float
) -> dict[str, Difference]:
    """Return the differences of the modes, each with its verdict, Holm over all of them."""
    decisions = decide(
        estimates, margin=margin, alpha=alpha, higher_is_better=metric.higher_is_better
    )
    return {name: _with_verdict(decision) for name, decision in decisions.items()}


def explored(found: DifferenceEstimate, *, alpha: float) -> Difference:
    """Return a difference with its interval and without verdict: it was no question beforehand."""
    return Difference(
        estimate=found.estimate,
        per_seed=tuple(found.per_seed.tolist()),
        interval95=found.interval(1 - alpha),
        interval90=found.interval(1 - 2 * alpha),
        level95=1 - alpha,
        level90=1 - 2 * alpha,
        degrees_of_freedom=float(found.degrees_of_freedom),
        seed_variance=found.seed_variance,
        jackknife_variance=found.jackknife_variance,
        jackknife_covariance=found.jackknife_covariance,
        p_difference=None,
        p_equivalence=None,
        p_difference_holm=None,
        p_equivalence_holm=None,
        verdict=None,
        seeds_to_decide=None,
    )


def _with_verdict(decision: Decision) -> Difference:
    blind = decision.blind
    return replace(
        explored(decision.estimate, alpha=decision.alpha),
        p_difference=decision.p_difference,
        p_equivalence=decision.p_equivalence,
        p_difference_holm=decision.p_difference_holm,
        p_equivalence_holm=decision.p_equivalence_holm,
        p_beyond=decision.p_beyond,
        p_beyond_holm=decision.p_beyond_holm,
        verdict=str(decision.verdict),
        seeds_to_decide=decision.seeds_to_decide,
        unseen_share=blind.share_of_cases,
        failure_rate=blind.failure_rate,
        cases_needed=blind.needed,
        rarest_class=blind.costliest.label if blind.costliest else None,
        rarest_cases=blind.costliest.support if blind.costliest else None,
    )


def _values(values: Sequence[float]) -> MetricValues:
    # Exact sums: equal values have a deviation of 0, not of a rounding error.
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return MetricValues(mean=statistics.fmean(values), sd=deviation, per_seed=tuple(values))
