"""A group of examples in which an arm may lose more than overall."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SubgroupLoss:
    """The difference of an arm to the baseline in the examples of a subgroup."""

    kind: str  # "class", "length" or "word".
    name: str  # Name of the class, range of the number of words, or the word.
    examples: int  # Number of examples.
    estimate: float  # Difference in the share of correct predictions, mean over the seeds.
    interval: tuple[float, float]  # Confidence interval of level `SubgroupLosses.level`.

    @property
    def is_loss(self) -> bool:
        """Whether the interval excludes that nothing is lost."""
        return self.interval[1] < 0


@dataclass(frozen=True, kw_only=True)
class SubgroupLosses:
    """The subgroups in which an arm loses most, relative to their uncertainty."""

    examined: int  # Number of subgroups that were examined, in each arm.
    # Level of the intervals: they hold together for all subgroups and arms (Bonferroni).
    level: float
    # Share of correct predictions that a subgroup of `usual_size` examples must lose at every seed
    # to be found with a probability of 80 %.
    detectable: float
    usual_size: int  # Median number of examples of the subgroups.
    losses: tuple[SubgroupLoss, ...]  # The largest losses.
    noun: str = "texts"  # What the examples are, in the plural.
    has_words: bool = True  # Whether words and lengths were examined too, not only classes.
