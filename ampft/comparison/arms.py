"""The arms of a comparison: the baseline, its placebo and the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ampft.arguments.compare import PLACEBO, ArmSettings
from ampft.precision.modes import MODE_TABLE, MODES


@dataclass(frozen=True)
class Arm:
    """A name and settings, or the placebo: the baseline from perturbed initial weights.

    Attributes:
        name: Name in tables, folders and plots.
        flags: Flags of classify.py that its runs have beside those that all runs share.
        mode: Precision of its runs.
        is_perturbed: Whether its initial weights are changed by one unit in the last place.
    """

    name: str
    flags: tuple[str, ...]
    mode: str
    is_perturbed: bool = False


def mode_arm(mode: str) -> Arm:
    """Return the arm of a precision, which also predicts in float32 where it can."""
    flags = ["--mixed_precision", mode]
    if not MODE_TABLE[mode].replaces_layers:
        flags.append("--evaluate_fp32")
    return Arm(mode, tuple(flags), mode)


def settings_arm(settings: ArmSettings) -> Arm:
    """Return the arm of settings that a user named."""
    flags = (*settings.flags, "--mixed_precision", settings.mode)
    return Arm(settings.name, flags, settings.mode)


def with_placebo(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """Return the baseline, its placebo, and the other arms."""
    baseline, *others = arms
    return (baseline, replace(baseline, name=PLACEBO, is_perturbed=True), *others)


def arm_sort_key(arm: str, order: Sequence[str] = MODES) -> tuple[int, str]:
    """Return a sort key for arm names: the placebo, then the names in `order`, then the others."""
    names = (PLACEBO, *order)
    return (names.index(arm) if arm in names else len(names), arm)
