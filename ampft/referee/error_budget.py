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

For one transcript the candidate is a fixed function, whose error R over the rows is normal with the
standard error F^(1/2). The union bound over transcripts gives P(Q(R) <= u * share) <= u for the
tail probability Q, so that R is at most F^(1/2) (x0 + |Z|) in distribution, with Q(x0) = share and
a standard normal Z: the hazard of a normal tail increases. And P(A + |Z| > c) <= 2 P(A + Z > c) for
independent A and c > 0. So the limit of a gain is lowered by x0 standard errors, and the usual
half-width is taken at half the level. This is the bound of the Ladder (Blum and Hardt, ICML
2015), of description length (Dwork et al., "Generalization in adaptive data analysis and holdout
reuse", NeurIPS 2015), used for a test instead of a score.

Before the first keep the share is 1/2, x0 is 0, and reuse costs a factor of two in the level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PLANNED_SHARE = 0.75  # of the error, for the planned tries
SMALLEST_TAIL = 1e-300  # of a transcript, so that its quantile is finite


@dataclass(frozen=True, kw_only=True)
class TryLevel:
    """The error that one try may use.

    Attributes:
        number: Number of the try, from 1.
        level: Probability that this try is a false keep, at most.
        tail: One-sided tail probability at which its limit is computed.
        log_share: Natural logarithm of the share of the transcript of earlier answers.
    """

    number: int
    level: float
    tail: float
    log_share: float

    def reuse_errors(self, cases: int) -> float:
        """Return x0, the standard errors over the rows that reuse may have added.

        Args:
            cases: n >= 2, for Student's distribution with n - 1 degrees of freedom.
        """
        from scipy.special import stdtrit

        share = max(math.exp(self.log_share), SMALLEST_TAIL)
        return max(-float(stdtrit(cases - 1, share)), 0.0)


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
        return TryLevel(number=number, level=level, tail=level, log_share=0.0)
    return TryLevel(
        number=number,
        level=level,
        tail=level / 2,
        log_share=log_transcript_share(number, shown_points),
    )
