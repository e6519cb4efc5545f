"""How the error of a whole sequence of tries is spent, and what reuse of the test rows costs.

**Spending.** Try t is tested at the level a(t) = error * share(t), with shares that sum to 1. So at
most `error` of all sequences contain a false keep, by the union bound, for any dependence between
the tries (alpha spending, as in Foster and Stine, "Alpha-investing", JRSS B 70, 2008, but without
earning levels back, because that bounds a rate of false discoveries, not their existence). A look
at the same candidate with more seeds is a try of its own.

**Reuse.** Whoever chose try t has seen the earlier answers, and these depend on the test rows. A
change can therefore suit the rows better than the population. Seeds are fresh, so only the rows
carry this error. If every answer but a keep says nothing about the rows, the answers before try t
are one of few transcripts: which of the t - 1 tries were kept, and what was said about each gain. A
prefix code gives each transcript a share, with a sum of at most 1:

    share = 2^-(k + 1) / (t - 1 choose k) * product over the keeps of 2^-(points shown + 1).

For one transcript the candidate is a fixed procedure, whose error R over the rows is normal with
the standard error C^(1/2): C is the covariance between different seeds, which is what the rows do
to the procedure, whatever the seeds. With Q the tail of a standard normal, the union bound over
transcripts gives P(Q(R / C^(1/2)) <= u * share) <= u, so that R is in distribution at most

    R* = C^(1/2) Q^-1(U * share),    U uniform.

The rest of the error, T, comes from fresh trainings: s^2 / S with S - 1 degrees of freedom,
independent of the transcript, because a candidate is trained after it. (The best's trainings are
not fresh, but their luck is the same for all candidates, so that no choice of a candidate uses it.)
So a gain is kept if it exceeds c with P(R* + T > c) = level, and the limit without reuse as well.
This is the bound of the Ladder (Blum and Hardt, ICML 2015), of description length (Dwork et al.,
"Generalization in adaptive data analysis and holdout reuse", NeurIPS 2015), used for a test instead
of a score. C is estimated from few seeds, so two standard errors of its estimate are added: rows
whose trainings are independent give pairs of seeds a covariance with the standard error
(J - C) (2 / (S (S - 1) n))^(1/2).

Before the first keep the share is 1/2, and R* is the absolute value of a normal variable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PLANNED_SHARE = 0.75  # of the error, for the planned tries
SMALLEST_TAIL, LEAST_LOG = 1e-300, -690.0  # so that quantiles are finite
PARTS, SMALLEST_PART = 200, 1e-3  # of the range of U, and of the level: the first of them
SMALLEST_SPREAD = 1e-6  # of the seeds, relative to the rows


@dataclass(frozen=True, kw_only=True)
class TryLevel:
    """The error that one try may use.

    Attributes:
        number: Number of the try, from 1.
        level: Probability that this try is a false keep, at most.
        log_share: Natural logarithm of the share of the transcript of earlier answers.
    """

    number: int
    level: float
    log_share: float

    def reuse_limit(self, over_rows: float, over_seeds: float, *, seeds: int, cases: int) -> float:
        """Return c, which rows that earlier answers tell about exceed with the level's probability.

        Args:
            over_rows: Standard error over the rows, C^(1/2).
            over_seeds: Standard error over the seeds, s / S^(1/2).
            seeds: S >= 2, for Student's distribution with S - 1 degrees of freedom.
            cases: n >= 2, likewise for the rows.
        """
        from scipy.optimize import brentq
        from scipy.special import stdtr, stdtrit

        # R* falls with U, so its value at the lower end of each interval of U is a bound.
        ends = np.geomspace(SMALLEST_PART * self.level, 1.0, PARTS)
        tails = np.maximum(ends[:-1] * math.exp(max(self.log_share, LEAST_LOG)), SMALLEST_TAIL)
        errors, weights = -over_rows * stdtrit(cases - 1, tails), np.diff(ends)
        spread = max(over_seeds, SMALLEST_SPREAD * over_rows, SMALLEST_TAIL)

        def excess(limit: float) -> float:
            above = weights @ stdtr(seeds - 1, (errors - limit) / spread)
            return float(ends[0] + above) - self.level

        most = float(errors.max()) - over_seeds * float(stdtrit(seeds - 1, self.level / 2))
        return brentq(excess, 0.0, most) if excess(0.0) > 0 else 0.0


def share_of_try(number: int, planned: int) -> float:
    """Return the share of the error that try `number` may use.

    The planned tries share three quarters evenly. The rest is for later tries, as 1 / (j (j + 1))
    for the j-th of them, so that it never runs out.

    Args:
        number: Number of the try, from 1.
        planned: Number of planned tries, at least 1.
    """
    if number <= planned:
        return PLANNED_SHARE / planned
    later = number - planned
    return (1 - PLANNED_SHARE) / (later * (later + 1))


def log_transcript_share(number: int, shown_points: Sequence[int]) -> float:
    """Return the logarithm of the share of the answers before a try.

    Args:
        number: Number of the try, from 1.
        shown_points: For each earlier keep, the whole number that its answer showed, at least 0.
    """
    keeps, earlier = len(shown_points), number - 1
    orders = math.lgamma(earlier + 1) - math.lgamma(keeps + 1) - math.lgamma(earlier - keeps + 1)
    bits = keeps + 1 + sum(points + 1 for points in shown_points)
    return -orders - bits * math.log(2)


def level_of_try(
    number: int, shown_points: Sequence[int], *, error: float, planned: int, sealed: bool
) -> TryLevel:
    """Return what a try may use.

    Args:
        number: Number of the try, from 1.
        shown_points: For each earlier keep, the whole number that its answer showed.
        error: Error of the whole sequence, such as 0.05.
        planned: Number of planned tries.
        sealed: Whether answers other than a keep say nothing about the rows. If not, reuse is not
            allowed for, and candidates must not be tuned to the answers.
    """
    level = error * share_of_try(number, planned)
    if not sealed:
        return TryLevel(number=number, level=level, log_share=0.0)
    return TryLevel(
        number=number,
        level=level,
        log_share=log_transcript_share(number, shown_points),
    )
