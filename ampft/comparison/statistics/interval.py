"""The difference between two modes with its uncertainty over training seeds and test examples.

Seeds are readers and examples are cases (Obuchowski and Rockette 1995). With two treatments, the
published quantities are those of the paired differences: MS(T*R) = s^2 / 2, Cov2 - Cov3 = C / 2,
Var(error) - Cov1 = J / 2, and the published standard error and degrees of freedom become

    V  = (2/r) [MS(T*R) + r max(Cov2 - Cov3, 0)]                 = s^2/S + C
    df = [MS(T*R) + r max(Cov2 - Cov3, 0)]^2 / [MS(T*R)^2/(r-1)] = (S-1) (V / (s^2/S))^2

Sources: Obuchowski and Rockette, "Hypothesis testing of diagnostic accuracy for multiple readers
and multiple tests", Communications in Statistics - Simulation and Computation 24, 1995; Hillis,
"A comparison of denominator degrees of freedom methods for multiple observer ROC analysis",
Statistics in Medicine 26, 2007 (`ddf_H`); Hillis, "A marginal-mean ANOVA approach for analyzing
multireader multicase radiological imaging data", Statistics in Medicine 33, 2014.

These degrees of freedom are too many if s^2 is mostly real variation between seeds, as with large
test sets: for normal data and no floor, a 5 % test raises a false alarm in up to 7.8 % of cases at
S = 3 and 5.9 % at S = 5 (by integration over s^2), because an s^2 that is small by chance counts
twice, in V and in df. If the number of cases is known, the default is therefore

    1/df = w / (S - 1) + (1 - w) / (n - 1),    w = (s^2/S) / V,

the weighted critical value of Cochran and Cox ("Experimental Designs", 1957, section 4.14) to first
order in 1/df. Its false alarms are at most 5.8 % at S = 3 and 5 % at S >= 5. If C = 0, df = S - 1.

If few cases differ, the t distribution is wrong for any number of seeds: by t, the loss of a
subgroup of 1 % at every seed is called equivalent at 1 point in up to 25 % of comparisons. The test
of equivalence and the interval therefore also allow for rare cases that the test set may lack; see
`rare_losses`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ampft.comparison.statistics.jackknife import FloatArray, JackknifeDifferences
from ampft.comparison.statistics.rare_losses import CaseDistribution
from ampft.errors import InputError
from ampft.metrics.sums import CostliestCase

MIN_SEEDS = 3
TIE_TOLERANCE = 1e-9  # relative; one example flipped at every seed gives min_variance, rounded


@dataclass(frozen=True)
class DifferenceEstimate:
    """A difference mode - baseline of a metric with the components of its uncertainty.

    All values are in the metric's unit (1 = 100 points) or its square. If the standard error is 0,
    the interval is a point and p-values are 0 or 1; `estimate_difference` never returns that.

    Attributes:
        estimate: Mean of the differences over seeds.
        per_seed: Difference at each seed, shape (S,), float64.
        seed_variance: s^2, the variance of the differences over seeds, at least J - C.
        jackknife_variance: J, the jackknife variance over cases, mean over seeds.
        jackknife_covariance: C, the jackknife covariance between seeds, at least 0.
        standard_error: sqrt(V).
        degrees_of_freedom: Degrees of freedom of t; may be infinite if the number of cases is
            unknown.
        min_variance: Lower bound of V: the squared effect of one changed case.
        cases: n; None if it is unknown.
        case_distribution: Distribution of the differences of the cases; None if it is unknown, in
            which case rare losses are not allowed for.
        seed_noise: Part of V that the cases do not explain, (s^2 - (J - C)) / S.
        costliest: The kind of case whose loss costs the metric most; None if it is unknown.
    """

    estimate: float
    per_seed: FloatArray
    seed_variance: float
    jackknife_variance: float
    jackknife_covariance: float
    standard_error: float
    degrees_of_freedom: float
    min_variance: float = 0.0
    cases: int | None = None
    case_distribution: CaseDistribution | None = None
    seed_noise: float = 0.0
    costliest: CostliestCase | None = None

    def interval(self, level: float) -> tuple[float, float]:
        """Return the two-sided confidence interval.

        It is estimate -+ t((1 + level)/2; df) sqrt(V), widened to all differences that are
        plausible if rare cases, which the test set may lack, are lost or gained (`rare_losses`). A
        limit between 0 and the estimate stays, so that the interval excludes 0 exactly when
        `p_difference` is at most 1 - level.

        Args:
            level: Confidence level, between 0 and 1, such as 0.95.
        """
        from scipy.special import stdtrit

        half = float(stdtrit(self.degrees_of_freedom, (1 + level) / 2)) * self.standard_error
        low, high = self.estimate - half, self.estimate + half
        if self.case_distribution is None:
            return low, high
        one_sided = (1 + level) / 2
        if low <= 0:
            low = min(low, self.case_distribution.lower_limit(one_sided, noise=self.seed_noise))
        if high >= 0:
            high = max(high, self.case_distribution.upper_limit(one_sided, noise=self.seed_noise))
        return low, high

    def p_difference(self) -> float:
        """Return the two-sided p-value of the hypothesis "there is no difference"."""
        return min(1.0, 2 * self._above(abs(self.estimate), 0.0))

    def p_equivalence(self, margin: float) -> float:
        """Return the p-value of the hypothesis "the difference is not within +-margin".

        Two one-sided tests (Schuirmann 1987), each by t and with allowance for rare losses. The
        p-value is the maximum, as in an intersection-union test (Berger, Technometrics 24, 1982).
        If it is at most alpha, the interval of level 1 - 2 alpha lies within +-margin.
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
        return max(self._above(self.estimate, -margin), self._above(-self.estimate, -margin))

    def p_beyond(self, margin: float) -> float:
        """Return the p-value of the hypothesis "the difference is not beyond the margin".

        It is at most alpha exactly when the two-sided interval of level 1 - alpha lies beyond the
        margin, on the side of the estimate.
        """
        return min(1.0, 2 * self._above(abs(self.estimate), margin))

    def _above(self, value: float, limit: float) -> float:
        """Return the one-sided p-value of "the true value behind `value` is at most `limit`"."""
        from scipy.special import stdtr

        distance = value - limit
        if self.standard_error == 0:
            return 0.0 if distance > 0 else 1.0
        return float(stdtr(self.degrees_of_freedom, -distance / self.standard_error))


