"""The arms of a comparison: what is compared with what."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.precision.modes import MODES

PLACEBO = "placebo"


@dataclass(frozen=True)
class Arm:
    """A mode, or the placebo: the baseline from perturbed initial weights.

    Attributes:
        name: Name in tables, folders and plots.
        mode: Precision of its runs.
        is_perturbed: Whether its initial weights are one unit in the last place off.
    """

    name: str
    mode: str
    is_perturbed: bool = False


def arms_of(modes: tuple[str, ...], *, placebo: bool) -> tuple[Arm, ...]:
    """Return the arms of a comparison: the baseline, its placebo, the other modes.

    Args:
        modes: The baseline first.
        placebo: Whether the baseline gets a placebo.
    """
    baseline, *others = (Arm(mode, mode) for mode in modes)
    twin = (Arm(PLACEBO, baseline.mode, is_perturbed=True),) if placebo else ()
    return (baseline, *twin, *others)


def place_of(arm: str) -> tuple[int, str]:
    """Return a key that sorts the names of arms: the placebo, then modes as their table has them.

    Any other name comes last.
    """
    order = (PLACEBO, *MODES)
    return (order.index(arm) if arm in order else len(order), arm)
