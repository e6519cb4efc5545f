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

These degrees of freedom are too many where s^2 is mostly real variation between seeds, which large
test sets bring about: with normal data and no floor, a 5 % test alarms in up to 7.8 % at S = 3 and
5.9 % at S = 5 (by integration over s^2), because a luckily small s^2 counts twice, in V and in df.
With the number of examples known, the default is therefore

    1/df = w / (S - 1) + (1 - w) / (n - 1),    w = (s^2/S) / V,

the weighted critical value of Cochran and Cox ("Experimental Designs", 1957, section 4.14) to first
order in 1/df. It alarms in at most 5.8 % at S = 3 and 5 % at S >= 5, and s^2 alone gives S - 1.

Where few cases differ, the t distribution is wrong however many seeds there are: by t, a subgroup
of 1 % that is lost at every seed is called equivalent at 1 point in up to 25 % of comparisons. So
equivalence and the interval also ask what rare cases could do, which the test set may lack: see
`rare_losses`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ampft.comparison.statistics.jackknife import FloatArray, JackknifeDifferences
from ampft.comparison.statistics.rare_losses import CaseDifferences, case_differences
from ampft.errors import InputError
from ampft.metrics.sums import CostliestCase

FEWEST_SEEDS = 3
TIE = 1e-9  # relative: one example flipped at every seed gives the least V, but for rounding


@dataclass(frozen=True)
class DifferenceEstimate:
    """A difference mode - baseline of a metric with what its uncertainty is made of.

    Everything is in the metric's unit (1 = 100 points) or its square. Where the standard error is
    0, the interval is the point and a p value is 0 or 1; `estimate_difference` never returns that.

    Attributes:
        estimate: Mean of the differences over seeds.
        per_seed: Difference at each seed, shape (S,), float64.
        seed_variance: s^2, the variance of the differences over seeds, at least J - C.
        jackknife_variance: J, over examples, mean over seeds.
        jackknife_covariance: C, between seeds, at least 0.
        standard_error: sqrt(V).
        degrees_of_freedom: Of t; may be infinite where the number of examples is unknown.
        smallest_variance: V is at least this: the square of what one example is worth.
        cases: n, or None where it is unknown.
        by_case: The differences of the cases; None where they are unknown, and then rare losses
            are not allowed for.
        seed_noise: What seeds add to V beyond what the cases explain, (s^2 - (J - C)) / S.
        costliest: The kind of case whose loss would cost most, or None.
    """

    estimate: float
    per_seed: FloatArray
    seed_variance: float
    jackknife_variance: float
    jackknife_covariance: float
    standard_error: float
    degrees_of_freedom: float
    smallest_variance: float = 0.0
    cases: int | None = None
    by_case: CaseDifferences | None = None
    seed_noise: float = 0.0
    costliest: CostliestCase | None = None

    def interval(self, level: float) -> tuple[float, float]:
        """Return the two-sided interval.

        It is estimate -+ t((1 + level)/2; df) sqrt(V), widened to every difference that would not
        surprise if rare cases, which the test set may lack, were lost or gained (`rare_losses`).
        Only a limit between 0 and the estimate is not moved, so that the interval excludes 0
        exactly when `p_difference` is at most 1 - level.

        Args:
            level: Between 0 and 1, such as 0.95.
        """
        from scipy.special import stdtrit

        half = float(stdtrit(self.degrees_of_freedom, (1 + level) / 2)) * self.standard_error
        low, high = self.estimate - half, self.estimate + half
        if self.by_case is None:
            return low, high
        one_sided = (1 + level) / 2
        if low <= 0:
            low = min(low, self.by_case.lowest(one_sided, noise=self.seed_noise))
        if high >= 0:
            high = max(high, self.by_case.highest(one_sided, noise=self.seed_noise))
        return low, high

    def p_difference(self) -> float:
        """Return the two-sided p value of "there is no difference"."""
        return min(1.0, 2 * self._above(abs(self.estimate), 0.0))

    def p_equivalence(self, margin: float) -> float:
        """Return the p value of "the difference is not inside +-margin".

        Two one-sided tests (Schuirmann 1987), each both by t and allowing for rare losses: the
        largest p value, an intersection-union test (Berger, Technometrics 24, 1982). Where it is
        at most alpha, the interval of level 1 - 2 alpha lies inside +-margin.
        """
        p_values = [self.p_equivalence_by_t(margin)]
        if self.by_case is not None:
            p_values += [
                self.by_case.p_above(-margin, noise=self.seed_noise),
                self.by_case.p_below(margin, noise=self.seed_noise),
            ]
        return max(p_values)

    def p_equivalence_by_t(self, margin: float) -> float:
        """Return the p value of only the two t tests, which do not allow for rare losses."""
        return max(self._above(self.estimate, -margin), self._above(-self.estimate, -margin))

    def p_beyond(self, margin: float) -> float:
        """Return the p value of "the difference is not beyond the margin on its side".

        At most alpha exactly when the two-sided interval of level 1 - alpha lies beyond the margin
        on the side of the estimate.
        """
        return min(1.0, 2 * self._above(abs(self.estimate), margin))

    def _above(self, value: float, limit: float) -> float:
        """Return the one-sided p value of "what `value` estimates is not above `limit`"."""
        from scipy.special import stdtr

        distance = value - limit
        if self.standard_error == 0:
            return 0.0 if distance > 0 else 1.0
        return float(stdtr(self.degrees_of_freedom, -distance / self.standard_error))


