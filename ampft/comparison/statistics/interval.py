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
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ampft.comparison.statistics.jackknife import FloatArray, JackknifeDifferences
from ampft.errors import InputError

FEWEST_SEEDS = 3


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

    def interval(self, level: float) -> tuple[float, float]:
        """Return the two-sided interval: estimate -+ t((1 + level)/2; df) sqrt(V).

        Args:
            level: Between 0 and 1, such as 0.95.
        """
        from scipy.special import stdtrit

        half = float(stdtrit(self.degrees_of_freedom, (1 + level) / 2)) * self.standard_error
        return self.estimate - half, self.estimate + half

    def p_difference(self) -> float:
        """Return the two-sided p value of "there is no difference"."""
        return min(1.0, 2 * self._above(abs(self.estimate), 0.0))

    def p_equivalence(self, margin: float) -> float:
        """Return the p value of "the difference is not inside +-margin".

        Two one-sided tests (Schuirmann 1987): the larger p value. At most alpha exactly when the
        interval of level 1 - 2 alpha lies inside +-margin.
        """
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
    return obuchowski_rockette(
        jackknife.per_seed,
        jackknife.variance,
        jackknife.covariance,
        smallest_variance=jackknife.case_effect**2,
        cases=jackknife.cases,
    )


def obuchowski_rockette(
    per_seed: FloatArray,
    variance: float,
    covariance: float,
    *,
    smallest_variance: float = 0.0,
    cases: int | None = None,
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
    error, degrees = error_of_mean(
        spread,
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
        standard_error=error,
        degrees_of_freedom=degrees,
        smallest_variance=smallest_variance,
        cases=cases,
    )


def error_of_mean(
    seed_variance: float,
    covariance: float,
    seeds: int,
    *,
    smallest_variance: float = 0.0,
    cases: int | None = None,
) -> tuple[float, float]:
    """Return the standard error of the mean over `seeds` seeds and its degrees of freedom.

    Args:
        seed_variance: s^2.
        covariance: C >= 0.
        seeds: S >= 2.
        smallest_variance: Least V; where it binds, df = S - 1.
        cases: n; without it the degrees of freedom are those of Hillis (2007).
    """
    own = seed_variance / seeds
    total = own + covariance
    error = math.sqrt(max(total, smallest_variance))
    if total <= smallest_variance:
        return error, float(seeds - 1)
    if cases is not None:
        share = own / total
        return error, 1 / (share / (seeds - 1) + (1 - share) / (cases - 1))
    ratio = total / own if own > 0 else math.inf
    return error, (seeds - 1) * ratio * ratio  # inf, where ** would raise OverflowError
