"""Settings in which a comparison could be fooled: losses of few cases, copies, seeds that fail.

Their protocol is `simulated_seeds.Setting`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from simulated_seeds import BoolArray, Drawn, DrawnSums, FloatArray, IntArray, Latent, two_classes

from ampft.comparison.analysis.subgroup_losses import sums_of_class
from ampft.metrics.sums import MACRO_F1, CaseSums, Metric, single_label_sums


def after_flips(accuracy: float, flips: float) -> float:
    """Return the share of predictions that are right after a share of them has flipped."""
    return accuracy * (1 - flips) + (1 - accuracy) * flips


@dataclass(frozen=True)
class Subgroup:
    """A share of cases that the arm loses at every seed; both sides have independent flips."""

    seeds: int  # S.
    examples: int  # n.
    accuracy: float  # Share of cases that are right but for flips.
    flips: float  # Share of predictions that flip at a seed, on each side.
    certainty: float  # Probability that a case of the subgroup is lost at a seed.
    mode_seed: float  # Standard deviation over seeds of the accuracy that the arm gains or loses.

    family: ClassVar[str] = "subgroup"
    metric: ClassVar[str] = "accuracy"
    classes: ClassVar[int] = 2

    def differences(self) -> tuple[float, ...]:
        """Return zero and losses of 0.5, 1, 2 and 4 points."""
        return (0.0, -0.005, -0.01, -0.02, -0.04)

    def draw(self, generator: np.random.Generator) -> Drawn:
        """Draw one comparison."""
        shape = self.seeds, self.examples
        correct = after_flips(self.accuracy, self.flips)
        right = generator.random(self.examples) < self.accuracy
        baseline, mode = right ^ (generator.random((2, *shape)) < self.flips)
        if self.mode_seed:
            shift = self.mode_seed * generator.standard_normal((self.seeds, 1))
            share = np.abs(shift) / np.where(shift > 0, 1 - correct, correct)
            mode = mode ^ ((mode == (shift < 0)) & (generator.random(shape) < share))
        member = generator.random(self.examples)
        hit = generator.random(shape) < self.certainty
        arms = tuple(
            mode & ~(hit & (member < -difference / (self.certainty * correct)))
            for difference in self.differences()
        )
        return Drawn(*two_classes(self.examples, generator), baseline, arms)


@dataclass(frozen=True)
class RareClasses:
    """Classes of a few examples each, of which the last loses a share at every seed.

    The number of examples of each class is fixed. The true difference is that of the expected
    confusion matrices, in which the wrong predictions of a class are spread over the others.
    """

    seeds: int  # S.
    metric: str  # "macro_f1" or "balanced_accuracy".
    supports: tuple[int, ...]  # Number of examples of each class; the last is the rarest.
    accuracy: float  # Share of cases that are right but for flips.
    flips: float  # Share of predictions that flip at a seed, on each side.
    lost: tuple[float, ...] = (0.0, 0.1, 0.3)  # Shares of the rarest class that are lost.

    family: ClassVar[str] = "rare classes"

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.supports)

    def differences(self) -> tuple[float, ...]:
        """Return the differences for each share of the rarest class that is lost."""
        values = [self.value(share) for share in self.lost]
        return tuple(value - values[0] for value in values)

    def value(self, lost: float) -> float:
        """Return the metric of the expected confusion matrix."""
        recall = np.full(self.classes, after_flips(self.accuracy, self.flips))
        recall[-1] *= 1 - lost
        if self.metric == "balanced_accuracy":
            return float(recall.mean())
        labelled = np.array(self.supports, dtype=np.float64)
        right, others = labelled * recall, labelled * (1 - recall) / (self.classes - 1)
        predicted = right + others.sum() - others
        return float(np.mean(2 * right / (labelled + predicted)))

    def draw(self, generator: np.random.Generator) -> Drawn:
        """Draw one comparison."""
        labels = np.repeat(np.arange(self.classes), self.supports)
        right = generator.random(len(labels)) < self.accuracy
        flipped = generator.random((2, self.seeds, len(labels))) < self.flips
        baseline, mode = right ^ flipped
        wrong = (labels + generator.integers(1, self.classes, len(labels))) % self.classes
        member, is_rarest = generator.random(len(labels)), labels == self.classes - 1
        arms = tuple(mode & ~(is_rarest & (member < share)) for share in self.lost)
        return Drawn(labels, wrong, baseline, arms)


@dataclass(frozen=True)
class MostlyLostClasses(RareClasses):
    """The same where the rarest class loses 60 %: often all its cases, and then nothing varies."""

    lost: tuple[float, ...] = (0.0, 0.6)

    family: ClassVar[str] = "rare classes, mostly lost"


@dataclass(frozen=True)
class Duplicates:
    """Cases that occur several times, with the same predictions."""

    seeds: int  # S.
    cases: int  # Number of different cases.
    copies: int  # Number of copies of each case, or its mean.
    varies: bool = False  # Whether the number of copies of a case is drawn from 1 to 2 copies - 1.

    family: ClassVar[str] = "duplicates"
    metric: ClassVar[str] = "accuracy"
    classes: ClassVar[int] = 2
    is_grouped: ClassVar[bool] = False

    @property
    def once(self) -> Latent:
        """The model of the cases without copies."""
        return Latent(self.seeds, self.cases, "accuracy", 0.0, 0.4, 0.1)

    def differences(self) -> tuple[float, ...]:
        """Return zero and losses of 1, 2 and 4 points."""
        return self.once.differences()

    def draw(self, generator: np.random.Generator) -> Drawn:
        """Draw one comparison."""
        drawn = self.once.draw(generator)
        copies = np.full(self.cases, self.copies)
        if self.varies:
            copies = generator.integers(1, 2 * self.copies, self.cases)

        def copied(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.repeat(rows, copies, axis=-1)

        return Drawn(
            copied(drawn.labels),
            copied(drawn.wrong),
            copied(drawn.baseline),
            tuple(map(copied, drawn.arms)),
            copied(np.arange(self.cases)) if self.is_grouped else None,
        )


@dataclass(frozen=True)
class GroupedDuplicates(Duplicates):
    """The same, where it is known which examples belong together: the group is the case."""

    family: ClassVar[str] = "duplicates, grouped"
    is_grouped: ClassVar[bool] = True


@dataclass(frozen=True)
class RareRowsAmongGroups:
    """Rare rows that are cases of their own, while the rows of frequent classes are in groups.

    The arm loses a share of all rows, or of the rare class where the metric is its F1. Rows of a
    frequent class are taken for the other one, and rare rows for either.
    """

    seeds: int  # S.
    metric: str  # "macro_f1", or "rare_f1" for the F1 of the rare class.
    groups: int  # Number of groups of `size` rows, of each frequent class.
    alike: bool  # Whether the rows of a group have the same prediction.
    rare: int = 20  # Rows of the rare class.
    size: int = 8  # Rows of a group.

    family: ClassVar[str] = "rare rows among groups"
    classes: ClassVar[int] = 3
    accuracy: ClassVar[float] = 0.95
    flips: ClassVar[float] = 0.005

    @property
    def margin(self) -> float:
        """Margin at which equality is to be shown."""
        return 0.03 if self.metric == "macro_f1" else 0.2

    @property
    def supports(self) -> tuple[int, ...]:
        """Rows of each class."""
        return (self.groups * self.size, self.groups * self.size, self.rare)

    def measure(self) -> Metric:
        """Return the metric, which is that of one class for "rare_f1"."""
        return MACRO_F1

    def differences(self) -> tuple[float, ...]:
        """Return zero and losses of 3 and 5 points, or of 20 and 30 points of the rare class."""
        return (0.0, -0.03, -0.05) if self.metric == "macro_f1" else (0.0, -0.2, -0.3)

    def value(self, lost: float) -> float:
        """Return the metric of the expected confusion matrix."""
        recall = np.full(self.classes, after_flips(self.accuracy, self.flips))
        recall[0 if self.metric == "macro_f1" else -1 :] *= 1 - lost
        labelled = np.array(self.supports, dtype=np.float64)
        right, wrong = labelled * recall, labelled * (1 - recall)
        predicted = right + np.r_[wrong[1::-1] + wrong[2] / 2, 0.0]
        f1 = 2 * right / (labelled + predicted)
        return float(f1.mean() if self.metric == "macro_f1" else f1[-1])

    def draw(self, generator: np.random.Generator) -> DrawnSums:
        """Draw one comparison."""
        labels = np.repeat(np.arange(self.classes), self.supports)
        grouped = 2 * self.groups
        group = np.r_[np.repeat(np.arange(grouped), self.size), grouped + np.arange(self.rare)]
        units = group if self.alike else np.arange(len(labels))  # what is drawn once
        count = int(units[-1]) + 1
        right = generator.random(count)[units] < self.accuracy
        flipped = (generator.random((2, self.seeds, count)) < self.flips)[..., units]
        baseline, mode = right ^ flipped
        either = generator.integers(0, 2, len(labels))
        wrong = np.where(labels == self.classes - 1, either, 1 - labels)
        member = generator.random(count)[units]
        loses = (labels == self.classes - 1) | (self.metric == "macro_f1")
        zero = self.value(0.0)

        def sums(rows: npt.NDArray[np.bool_]) -> list[CaseSums]:
            return [self._sums(labels, np.where(row, labels, wrong), group) for row in rows]

        shares = [
            brentq(lambda lost, at=zero + each: self.value(lost) - at, 0.0, 1.0)
            for each in self.differences()
        ]
        arms = tuple(sums(mode & ~(loses & (member < share))) for share in shares)
        return DrawnSums(sums(baseline), arms)

    def _sums(self, labels: IntArray, predicted: IntArray, group: IntArray) -> CaseSums:
        each = single_label_sums(labels, predicted, self.classes).grouped(group)
        return each if self.metric == "macro_f1" else sums_of_class([each], 2)[0]


@dataclass(frozen=True)
class BadSeeds:
    """One seed in ten of the arm loses 10 points: 1 point in the mean."""

    seeds: int  # S.
    examples: int  # n.

    family: ClassVar[str] = "bad seeds"
    metric: ClassVar[str] = "accuracy"
    classes: ClassVar[int] = 2
    accuracy: ClassVar[float] = 0.85
    flips: ClassVar[float] = 0.01
    rate: ClassVar[float] = 0.1
    loss: ClassVar[float] = 0.1

    def differences(self) -> tuple[float, ...]:
        """Return zero and one point."""
        return (0.0, -self.rate * self.loss)

    def draw(self, generator: np.random.Generator) -> Drawn:
        """Draw one comparison."""
        shape = self.seeds, self.examples
        right = generator.random(self.examples) < self.accuracy
        baseline, mode = right ^ (generator.random((2, *shape)) < self.flips)
        is_bad = generator.random((self.seeds, 1)) < self.rate
        share = self.loss / after_flips(self.accuracy, self.flips)
        failed = mode & ~(is_bad & (generator.random(shape) < share))
        return Drawn(*two_classes(self.examples, generator), baseline, (mode, failed))


@dataclass(frozen=True)
class OffsetSubgroup:
    """A subgroup is lost at every seed, and as much is gained elsewhere: no difference."""

    seeds: int  # S.
    examples: int  # n.
    lost_cases: float  # Expected number of lost cases of the test set.

    family: ClassVar[str] = "offset subgroup"
    metric: ClassVar[str] = "accuracy"
    classes: ClassVar[int] = 2
    accuracy: ClassVar[float] = 0.8

    def differences(self) -> tuple[float, ...]:
        """Return zero."""
        return (0.0,)

    def draw(self, generator: np.random.Generator) -> Drawn:
        """Draw one comparison."""
        shape = self.seeds, self.examples
        share = self.lost_cases / self.examples
        cell: FloatArray = generator.random(self.examples)
        right = cell < self.accuracy
        baseline = np.broadcast_to(right, shape)
        gained = ~right & (generator.random(shape) < share / (1 - self.accuracy))
        mode = (baseline | gained) & ~(cell < share)
        return Drawn(*two_classes(self.examples, generator), baseline, (mode,))


# Effects of a seed, standardized; all but the first and the last are skewed to high values.
EFFECTS: dict[str, Callable[[np.random.Generator, tuple[int, int]], npt.NDArray[Any]]] = {
    "normal": lambda generator, shape: generator.standard_normal(shape),
    "exponential": lambda generator, shape: generator.exponential(size=shape) - 1,
    "lognormal": lambda generator, shape: (
        (np.exp(generator.standard_normal(shape)) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
    ),
    "two points": lambda generator, shape: 2.5 * ((generator.random(shape) < 0.2) - 0.2),
    "t3": lambda generator, shape: generator.standard_t(3, shape) / np.sqrt(3),
}


@dataclass(frozen=True)
class SkewedSeeds:
    """Effects of a seed on the arm, with a standard deviation of one point."""

    seeds: int  # S.
    examples: int  # n.
    effects: str  # One of `EFFECTS`.
    # What is skewed: "losses" (few seeds lose much), "gains", or "both", which is losses of the
    # arm and of the baseline.
    skewed: str

    family: ClassVar[str] = "skewed seeds"
    metric: ClassVar[str] = "accuracy"
    classes: ClassVar[int] = 2
    accuracy: ClassVar[float] = 0.7
    flips: ClassVar[float] = 0.002
    deviation: ClassVar[float] = 0.01

    def differences(self) -> tuple[float, ...]:
        """Return zero and one point."""
        return (0.0, -0.01)

    def draw(self, generator: np.random.Generator) -> Drawn:
        """Draw one comparison."""
        shape = self.seeds, self.examples
        right = generator.random(self.examples) < self.accuracy
        baseline, mode = right ^ (generator.random((2, *shape)) < self.flips)
        sign = 1 if self.skewed == "gains" else -1

        def changed(rows: BoolArray, difference: float) -> BoolArray:
            effects = EFFECTS[self.effects](generator, (self.seeds, 1))
            shift = difference + sign * self.deviation * effects
            correct = after_flips(self.accuracy, self.flips)
            share = np.abs(shift) / np.where(shift > 0, 1 - correct, correct)
            return rows ^ ((rows == (shift < 0)) & (generator.random(shape) < share))

        if self.skewed == "both":
            baseline = changed(baseline, 0.0)
        arms = tuple(changed(mode, difference) for difference in self.differences())
        return Drawn(*two_classes(self.examples, generator), baseline, arms)
