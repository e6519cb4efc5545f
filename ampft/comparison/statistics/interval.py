"""The difference between two modes with its uncertainty over training seeds and test examples.

Seeds are readers and examples are cases (Obuchowski and Rockette 1995). With two treatments, the
published quantities follow from the paired differences: MS(T*R) = s^2 / 2, Cov2 - Cov3 = C / 2,
Var(error) - Cov1 = J / 2. The published variance of the mean difference is

    over seeds and cases       V = s^2/S + C,
    over cases, fixed seeds    F = (J - C)/S + C = (J + (S - 1) C) / S,

and the half-width of an interval is the larger of

    [w t(S - 1) + (1 - w) t(n - 1)] sqrt(V),    w = (s^2/S) / V,
    t(n - 1) sqrt(F).

Cochran and Cox ("Experimental Designs", 1957, section 4.14) give the first critical value, for a
variance with two estimated parts. The second ensures that trainings that agree by luck claim no
more than is known about these trainings only. For normal data, a test's error does not exceed the
error of a test with only the first part. Integration over s^2 gives this error for every share of
C: at most 5.0 % at the level 5 %, and 2.6 % at 2.5 %, which two modes or two planned analyses need
(`benchmarks/LOG.md`, "Intervals that three seeds can fill").

Rejected, by the same integration at S = 3 and the levels 5, 2.5 and 1 %: the degrees of freedom of
Hillis (2007), (S - 1) / w^2, have errors of up to 7.8, 5.3 and 3.5 %, because an s^2 that is small
by chance counts twice, in V and in the degrees; 1/df = w/(S - 1) + (1 - w)/(n - 1), the first order
of the weighted value, 5.8, 3.5 and 2.1 %, with intervals that are 4 % shorter. Replacing s^2 by
J - C where that is larger, and keeping t(S - 1), hardly ever finds anything with three seeds.

Sources: Obuchowski and Rockette, "Hypothesis testing of diagnostic accuracy for multiple readers
and multiple tests", Communications in Statistics - Simulation and Computation 24, 1995; Hillis,
"A comparison of denominator degrees of freedom methods for multiple observer ROC analysis",
Statistics in Medicine 26, 2007; Hillis, "A marginal-mean ANOVA approach for analyzing multireader
multicase radiological imaging data", Statistics in Medicine 33, 2014.

A metric is a function of sums over cases, so the effect of leaving a case out depends only on what
that case adds to the sums. One value for each distinct contribution therefore gives every
leave-one-out value of the jackknife, exactly.

If few cases differ, the t distribution is wrong for any number of seeds: by t, the loss of a
subgroup of 1 % at every seed is called equivalent at 1 point in up to 25 % of comparisons. The test
of equivalence and the interval therefore also allow for rare cases that the test set may lack; see
`rare_losses`. The test of equivalence also allows for effects that are skewed over the seeds; see
`skewed_seeds`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ampft.comparison.settings import MIN_SEEDS
from ampft.comparison.statistics.case_distribution import CaseDistribution
from ampft.comparison.statistics.skewed_seeds import seed_critical, skewed_part
from ampft.errors import InputError
from ampft.metrics.sums import CaseSums, CostliestCase, Metric, costliest_of_worst

FloatArray = npt.NDArray[np.float64]

CHUNK = 1 << 16  # cases at a time; memory besides the sums is S x CHUNK floats
TIE_TOLERANCE = 1e-9  # relative; one example flipped at every seed gives min_variance, rounded
FEW = 0.01  # of the cases, see `few_carrying`
FEW_LABELS = 0.02  # of the cases, by what they would cost a model that predicts the mean
MIN_P = 1e-15  # smaller p-values are given as this


@dataclass(frozen=True)
class JackknifeDifferences:
    """Differences of one metric between two arms, in the metric's unit (1 = 100 points)."""

    per_seed: FloatArray  # Difference arm - baseline at each seed, shape (S,), float64.
    variance: float  # J, the jackknife variance of a difference over cases, mean over seeds.
    # C, the jackknife covariance of the differences at two seeds, mean over the pairs of seeds; may
    # be negative. 0 with one seed.
    covariance: float
    cases: int  # n.
    case_effect: float  # Effect of one changed case, see `Metric.effect_of_changed_case`.
    # The jackknife's pseudo-value of each case, mean over seeds, shape (n,), float64. Their mean is
    # the difference. For accuracy they are the differences of the cases, from -1 (lost at every
    # seed) to 1.
    pseudovalues: FloatArray
    # The kind of case whose loss costs the metric most, see `Metric.costliest_case`.
    costliest: CostliestCase
    # Number of cases whose errors are most of the uncertainty; None for no such few, see
    # `few_carrying`.
    carrying: int | None = None
    # The same of what the cases would cost a model that predicts the mean of the labels; None for
    # no such few, or with `carrying`.
    carrying_labels: int | None = None
    largest: float = math.inf  # Largest possible difference, see `Metric.largest_difference`.


