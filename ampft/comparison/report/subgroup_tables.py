"""The table of the subgroups in which the arms lose most."""

from __future__ import annotations

from collections.abc import Iterator

from ampft.comparison.findings import Comparison
from ampft.text.numbers import counted, level, points
from ampft.text.tables import Cell, Name, Table

# What counts as a correct prediction of an example that consists of words or pixels.
CORRECT = {"sentences": "sentences with all tags correct", "masks": "masks without a wrong pixel"}


def subgroup_losses(comparison: Comparison) -> Iterator[Table]:
    """Yield the subgroups in which the arms lose most, if subgroups were examined."""
    examined = [(arm, arm.subgroups) for arm in comparison.arms if arm.subgroups is not None]
    if not examined:
        return
    first = examined[0][1]
    rows: list[tuple[Cell, ...]] = []
    for arm, subgroups in examined:
        if not subgroups.losses:
            rows.append((Name(arm.name, "arm"), "none", "", "", "", ""))
        for each in subgroups.losses:
            low, high = each.interval
            rows.append(
                (
                    *(Name(arm.name, "arm"), f"{each.kind}:", Name(each.name)),
                    *(f"{each.examples:,}", points(each.estimate)),
                    f"{points(low)} to {points(high)}{'; a loss' if each.is_loss else ''}",
                )
            )
    detectable = 100 * max(subgroups.detectable for _, subgroups in examined)
    what = CORRECT.get(first.noun, "correct predictions")
    kinds = f"classes, words and lengths of {first.noun}" if first.has_words else "classes"
    yield Table(
        title=f"Differences to {comparison.baseline.name} in {what}, in points",
        header=(comparison.noun, "subgroup", "", first.noun, "difference", "corrected interval"),
        rows=rows,
        note=f"The largest losses, relative to their uncertainty, among {first.examined:,} "
        f"{kinds} (with at least 20 {first.noun} each). The intervals have a "
        f"level of {level(first.level)}, so that all of them hold together with 95 %: only an "
        "interval entirely below 0 is a loss that the number of subgroups does not explain. "
        f"With {counted(len(comparison.seeds), 'seed')}, a loss of {detectable:.0f} points at "
        f"every seed in a subgroup of usual size ({first.usual_size:,} {first.noun}) would be "
        "found with a probability of 80 %; smaller ones may be there."
        + " Compare with the placebo."
        * any(arm.is_placebo for arm, _ in examined),
        left=3,
    )
