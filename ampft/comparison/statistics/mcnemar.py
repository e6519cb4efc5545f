"""Two checkpoints on the same examples."""

from __future__ import annotations


def mcnemar_mid_p(only_mode_right: int, only_baseline_right: int) -> float:
    """Return the two-sided mid-p value of McNemar's exact conditional test.

    It speaks of two checkpoints, one seed each: pooled over seeds it does not hold its level,
    because the seeds share their examples. With m = b + c discordant examples and X binomial
    (m, 1/2), p = 2 P(X <= min(b, c)) - P(X = min(b, c)), and 1 - P(X = b)/2 where b = c. Without
    a discordant example it is 1.

    Source: Fagerland, Lydersen, Laake, "The McNemar test for binary matched-pairs data: mid-p and
    asymptotic are better than exact conditional", BMC Medical Research Methodology 13:91, 2013.

    Args:
        only_mode_right: b, examples that the mode alone gets right.
        only_baseline_right: c, examples that the baseline alone gets right.

    Raises:
        ValueError: A count is negative.
    """
    from scipy.stats import binom

    if only_mode_right < 0 or only_baseline_right < 0:
        raise ValueError(f"counts are not negative: {only_mode_right}, {only_baseline_right}")
    fewer, discordant = min(only_mode_right, only_baseline_right), only_mode_right
    discordant += only_baseline_right
    if discordant == 0:
        return 1.0
    point = float(binom.pmf(fewer, discordant, 0.5))
    if only_mode_right == only_baseline_right:
        return 1 - point / 2
    return 2 * float(binom.cdf(fewer, discordant, 0.5)) - point