def few_carrying(effects: FloatArray, share: float = FEW) -> int | None:
    """Return the number of cases with half of the variance over cases, if it is small.

    5 % of the cases have half of it if errors are normal. If a few large errors carry a mean, a
    sample without them misses it on one side, and cannot show it. So the labels are asked as well:
    what a case would cost a model that predicts their mean. `benchmarks/large_errors.py` measures
    how often intervals miss with and without such few cases.

    Args:
        effects: (n,) effects of the cases, such as pseudo-values of the jackknife.
        share: Largest share of the cases that counts as small.
    """
    squares = np.sort((effects - effects.mean()) ** 2)[::-1]
    half = squares.sum() / 2
    count = int(np.searchsorted(np.cumsum(squares), half)) + 1
    return count if half > 0 and count <= max(1, share * len(effects)) else None


def jackknife_differences(
    arm: Sequence[CaseSums], baseline: Sequence[CaseSums], metric: Metric
) -> JackknifeDifferences:
    """Return the difference at each seed with its jackknife variance and covariance.

    With d_s(-i) the difference at seed s without case i,

        cov(s, t) = (n - 1) / n * sum over i of (d_s(-i) - mean d_s) (d_t(-i) - mean d_t),

    as in Obuchowski and Rockette (1995) and in Hillis, Obuchowski, Schartz and Berbaum (Statistics
    in Medicine 24, 2005, doi:10.1002/sim.2024). Time is O(S^2 n); memory is O(n), plus O(S) per
    case of a chunk.

    Args:
        arm: Sums of the arm at each of S seeds.
        baseline: Sums of the baseline at the same seeds, over the same cases.
        metric: A function of these sums.

    Raises:
        InputError: There are fewer than two cases, or the metric is undefined.
        ValueError: The sides differ in seeds or cases.
    """
    cases, seeds = len(baseline[0]), len(baseline)
    if len(arm) != seeds or any(len(sums) != cases for sums in (*arm, *baseline)):
        raise ValueError("both sides need the same seeds and the same cases")
    if cases < 2:
        raise InputError(
            f"a comparison needs at least 2 independent test cases, and there are {cases}. Use a "
            "larger test set."
        )
    values = np.array([[metric.value(sums) for sums in side] for side in (arm, baseline)])
    if not np.isfinite(values).all():
        raise InputError(
            f"--metric {metric.name}: it is undefined for these predictions. Use another metric."
        )
    covariances, left_out = _left_out(arm, baseline, metric)
    if not np.isfinite(covariances).all():
        raise InputError(
            f"--metric {metric.name}: it is undefined if one of the test cases is left out. Use "
            "another metric, or more test examples of the rare classes."
        )
    per_seed = values[0] - values[1]
    pseudovalues = per_seed.mean() - (cases - 1) * (left_out - left_out.mean())
    carrying = few_carrying(pseudovalues) if metric.costliest is costliest_of_worst else None
    carrying_labels = None
    if carrying is None and metric.cost_of_mean is not None:
        costs = baseline[0].patterns[:, [metric.cost_of_mean]].toarray()[:, 0]
        carrying_labels = few_carrying(costs[baseline[0].pattern_of], FEW_LABELS)
    diagonal = float(np.trace(covariances))
    pairs = seeds * (seeds - 1)
    return JackknifeDifferences(
        per_seed=per_seed,
        variance=diagonal / seeds,
        covariance=(float(covariances.sum()) - diagonal) / pairs if pairs else 0.0,
        cases=cases,
        case_effect=max(metric.effect_of_changed_case(sums) for sums in baseline),
        pseudovalues=pseudovalues,
        costliest=metric.costliest_case(baseline),
        carrying=carrying,
        carrying_labels=carrying_labels,
        largest=metric.largest_difference,
    )


