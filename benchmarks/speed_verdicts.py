"""How often a comparison's speed is called faster or slower: with equal arms, and with faster ones.

    python benchmarks/speed_verdicts.py

Each run has a normal error of its logarithm and is throttled with some probability. Baseline and
arm take turns as in a comparison (`execution.plan.interleaved_runs`), or all runs of the baseline
come first. The machine may become slower throughout. Prints percentages of 2,000 comparisons; the
old rule called an arm faster if it was faster at every seed.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from provenance import command_line

from ampft.comparison.statistics.speed_up import AS_FAST, FASTER, SLOWER, speed_up

COMPARISONS = 2000
SEEDS = (2, 3, 4, 5, 7, 10, 20)
ERROR = 0.03  # standard deviation of the logarithm of a run's time
# Share of throttled runs, the factor of their times, and the slow-down over the whole comparison.
CONDITIONS = ((0.0, 1.0, 1.0), (0.1, 1.25, 1.0), (0.1, 1.33, 1.0), (0.2, 1.5, 1.0), (0.0, 1.0, 1.2))


def ratios(
    rng: np.random.Generator, seeds: int, true: float, condition: tuple[float, float, float]
) -> tuple[list[float], list[float]]:
    """Return the ratios of one comparison with the arms in turns, and one arm after the other."""
    share, factor, drift = condition
    logs = rng.normal(0, ERROR, 2 * seeds)
    logs += np.where(rng.random(2 * seeds) < share, math.log(factor), 0)
    logs += np.linspace(0, math.log(drift), 2 * seeds)
    first, second = logs[::2], logs[1::2]
    is_base_first = np.arange(seeds) % 2 == 0
    in_turns = np.where(is_base_first, first - second, second - first)
    one_by_one = logs[:seeds] - logs[seeds:]
    return (true * np.exp(in_turns)).tolist(), (true * np.exp(one_by_one)).tolist()


def main() -> None:
    """Print a row per condition and number of seeds."""
    command_line(__doc__, out=None).parse_args()
    print("share factor drift seeds | faster at 1.2x: now, old rule | at 1.0x: wrong, as fast,")
    print("                           old rule wrong, wrong if the arms do not take turns")
    for condition, seeds in itertools.product(CONDITIONS, SEEDS):
        rng = np.random.default_rng(seeds)
        counts = np.zeros(6)
        for _ in range(COMPARISONS):
            faster, _ = ratios(rng, seeds, 1.2, condition)
            equal, one_by_one = ratios(rng, seeds, 1.0, condition)
            found = [speed_up(each, in_turns=True) for each in (faster, equal, one_by_one)]
            verdicts = [each.verdict if each else None for each in found]
            counts += (
                verdicts[0] == FASTER,
                min(faster) > 1,
                verdicts[1] in (FASTER, SLOWER),
                verdicts[1] == AS_FAST,
                min(equal) > 1 or max(equal) < 1,
                verdicts[2] in (FASTER, SLOWER),
            )
        shares = " ".join(f"{100 * count / COMPARISONS:6.1f}" for count in counts)
        share, factor, drift = condition
        print(f"{share:5.1f} {factor:6.2f} {drift:5.1f} {seeds:5d} | {shares}", flush=True)


if __name__ == "__main__":
    main()
