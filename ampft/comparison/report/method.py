"""How a comparison was measured, in words for its reader; every source is named."""

from __future__ import annotations

from ampft.comparison.findings import Comparison
from ampft.text.numbers import level, percent, seed_words

FORMULAS = (
    "Seeds are treated as readers and examples as cases (Obuchowski and Rockette 1995). The "
    "difference is the mean over the S seeds. Its variance is s²/S + C: s² is the variance of the "
    "differences over seeds, at least J less C; J is the mean jackknife variance over examples, C "
    "the mean jackknife covariance between seeds, at least 0. The interval is the difference plus "
    "and minus t times the root of that variance. The variance is at least the square of what one "
    "example is worth, so that equal answers do not pass for certainty. One over the degrees of "
    "freedom is w/(S - 1) + (1 - w)/(n - 1), where w is the share of s²/S in the variance and n "
    "the number of examples (after Cochran and Cox 1957); Hillis' degrees of freedom (2007) are "
    "more, and alarmed too often in simulations of few seeds (benchmarks/interval_calibration.py)."
)
HOLM = (
    "With several modes the p-values are corrected by Holm's method (1979), for difference, for "
    "difference beyond the margin and for equivalence, each a family of its own; intervals are "
    "those of each mode alone."
)
EXPLORATORY = (
    "Everything else (predictions in fp32, classes, calibration, flips, McNemar's tests) is "
    "exploratory: it may suggest a question and does not answer one."
)
IN_TURN = "Each run is its own process, one at a time, the modes in turn."
AT_DIFFERENT_TIMES = (
    "No plan ordered the runs: their speeds were measured at different times, perhaps with other "
    "work beside them."
)
SPEED = (
    "Speed is the median optimizer "
    "step after the warm-up, the baseline's over the mode's, seed by seed; memory is the peak of "
    "the process or of the device's allocator. Emulated modes get no speed ranking."
)
SOURCES = (
    "Obuchowski and Rockette, Hypothesis testing of diagnostic accuracy for multiple readers and "
    "multiple tests, Communications in Statistics, Simulation and Computation 24, 1995",
    "Hillis, A comparison of denominator degrees of freedom methods for multiple observer ROC "
    "analysis, Statistics in Medicine 26, 2007",
    "Cochran and Cox, Experimental Designs, 2nd edition, 1957, section 4.14",
    "Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of "
    "Statistics 6, 1979",
    "Summers and Dinneen, Nondeterminism and instability in neural network optimization, ICML 2021",
)


def method_paragraphs(comparison: Comparison) -> tuple[str, ...]:
    """Return how the comparison was measured, one paragraph each: estimand, formulas, verdicts.

    Args:
        comparison: The split's name stands in a paragraph as it is: whoever shows it makes it
            inert.
    """
    base = comparison.baseline.name
    estimand = (
        f"Estimated is the expected difference in {comparison.units.title}, mode less "
        f"{base}, over training seeds (head, order of the examples, dropout) and over test "
        "examples, with training set, model and hyperparameters fixed. It comes from "
        f"{comparison.examples:,} examples of {comparison.split} and "
        f"{seed_words(comparison.seeds)}. {_named(comparison)}"
    )
    parts = [estimand, FORMULAS, _verdicts(comparison), HOLM]
    if any(arm.is_placebo for arm in comparison.arms):
        parts.append(
            f"The placebo is {base} once more, with initial weights one unit in the last place "
            "off. Where training is chaotic, even this changes predictions (Summers and Dinneen "
            "2021); where it is not, the twin stays close. What the placebo changes is the "
            "yardstick for what a mode changes."
        )
    order = IN_TURN if comparison.planned else AT_DIFFERENT_TIMES
    parts += [f"{order} {SPEED}", EXPLORATORY]
    if comparison.overhead_share is not None:
        parts.append(
            f"Comparing took {percent(comparison.overhead_share, 1)} of the time of the runs."
        )
    return tuple(parts)


def _named(comparison: Comparison) -> str:
    metric, margin = comparison.units.sentence(), comparison.units.margin_words
    if comparison.planned:
        return f"{metric} and the margin of {margin} were named beforehand."
    return (
        f"{metric}, the margin of {margin} and the number of seeds may have been chosen after "
        "looking at results: no plan named them."
    )


def _verdicts(comparison: Comparison) -> str:
    wide, narrow = level(1 - comparison.alpha), level(1 - 2 * comparison.alpha)
    margin = comparison.units.margin_words
    words = (
        f"A mode is equivalent when its {narrow} interval lies within {margin} on either side of "
        f"0; worse beyond the margin when its {wide} interval lies wholly below that; worse, size "
        "uncertain, when that interval lies below 0 and neither of those holds; better likewise; "
        "else undecided."
    )
    if len(comparison.looks) < 2:
        return words
    numbers = ", then at ".join(f"{seeds}" for seeds in comparison.looks)
    return (
        f"{words} Looks were planned at {numbers} seeds, and share the error of 5 % equally among "
        "them, which is why the intervals are wider."
    )