def _left_out(
    arm: Sequence[CaseSums], baseline: Sequence[CaseSums], metric: Metric
) -> tuple[FloatArray, FloatArray]:
    """Return the (S, S) jackknife covariances, and the (n,) leave-one-out means over seeds."""
    cases, seeds = len(baseline[0]), len(baseline)
    # Sums of small numbers are accurate; variances may be 1e-7 while values are near 1.
    sides = [
        [values - values.mean() for values in map(metric.leave_one_out, side)]
        for side in (arm, baseline)
    ]
    total, products, means = np.zeros(seeds), np.zeros((seeds, seeds)), np.empty(cases)
    for start in range(0, cases, CHUNK):
        part = slice(start, start + CHUNK)
        left_out = np.empty((seeds, len(baseline[0].pattern_of[part])))
        for seed in range(seeds):
            mine, other = (
                values[seed][side[seed].pattern_of[part]]
                for values, side in zip(sides, (arm, baseline), strict=True)
            )
            np.subtract(mine, other, out=left_out[seed])
        total += left_out.sum(axis=1)
        products += left_out @ left_out.T
        left_out.mean(axis=0, out=means[part])
    covariances = (cases - 1) / cases * (products - np.outer(total, total) / cases)
    return covariances, means


def half_widths(
    tail: float,
    *,
    seed_variances: FloatArray,
    seeds: int,
    jackknife_variance: float,
    covariance: float,
    cases: int,
    min_variance: float = 0.0,
    allows_skewness: bool = False,
) -> FloatArray:
    """Return the half-widths of intervals by t, for several values of s^2.

    Args:
        tail: One-sided tail probability, above 0 and at most 0.5, such as 0.025.
        seed_variances: (m,) values of s^2, without a lower bound.
        seeds: S >= 2.
        covariance: C >= 0.
        cases: n >= 2.
        min_variance: Lower bound of V and F. If V is at the bound, its critical value is t(S - 1).
        allows_skewness: Whether effects may be skewed over the seeds, see `skewed_seeds`.
    """
    from scipy.special import stdtrit

    over_seeds, over_cases = -stdtrit(seeds - 1, tail), -stdtrit(cases - 1, tail)
    total = seed_variances / seeds + covariance
    share = np.where(
        total <= min_variance * (1 + TIE_TOLERANCE),
        1.0,
        seed_variances / seeds / np.maximum(total, np.finfo(np.float64).tiny),
    )
    critical = share * over_seeds + (1 - share) * over_cases
    if allows_skewness:
        skewed = skewed_part(seed_variances, max(jackknife_variance - covariance, 0.0), seeds)
        skewed_share = np.minimum(
            skewed / seeds / np.maximum(total, np.finfo(np.float64).tiny), share
        )
        critical = critical + skewed_share * (seed_critical(tail, seeds) - over_seeds)
    fixed = fixed_models_variance(jackknife_variance, covariance, seeds)
    return np.maximum(
        critical * np.sqrt(np.maximum(total, min_variance)),
        over_cases * math.sqrt(max(fixed, min_variance)),
    )


def fixed_models_variance(jackknife_variance: float, covariance: float, seeds: int) -> float:
    """Return F, the variance over the cases of the mean over S fixed models, J at least C."""
    return max(jackknife_variance - covariance, 0.0) / seeds + covariance


