"""Planned interim analyses of a comparison."""

from __future__ import annotations

from itertools import pairwise

from ampft.errors import InputError


def alpha_per_analysis(numbers: tuple[int, ...], alpha: float = 0.05) -> float:
    """Return the level of each analysis, so that all of them together have the level `alpha`.

    Bonferroni's correction, alpha / (number of analyses), holds for any dependence between them.

    Args:
        numbers: Increasing numbers of seeds at which the results are analysed, such as (5, 10).
        alpha: Level of the whole comparison.

    Raises:
        InputError: `numbers` is empty, or the numbers are not positive and increasing.
    """
    if not numbers or numbers[0] < 1 or any(b <= a for a, b in pairwise(numbers)):
        raise InputError(
            f"numbers of seeds: received {','.join(map(str, numbers)) or 'none'}, but they must be "
            "positive and increasing, such as 5,10"
        )
    return alpha / len(numbers)
