"""The speed-up of an arm from pairs of times, one pair per seed or round.

The estimate is made of d_i = log(baseline's time / arm's time). Up to eleven pairs, it is their
mean, with Student's t interval: no distribution-free interval of level 95 % exists for fewer than
six pairs. From twelve pairs on, it is the Hodges-Lehmann estimate, the median of all
(d_i + d_j) / 2, with the interval of Wilcoxon's signed-rank test, which a few interrupted rounds do
not widen. If arm and baseline are equally fast and took turns, each d_i is symmetric about 0,
however often runs are disturbed.

In simulations of equal arms in turns (`benchmarks/speed_verdicts.py`), at most 4.4 % were called
faster or slower with up to ten pairs, and at most 6.2 % with 20 (a fifth of the runs throttled by
half). Arms that did not take turns on a machine that slows down by 20 % are in 25 to 100 %.

Sources: Hodges and Lehmann, "Estimates of location based on rank tests", Annals of Mathematical
Statistics 34, 1963; Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods", 3rd edition,
2014, sections 3.2 and 3.3; Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987,
for "as fast".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FASTER, SLOWER, AS_FAST, NOT_DECIDED = "faster", "slower", "as fast", "not decided"
TOLERANCE = 1.05  # ratio within which two arms count as equally fast
LEVEL, EQUIVALENCE_LEVEL = 0.95, 0.90
MAX_PAIRS_BY_T = 11
PLACEBO_TOLERANCE = 1.1  # ratio; two runs of the same mode differ by up to about 1.05


@dataclass(frozen=True, kw_only=True)
class SpeedUp:
    """How much faster an arm is than the baseline; 2 is twice as fast."""

    ratio: float  # Estimate.
    pairs: int  # Number of pairs of times.
    # 95 % confidence interval of the ratio; None with a single pair, and for arms that were not
    # measured in turns.
    interval95: tuple[float, float] | None = None
    # 90 % confidence interval, which decides whether the arms are equally fast.
    interval90: tuple[float, float] | None = None
    # "as fast" if the 90 % interval lies within `TOLERANCE` on either side of 1; otherwise "faster"
    # or "slower" if the 95 % interval excludes 1; otherwise "not decided". None if the arms were
    # not measured in turns, so that drift of the machine is not told from their speed.
    verdict: str | None = None


def speed_up(ratios: Sequence[float], *, in_turns: bool) -> SpeedUp | None:
    """Return the speed-up; None without pairs.

    Args:
        ratios: The baseline's time divided by the arm's time, for each pair; above 0.
        in_turns: Whether baseline and arm took turns.
    """
    if not len(ratios):
        return None
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    if not in_turns or len(logs) < 2:
        verdict = NOT_DECIDED if in_turns else None
        return SpeedUp(ratio=_exp(float(np.mean(logs))), pairs=len(logs), verdict=verdict)
    centre, *wide = _interval(logs, LEVEL)
    _, *narrow = _interval(logs, EQUIVALENCE_LEVEL)
    return SpeedUp(
        ratio=_exp(centre),
        pairs=len(logs),
        interval95=(_exp(wide[0]), _exp(wide[1])),
        interval90=(_exp(narrow[0]), _exp(narrow[1])),
        verdict=_verdict(wide, narrow),
    )


def is_reliable_speed(placebo_speed: float) -> bool:
    """Return whether the placebo was as fast as the baseline, within the tolerance."""
    return 1 / PLACEBO_TOLERANCE <= placebo_speed <= PLACEBO_TOLERANCE


def _verdict(wide: Sequence[float], narrow: Sequence[float]) -> str:
    if max(map(abs, narrow)) < math.log(TOLERANCE):
        return AS_FAST
    if wide[0] > 0:
        return FASTER
    return SLOWER if wide[1] < 0 else NOT_DECIDED


def _interval(logs: npt.NDArray[np.float64], level: float) -> tuple[float, float, float]:
    """Return the estimate of the centre of `logs`, and both ends of its interval."""
    from scipy.special import ndtri, stdtrit

    count = len(logs)
    if count <= MAX_PAIRS_BY_T:
        centre = float(logs.mean())
        half = stdtrit(count - 1, (1 + level) / 2) * logs.std(ddof=1) / math.sqrt(count)
        return centre, centre - half, centre + half
    first, second = np.triu_indices(count)
    averages = np.sort((logs[first] + logs[second]) / 2)
    # The normal approximation of the number of averages below the interval.
    deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    outside = int(len(averages) / 2 - ndtri((1 + level) / 2) * deviation)
    return float(np.median(averages)), float(averages[outside]), float(averages[-1 - outside])


def _exp(value: float) -> float:
    """Return e ** value, at most the largest float: intervals of two pairs can be extreme."""
    return math.exp(min(value, 700.0))