@dataclass(frozen=True, kw_only=True)
class DifferenceEstimate:
    """A difference mode - baseline of a metric with the components of its uncertainty.

    All values are in the metric's unit (1 = 100 points) or its square. If every variance is 0, the
    interval is a point and p-values are 0 or 1; `estimate_difference` never returns that.
    """

    estimate: float  # Mean of the differences over seeds.
    per_seed: FloatArray  # Difference at each seed, shape (S,), float64.
    # s^2, the variance of the differences over seeds; None if the models are fixed, so that only
    # the cases vary.
    seed_variance: float | None
    jackknife_variance: float  # J, the jackknife variance over cases, mean over seeds.
    jackknife_covariance: float  # C, the jackknife covariance between seeds, at least 0.
    cases: int  # n.
    # Lower bound of the variance: the squared effect of one changed case.
    min_variance: float = 0.0
    # Distribution of the differences of the cases; None if it is unknown, in which case rare losses
    # are not allowed for.
    case_distribution: CaseDistribution | None = None
    # The kind of case whose loss costs the metric most; None if it is unknown.
    costliest: CostliestCase | None = None
    carrying: int | None = None  # As in `JackknifeDifferences`.
    carrying_labels: int | None = None  # As in `JackknifeDifferences`.
    largest: float = math.inf  # As in `JackknifeDifferences`.

    @property
    def seed_noise(self) -> float:
        """Part of the variance of the mean that the cases do not explain, (s^2 - (J - C)) / S."""
        if self.seed_variance is None:
            return 0.0
        explained = max(self.jackknife_variance - self.jackknife_covariance, 0.0)
        return max(self.seed_variance - explained, 0.0) / len(self.per_seed)

    def half_width(self, tail: float, *, allows_skewness: bool = False) -> float:
        """Return the half-width of the interval by t, before it allows for rare losses.

        Args:
            tail: One-sided tail probability, above 0 and at most 0.5: 0.025 for a 95 % interval.
            allows_skewness: Whether effects may be skewed over the seeds.
        """
        from scipy.special import stdtrit

        seeds = len(self.per_seed)
        if self.seed_variance is None:
            fixed = fixed_models_variance(self.jackknife_variance, self.jackknife_covariance, seeds)
            error = math.sqrt(max(fixed, self.min_variance))
            return -float(stdtrit(self.cases - 1, tail)) * error
        found = half_widths(
            tail,
            seed_variances=np.array([self.seed_variance]),
            seeds=seeds,
            jackknife_variance=self.jackknife_variance,
            covariance=self.jackknife_covariance,
            cases=self.cases,
            min_variance=self.min_variance,
            allows_skewness=allows_skewness,
        )
        return float(found[0])

    def rare_limits(self, level: float) -> tuple[float, float] | None:
        """Return the limits of differences that rare losses or gains explain, two-sided.

        None if the distribution of the cases is unknown.
        """
        if self.case_distribution is None:
            return None
        one_sided, noise = (1 + level) / 2, self.seed_noise
        return self._possible(
            self.case_distribution.lower_limit(one_sided, noise=noise),
            self.case_distribution.upper_limit(one_sided, noise=noise),
        )

    def skewed_limits(self, level: float) -> tuple[float, float] | None:
        """Return the two-sided limits if effects may be skewed over the seeds (`skewed_seeds`).

        None if the models are fixed.
        """
        if self.seed_variance is None:
            return None
        half = self.half_width((1 - level) / 2, allows_skewness=True)
        return self._possible(self.estimate - half, self.estimate + half)

    def interval(self, level: float) -> tuple[float, float]:
        """Return the two-sided confidence interval.

        It is estimate -+ half_width, widened to all differences that are plausible if rare cases,
        which the test set may lack, are lost or gained (`rare_limits`). A limit between 0 and the
        estimate stays, so that the interval excludes 0 exactly when `p_difference` is at most
        1 - level.

        Args:
            level: Confidence level, between 0 and 1, such as 0.95.
        """
        half = self.half_width((1 - level) / 2)
        low, high = self.estimate - half, self.estimate + half
        if (rare := self.rare_limits(level)) is not None:
            low = min(low, rare[0]) if low <= 0 else low
            high = max(high, rare[1]) if high >= 0 else high
        return self._possible(low, high)

    def _possible(self, low: float, high: float) -> tuple[float, float]:
        """Return the limits without differences that the metric cannot have."""
        return max(low, -self.largest), min(high, self.largest)

    def p_difference(self) -> float:
        """Return the two-sided p-value of the hypothesis "there is no difference"."""
        return min(1.0, 2 * self._above(abs(self.estimate), 0.0))

    def p_equivalence(self, margin: float) -> float:
        """Return the p-value of the hypothesis "the difference is not within +-margin".

        Two one-sided tests (Schuirmann 1987), each by t with allowance for skewed effects of the
        seeds (`skewed_limits`), and with allowance for rare losses. The p-value is the maximum, as
        in an intersection-union test (Berger, Technometrics 24, 1982). If it is at most alpha, the
        interval of level 1 - 2 alpha lies within +-margin.
        """
        p_values = [self.p_equivalence_by_t(margin)]
        if self.case_distribution is not None:
            p_values += [
                self.case_distribution.p_above(-margin, noise=self.seed_noise),
                self.case_distribution.p_below(margin, noise=self.seed_noise),
            ]
        return max(p_values)

    def p_equivalence_by_t(self, margin: float) -> float:
        """Return the p-value of equivalence by the t tests only, without rare losses."""
        return max(
            self._above(value, -margin, allows_skewness=True)
            for value in (self.estimate, -self.estimate)
        )

    def p_beyond(self, margin: float) -> float:
        """Return the p-value of the hypothesis "the difference is not beyond the margin".

        It is at most alpha exactly when the two-sided interval of level 1 - alpha lies beyond the
        margin, on the side of the estimate.
        """
        return min(1.0, 2 * self._above(abs(self.estimate), margin))

    def _above(self, value: float, limit: float, *, allows_skewness: bool = False) -> float:
        """Return the one-sided p-value of "the true value behind `value` is at most `limit`".

        It is the tail probability whose half-width is the distance, at least `MIN_P`.
        """
        from scipy.optimize import brentq

        distance = abs(value - limit)
        if self.half_width(MIN_P) == 0:
            return 0.0 if value > limit else 1.0
        smallest, largest = math.log(MIN_P), math.log(0.5)

        def excess(log_tail: float) -> float:
            tail = min(math.exp(log_tail), 0.5)
            return self.half_width(tail, allows_skewness=allows_skewness) - distance

        tail = MIN_P
        if excess(largest) > 0:
            tail = 0.5
        elif excess(smallest) > 0:
            tail = math.exp(brentq(excess, smallest, largest, xtol=1e-13))
        return tail if value > limit else 1 - tail


