"""A group of examples in which an arm may lose more than overall."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SubgroupLoss:
    """The difference of an arm to the baseline in the examples of a subgroup.

    Attributes:
        kind: "class", "length" or "word".
        name: Name of the class, range of the number of words, or the word.
        examples: Number of examples.
        estimate: Difference in the share of correct predictions, mean over the seeds.
        interval: Confidence interval of level `SubgroupLosses.level`.
    """

    kind: str
    name: str
    examples: int
    estimate: float
    interval: tuple[float, float]

    @property
    def is_loss(self) -> bool:
        """Whether the interval excludes that nothing is lost."""
        return self.interval[1] < 0


@dataclass(frozen=True, kw_only=True)
class SubgroupLosses:
    """The subgroups in which an arm loses most, relative to their uncertainty.

    Attributes:
        examined: Number of subgroups that were examined, in each arm.
        level: Level of the intervals: they hold together for all subgroups and arms (Bonferroni).
        detectable: Share of correct predictions that a subgroup of `usual_size` examples must lose
            at every seed to be found with a probability of 80 %.
        usual_size: Median number of examples of the subgroups.
        losses: The largest losses.
        noun: What the examples are, in the plural.
        has_words: Whether words and lengths were examined too, not only classes.
    """

    examined: int
    level: float
    detectable: float
    usual_size: int
    losses: tuple[SubgroupLoss, ...]
    noun: str = "texts"
    has_words: bool = True
