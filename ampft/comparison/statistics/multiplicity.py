"""Holm's correction for several modes."""

from __future__ import annotations

from collections.abc import Mapping


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return the adjusted p-values, in the given order.

    With p_(1) <= ... <= p_(m), the adjusted p_(k) is the maximum over j <= k of
    min(1, (m - j + 1) p_(j)). All claims with an adjusted value of at most alpha hold together with
    a probability of at least 1 - alpha, for any dependence between the modes.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal
    of Statistics 6, 1979.
    """
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}
