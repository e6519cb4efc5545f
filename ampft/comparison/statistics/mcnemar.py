"""Compare two checkpoints on the same cases."""

from __future__ import annotations


def mcnemar_mid_p(gained: int, lost: int) -> float:
    """Return the two-sided mid-p value of McNemar's exact conditional test.

    It compares two checkpoints of one seed. Counts pooled over seeds do not keep its level, because
    the seeds share their cases. With m = b + c discordant cases and X binomial (m, 1/2),
    p = 2 P(X <= min(b, c)) - P(X = min(b, c)), and 1 - P(X = b) / 2 if b = c; 1 if m = 0.

    Source: Fagerland, Lydersen, Laake, "The McNemar test for binary matched-pairs data: mid-p and
    asymptotic are better than exact conditional", BMC Medical Research Methodology 13:91, 2013.

    Args:
        gained: b, the number of cases that only the arm predicts correctly.
        lost: c, the number of cases that only the baseline predicts correctly.

    Raises:
        ValueError: A count is negative.
    """
    from scipy.stats import binom

    if gained < 0 or lost < 0:
        raise ValueError(f"counts must not be negative, received {gained} and {lost}")
    fewer, discordant = min(gained, lost), gained + lost
    if discordant == 0:
        return 1.0
    point = float(binom.pmf(fewer, discordant, 0.5))
    if gained == lost:
        return 1 - point / 2
    return 2 * float(binom.cdf(fewer, discordant, 0.5)) - point
