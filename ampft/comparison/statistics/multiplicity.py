"""Several modes at once: Holm's adjustment."""

from __future__ import annotations

from collections.abc import Mapping


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return the adjusted p values, in the order given.

    With p_(1) <= ... <= p_(m): adjusted p_(k) = max over j <= k of min(1, (m - j + 1) p_(j)). All
    claims with an adjusted value of at most alpha are true together with probability 1 - alpha or
    more, whatever the dependence between the modes.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal
    of Statistics 6, 1979.
    """
    adjusted: dict[str, float] = {}
    largest = 0.0
    for done, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - done) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}
