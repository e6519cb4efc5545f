"""The arms of a comparison: the baseline, its placebo and the other modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampft.precision.modes import MODES

PLACEBO = "placebo"


@dataclass(frozen=True)
class Arm:
    """A mode, or the placebo: the baseline mode from perturbed initial weights.

    Attributes:
        name: Name in tables, folders and plots.
        mode: Precision of its runs.
        is_perturbed: Whether its initial weights are changed by one unit in the last place.
    """

    name: str
    mode: str
    is_perturbed: bool = False


def make_arms(modes: tuple[str, ...], *, placebo: bool) -> tuple[Arm, ...]:
    """Return the arms of a comparison: the baseline, its placebo, the other modes.

    Args:
        modes: Modes, the baseline first.
        placebo: Whether to include a placebo.
    """
    baseline, *others = (Arm(mode, mode) for mode in modes)
    placebo_arm = (Arm(PLACEBO, baseline.mode, is_perturbed=True),) if placebo else ()
    return (baseline, *placebo_arm, *others)


def arm_sort_key(arm: str, order: Sequence[str] = MODES) -> tuple[int, str]:
    """Return a sort key for arm names: the placebo, then the names in `order`, then the others."""
    names = (PLACEBO, *order)
    return (names.index(arm) if arm in names else len(names), arm)
