"""A comparison in sentences."""

from __future__ import annotations

from ampft.comparison.findings import Comparison


def verdict_sentences(comparison: Comparison) -> tuple[str, ...]:
    """Return one or two sentences for each mode that is neither baseline nor placebo."""
    return tuple(
        f"{arm.name}: {arm.status_words}" for arm in comparison.arms[1:] if not arm.is_placebo
    )