def estimate_difference(jackknife: JackknifeDifferences) -> DifferenceEstimate:
    """Return the estimate over seeds and examples.

    V is at least the square of what one changed prediction is worth: predictions that agree on all
    of n examples do not show that they agree everywhere (compare the rule of three, Hanley and
    Lippman-Hand, JAMA 249, 1983).

    Args:
        jackknife: Of at least three seeds.

    Raises:
        InputError: There are fewer than three seeds.
    """
    found = obuchowski_rockette(
        jackknife.per_seed,
        jackknife.variance,
        jackknife.covariance,
        smallest_variance=jackknife.case_effect**2,
        cases=jackknife.cases,
        by_case=_by_case(jackknife),
    )
    return replace(found, costliest=jackknife.costliest)


def _by_case(jackknife: JackknifeDifferences) -> CaseDifferences | None:
    lost = jackknife.costliest.worth * jackknife.cases
    return case_differences(jackknife.by_case, lost, len(jackknife.per_seed)) if lost else None


def obuchowski_rockette(
    per_seed: FloatArray,
    variance: float,
    covariance: float,
    *,
    smallest_variance: float = 0.0,
    cases: int | None = None,
    by_case: CaseDifferences | None = None,
) -> DifferenceEstimate:
    """Return the estimate from the differences and their jackknife variance and covariance.

    C is floored at 0, as published. Beyond the publications, s^2 is at least J - C, what the
    examples alone contribute to it. V is then never below (J + (S-1) C) / S, the variance of the
    published analysis with fixed readers: a luckily small s^2 from three seeds claims no more
    than is known about these very seeds.

    Args:
        per_seed: Difference at each seed, shape (S,), S >= 3.
        variance: J.
        covariance: C, of any sign.
        smallest_variance: Least V.
        cases: n; without it the degrees of freedom are those of Hillis (2007).
        by_case: The differences of the cases; without them rare losses are not allowed for.

    Raises:
        InputError: There are fewer than three seeds.
    """
    differences = np.asarray(per_seed, dtype=np.float64)
    seeds = len(differences)
    if seeds < FEWEST_SEEDS:
        raise InputError(
            f"{seeds} seeds per mode: at least {FEWEST_SEEDS} are needed for an interval over "
            "training runs; add seeds (5 is the default)"
        )
    shared = max(covariance, 0.0)
    spread = max(float(np.var(differences, ddof=1)), variance - shared, 0.0)
    errors, degrees = errors_of_mean(
        np.array([spread]),
        shared,
        seeds,
        smallest_variance=smallest_variance,
        cases=cases,
    )
    return DifferenceEstimate(
        estimate=float(differences.mean()),
        per_seed=differences,
        seed_variance=spread,
        jackknife_variance=variance,
        jackknife_covariance=shared,
        standard_error=float(errors[0]),
        degrees_of_freedom=float(degrees[0]),
        smallest_variance=smallest_variance,
        cases=cases,
        by_case=by_case,
        seed_noise=(spread - max(variance - shared, 0.0)) / seeds,
    )


def errors_of_mean(
    seed_variances: FloatArray,
    covariance: float,
    seeds: int,
    *,
    smallest_variance: float = 0.0,
    cases: int | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return the standard errors of means over `seeds` seeds and their degrees of freedom.

    Args:
        seed_variances: (m,) values of s^2.
        covariance: C >= 0.
        seeds: S >= 2.
        smallest_variance: Least V; where it binds, df = S - 1.
        cases: n; without it the degrees of freedom are those of Hillis (2007).
    """
    own = seed_variances / seeds
    total = own + covariance
    errors = np.sqrt(np.maximum(total, smallest_variance))
    binds = total <= smallest_variance * (1 + TIE)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if cases is not None:
            share = own / total
            degrees = 1 / (share / (seeds - 1) + (1 - share) / (cases - 1))
        else:
            degrees = (seeds - 1) * (total / own) ** 2
    return errors, np.where(binds, float(seeds - 1), degrees)