def estimate_difference(jackknife: JackknifeDifferences) -> DifferenceEstimate:
    """Return the estimate over seeds and cases.

    The variance is at least the squared effect of one changed case, because predictions that agree
    on all of n cases do not prove that they agree everywhere (compare the rule of three, Hanley and
    Lippman-Hand, JAMA 249, 1983). C is at least 0, as published.

    Args:
        jackknife: Differences at three or more seeds.

    Raises:
        ValueError: There are fewer than three seeds.
    """
    seeds = len(jackknife.per_seed)
    if seeds < MIN_SEEDS:
        raise ValueError(f"an interval over seeds needs at least {MIN_SEEDS} seeds, not {seeds}")
    fixed = estimate_over_cases(jackknife)
    return replace(fixed, seed_variance=float(np.var(jackknife.per_seed, ddof=1)))


def estimate_over_cases(jackknife: JackknifeDifferences) -> DifferenceEstimate:
    """Return the estimate for these models only, over cases.

    The models are not a sample of trainings, so seeds are fixed readers: the variance of the mean
    over S models is F, with n - 1 degrees of freedom (Obuchowski and Rockette 1995). With one
    model, it is J. Nothing follows for models that are trained with other seeds.
    """
    lost, seeds = jackknife.costliest.effect * jackknife.cases, len(jackknife.per_seed)
    cases = None
    if lost:
        cases = CaseDistribution.from_differences(jackknife.pseudovalues, lost, seeds)
    return DifferenceEstimate(
        estimate=float(jackknife.per_seed.mean()),
        per_seed=jackknife.per_seed,
        seed_variance=None,
        jackknife_variance=jackknife.variance,
        jackknife_covariance=max(jackknife.covariance, 0.0),
        cases=jackknife.cases,
        min_variance=jackknife.case_effect**2,
        case_distribution=cases,
        costliest=jackknife.costliest,
        carrying=jackknife.carrying,
        carrying_labels=jackknife.carrying_labels,
        largest=jackknife.largest,
    )


def estimate_of_sums(
    arm: Sequence[CaseSums], baseline: Sequence[CaseSums], metric: Metric
) -> DifferenceEstimate:
    """Return the estimate from the sums of both sides, each in the order of the seeds.

    With fewer seeds than an interval over seeds needs, it is over the cases only.
    """
    differences = jackknife_differences(arm, baseline, metric)
    if len(arm) < MIN_SEEDS:
        return estimate_over_cases(differences)
    return estimate_difference(differences)
