"""Planned looks at the seeds of a comparison."""

from __future__ import annotations

from itertools import pairwise

from ampft.errors import InputError


def alpha_per_look(looks: tuple[int, ...], alpha: float = 0.05) -> float:
    """Return the level of each look, so that all looks together err at most with `alpha`.

    Bonferroni: alpha / (number of looks). Valid whatever the dependence between the looks.

    Args:
        looks: Numbers of seeds at which is looked, increasing, such as (5, 10).
        alpha: Level of the whole comparison.

    Raises:
        InputError: There is no look, a number is not positive, or the numbers do not increase.
    """
    if not looks or looks[0] < 1 or any(later <= sooner for sooner, later in pairwise(looks)):
        shown = ",".join(map(str, looks)) or "nothing"
        raise InputError(
            f"looks at the seeds: got {shown}; give positive numbers of seeds that increase, "
            "such as 5,10"
        )
    return alpha / len(looks)