def estimate_difference(jackknife: JackknifeDifferences) -> DifferenceEstimate:
    """Return the estimate over seeds and cases.

    V is at least the squared effect of one changed case, because predictions that agree on all of n
    cases do not prove that they agree everywhere (compare the rule of three, Hanley and
    Lippman-Hand, JAMA 249, 1983).

    Args:
        jackknife: Differences at three or more seeds.

    Raises:
        InputError: There are fewer than three seeds.
    """
    estimate = obuchowski_rockette(
        jackknife.per_seed,
        jackknife.variance,
        jackknife.covariance,
        min_variance=jackknife.case_effect**2,
        cases=jackknife.cases,
        case_distribution=_case_distribution(jackknife),
    )
    return replace(estimate, costliest=jackknife.costliest)


def estimate_over_cases(jackknife: JackknifeDifferences) -> DifferenceEstimate:
    """Return the estimate for these very models, over cases only.

    The models are not a sample of trainings, so seeds are fixed readers: the variance of the mean
    over S models is (J + (S - 1) C) / S, with n - 1 degrees of freedom (Obuchowski and Rockette
    1995). With one model, it is J. Nothing follows for models that are trained with other seeds.

    Args:
        jackknife: Differences of one or more models.
    """
    seeds, covariance = len(jackknife.per_seed), max(jackknife.covariance, 0.0)
    variance = (jackknife.variance + (seeds - 1) * covariance) / seeds
    return DifferenceEstimate(
        estimate=float(jackknife.per_seed.mean()),
        per_seed=jackknife.per_seed,
        seed_variance=max(jackknife.variance - covariance, 0.0),
        jackknife_variance=jackknife.variance,
        jackknife_covariance=covariance,
        standard_error=math.sqrt(max(variance, jackknife.case_effect**2)),
        degrees_of_freedom=float(jackknife.cases - 1),
        min_variance=jackknife.case_effect**2,
        cases=jackknife.cases,
        case_distribution=_case_distribution(jackknife),
        costliest=jackknife.costliest,
    )


