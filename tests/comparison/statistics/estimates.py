"""Estimates from their components, and the rules that the published analyses would use."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from ampft.comparison.statistics.case_distribution import CaseDistribution
from ampft.comparison.statistics.interval import DifferenceEstimate

MANY = 10_000  # cases, so that t over the cases is nearly normal


def estimate_from(
    per_seed,
    variance: float,
    covariance: float,
    *,
    min_variance: float = 0.0,
    cases: int = MANY,
    case_distribution: CaseDistribution | None = None,
) -> DifferenceEstimate:
    """The estimate over seeds with J = `variance` and C = `covariance`."""
    differences = np.asarray(per_seed, dtype=np.float64)
    return DifferenceEstimate(
        estimate=float(differences.mean()),
        per_seed=differences,
        seed_variance=float(differences.var(ddof=1)),
        jackknife_variance=variance,
        jackknife_covariance=max(covariance, 0.0),
        cases=cases,
        min_variance=min_variance,
        case_distribution=case_distribution,
    )


def published(each: DifferenceEstimate) -> tuple[float, float]:
    """Standard error and degrees of freedom as published by Hillis (2007), without any bound."""
    seeds = len(each.per_seed)
    own = each.seed_variance / seeds
    variance = own + each.jackknife_covariance
    return math.sqrt(variance), (seeds - 1) * (variance / own) ** 2


def by_hand(each: DifferenceEstimate, level: float) -> float:
    """The half-width, term by term, if no variance is at its bound."""
    seeds, (error, _) = len(each.per_seed), published(each)
    share = each.seed_variance / seeds / error**2
    over_seeds, over_cases = (
        stats.t.ppf((1 + level) / 2, degrees) for degrees in (seeds - 1, each.cases - 1)
    )
    own = max(each.jackknife_variance - each.jackknife_covariance, 0.0) / seeds
    fixed = math.sqrt(own + each.jackknife_covariance)
    return max((share * over_seeds + (1 - share) * over_cases) * error, over_cases * fixed)