def _case_distribution(jackknife: JackknifeDifferences) -> CaseDistribution | None:
    lost = jackknife.costliest.effect * jackknife.cases
    if not lost:
        return None
    seeds = len(jackknife.per_seed)
    return CaseDistribution.from_differences(jackknife.pseudovalues, lost, seeds)


def obuchowski_rockette(
    per_seed: FloatArray,
    variance: float,
    covariance: float,
    *,
    min_variance: float = 0.0,
    cases: int | None = None,
    case_distribution: CaseDistribution | None = None,
) -> DifferenceEstimate:
    """Return the estimate from the differences and their jackknife variance and covariance.

    C is at least 0, as published. Beyond the publications, s^2 is at least J - C, the part of it
    that is due to the cases. V is then at least (J + (S-1) C) / S, the variance of the published
    analysis with fixed readers, so that an s^2 that is small by chance claims no more than what is
    known about these particular seeds.

    Args:
        per_seed: Difference at each seed, shape (S,), S >= 3.
        variance: J.
        covariance: C, positive or negative.
        min_variance: Lower bound of V.
        cases: n; None for the degrees of freedom of Hillis (2007).
        case_distribution: Distribution of the differences of the cases; None makes no allowance for
            rare losses.

    Raises:
        InputError: There are fewer than three seeds.
    """
    differences = np.asarray(per_seed, dtype=np.float64)
    seeds = len(differences)
    if seeds < MIN_SEEDS:
        raise InputError(
            f"{seeds} seeds per mode: an interval needs at least {MIN_SEEDS}. Add seeds; 5 is the "
            "default."
        )
    covariance = max(covariance, 0.0)
    seed_variance = max(float(np.var(differences, ddof=1)), variance - covariance, 0.0)
    errors, degrees = standard_errors(
        np.array([seed_variance]),
        covariance,
        seeds,
        min_variance=min_variance,
        cases=cases,
    )
    return DifferenceEstimate(
        estimate=float(differences.mean()),
        per_seed=differences,
        seed_variance=seed_variance,
        jackknife_variance=variance,
        jackknife_covariance=covariance,
        standard_error=float(errors[0]),
        degrees_of_freedom=float(degrees[0]),
        min_variance=min_variance,
        cases=cases,
        case_distribution=case_distribution,
        seed_noise=(seed_variance - max(variance - covariance, 0.0)) / seeds,
    )


def standard_errors(
    seed_variances: FloatArray,
    covariance: float,
    seeds: int,
    *,
    min_variance: float = 0.0,
    cases: int | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return the standard errors of means over seeds, and their degrees of freedom.

    Args:
        seed_variances: (m,) values of s^2.
        covariance: C >= 0.
        seeds: S >= 2.
        min_variance: Lower bound of V; when V is at the bound, df = S - 1.
        cases: n; None for the degrees of freedom of Hillis (2007).
    """
    from_seeds = seed_variances / seeds
    total = from_seeds + covariance
    errors = np.sqrt(np.maximum(total, min_variance))
    is_at_bound = total <= min_variance * (1 + TIE_TOLERANCE)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if cases is not None:
            share = from_seeds / total
            degrees = 1 / (share / (seeds - 1) + (1 - share) / (cases - 1))
        else:
            degrees = (seeds - 1) * (total / from_seeds) ** 2
    return errors, np.where(is_at_bound, float(seeds - 1), degrees)
