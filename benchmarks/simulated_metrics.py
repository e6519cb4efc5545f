"""Comparisons with known true differences in metrics other than accuracy of single labels.

Their protocol is `simulated_seeds.Setting`, except that sums over cases are drawn. The losses are
those of a share of cases that are lost at every seed, unless the family says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import ClassVar

import numpy as np
from scipy.special import expit, roots_hermitenorm
from simulated_losses import after_flips
from simulated_seeds import BoolArray, DrawnSums, FloatArray, IntArray, threshold_for

from ampft.labels import multi_label
from ampft.labels.label_counts import class_count_sums
from ampft.media import pixel_outcome
from ampft.metrics.sums import CaseSums, Metric, mean_sums
from ampft.tasks import single_label
from ampft.words import token_labels
from ampft.words.entities import SentenceLayout, unit_mean_sums


def softplus(values: FloatArray) -> FloatArray:
    """Return log(1 + exp(values)), the log loss of a margin of -values."""
    return np.logaddexp(0.0, values)


@dataclass(frozen=True)
class Probabilities:
    """Probabilities of two classes; the arm is worse by an offset of the logits, or rarely."""

    seeds: int  # S.
    metric: str  # "log_loss" or "brier".
    examples: int  # n.
    mode_seed: float  # Standard deviation of the arm's logits over seeds.
    rare: float  # Nats that a lost case costs at every seed; 0 for an offset of all logits.

    family: ClassVar[str] = "probabilities"
    classes: ClassVar[int] = 2
    centre: ClassVar[float] = 2.0
    example_sd: ClassVar[float] = 1.5
    seed_sd: ClassVar[float] = 0.1
    residual: ClassVar[float] = 0.15
    lost: ClassVar[tuple[float, ...]] = (0.0, 0.001, 0.002, 0.01)
    offsets: ClassVar[tuple[float, ...]] = (0.0, 0.005, 0.02)

    def measure(self) -> Metric:
        """Return the metric."""
        return single_label.METRICS[self.metric]

    def values(self, logits: FloatArray) -> FloatArray:
        """Return the value of each case, whose true class has these logits."""
        if self.metric == "log_loss":
            return softplus(-logits)
        return 2 * expit(-logits) ** 2

    def differences(self) -> tuple[float, ...]:
        """Return what is lost: by a share of cases, or by all."""
        if not self.rare:
            return self.offsets
        worst = float(self.values(np.array(-self.rare)))
        return tuple(share * (worst - expected(self)) for share in self.lost)

    def draw(self, generator: np.random.Generator) -> DrawnSums:
        """Draw one comparison."""
        shape = self.seeds, self.examples
        normal = generator.standard_normal
        shared = self.example_sd * normal(self.examples) + self.seed_sd * normal((self.seeds, 1))
        baseline, mode = shared + self.residual * normal((2, *shape))
        mode = mode + self.mode_seed * normal((self.seeds, 1))
        first, seconds = offsets_of(self)
        member = generator.random(self.examples)
        shares = self.lost if self.rare else (0.0,) * len(seconds)
        arms = [
            np.where(member < share, -self.rare, mode + second)
            for share, second in zip(shares, seconds, strict=True)
        ]
        return DrawnSums(self._sums(baseline + first), tuple(map(self._sums, arms)))

    def _sums(self, logits: FloatArray) -> list[CaseSums]:
        return [mean_sums(self.values(row)) for row in logits]


def mean_value(setting: Probabilities, offset: float, deviation: float) -> float:
    """Return the mean value of normal logits."""
    nodes, weights = roots_hermitenorm(80)
    return float(setting.values(offset + deviation * nodes) @ weights / weights.sum())


@cache
def expected(setting: Probabilities) -> float:
    """Return the mean of the baseline."""
    deviation = np.sqrt(setting.example_sd**2 + setting.seed_sd**2 + setting.residual**2)
    return mean_value(setting, setting.centre, float(deviation))


@cache
def offsets_of(setting: Probabilities) -> tuple[float, tuple[float, ...]]:
    """Return the baseline's offset, and the arm's at each true difference."""
    own = setting.example_sd**2 + setting.seed_sd**2 + setting.residual**2
    deviation = float(np.sqrt(own + setting.mode_seed**2))
    more = (0.0,) * len(setting.lost) if setting.rare else setting.offsets
    return setting.centre, tuple(
        threshold_for(
            lambda at: -mean_value(setting, at, deviation), -expected(setting) - difference
        )
        for difference in more
    )


@dataclass(frozen=True)
class Entities:
    """Entities of three types in sentences; a lost sentence has no prediction at all."""

    seeds: int  # S.
    metric: str  # "micro_f1", "macro_f1" or "weighted_f1".
    examples: int  # Number of sentences.
    flips: float  # Share of entities whose correctness flips at a seed, on each side.

    family: ClassVar[str] = "entities"
    rates: ClassVar[tuple[float, ...]] = (0.7, 0.3, 0.1)
    spurious: ClassVar[float] = 0.1
    accuracy: ClassVar[float] = 0.8
    lost: ClassVar[tuple[float, ...]] = (0.0, 0.01, 0.03)
    classes: ClassVar[int] = 3

    def measure(self) -> Metric:
        """Return the metric."""
        return token_labels.METRICS[self.metric]

    def differences(self) -> tuple[float, ...]:
        """Return the differences of the expected sums."""
        right = after_flips(self.accuracy, self.flips)
        labelled = np.array(self.rates)
        missed = (1 - right) / 2 * labelled.sum() / self.classes
        true = labelled * right
        predicted = true + missed + self.spurious / self.classes
        values = [
            float(self.measure().from_sums(np.r_[kept * true, labelled, kept * predicted, 1]))
            for kept in (1 - share for share in self.lost)
        ]
        return tuple(value - values[0] for value in values)

    def draw(self, generator: np.random.Generator) -> DrawnSums:
        """Draw one comparison."""
        n, types = self.examples, self.classes
        counts = generator.poisson(self.rates, (n, types))
        cell = np.repeat(np.arange(n * types), counts.ravel())
        sentence = cell // types
        right = generator.random(len(cell)) < self.accuracy
        flipped = generator.random((2, self.seeds, len(cell))) < self.flips
        is_found = generator.random(len(cell)) < 0.5  # as a wrong entity; otherwise missed
        other = sentence * types + generator.integers(0, types, len(cell))
        spurious = np.zeros((n, types))
        spurious[:, 0] = generator.poisson(self.spurious, n)
        spurious = generator.permuted(spurious, axis=1)
        member = generator.random(n)

        def sums(rows: BoolArray, share: float) -> list[CaseSums]:
            kept = (member >= share)[:, None]
            result = []
            for row in rows:
                true = np.bincount(cell[row], minlength=n * types).reshape(n, types)
                wrong = np.bincount(other[~row & is_found], minlength=n * types).reshape(n, types)
                predicted = true + wrong + spurious
                columns = (true * kept, counts, predicted * kept, np.ones((n, 1)))
                result.append(CaseSums.of_cases(np.concatenate(columns, axis=1)))
            return result

        baseline, mode = right ^ flipped
        return DrawnSums(sums(baseline, 0.0), tuple(sums(mode, share) for share in self.lost))


@dataclass(frozen=True)
class Words:
    """Words in sentences of 5 to 40 words; a lost sentence has no correct word."""

    seeds: int  # S.
    examples: int  # Number of sentences.
    flips: float  # Share of words whose correctness flips at a seed, on each side.

    family: ClassVar[str] = "words"
    metric: ClassVar[str] = "token_accuracy"
    classes: ClassVar[int] = 2
    lost: ClassVar[tuple[float, ...]] = (0.0, 0.01, 0.03)
    accuracy: ClassVar[float] = 0.95

    def measure(self) -> Metric:
        """Return the metric."""
        return token_labels.METRICS[self.metric]

    def differences(self) -> tuple[float, ...]:
        """Return zero and what the lost sentences cost."""
        right = after_flips(self.accuracy, self.flips)
        return tuple(0.0 - share * right for share in self.lost)

    def draw(self, generator: np.random.Generator) -> DrawnSums:
        """Draw one comparison; the words of a sentence share their difficulty."""
        counts = generator.integers(5, 41, self.examples)
        sentences = SentenceLayout(counts, 2, is_bio=False)
        hard = generator.beta(0.95, 0.05, self.examples)
        right = generator.random(counts.sum()) < np.repeat(hard, counts)
        baseline, mode = right ^ (generator.random((2, self.seeds, len(right))) < self.flips)
        member = np.repeat(generator.random(self.examples), counts)

        def sums(rows: BoolArray) -> list[CaseSums]:
            return [unit_mean_sums(row.astype(np.float64), sentences) for row in rows]

        return DrawnSums(sums(baseline), tuple(sums(mode & (member >= each)) for each in self.lost))


@dataclass(frozen=True)
class WordLosses:
    """Log losses of words in sentences of 5 to 40 words; all words of a lost sentence cost more."""

    seeds: int  # S.
    examples: int  # Number of sentences.
    nats: float  # What each word of a lost sentence costs more, at every seed.

    family: ClassVar[str] = "words"
    metric: ClassVar[str] = "log_loss"
    classes: ClassVar[int] = 2
    lost: ClassVar[tuple[float, ...]] = (0.0, 0.001, 0.003)
    noise: ClassVar[float] = 0.05

    def measure(self) -> Metric:
        """Return the metric."""
        return token_labels.METRICS[self.metric]

    def differences(self) -> tuple[float, ...]:
        """Return what the lost sentences cost."""
        return tuple(share * self.nats for share in self.lost)

    def draw(self, generator: np.random.Generator) -> DrawnSums:
        """Draw one comparison."""
        counts = generator.integers(5, 41, self.examples)
        sentences = SentenceLayout(counts, 2, is_bio=False)
        values = generator.gamma(0.2, 1.0, counts.sum())
        factors = 1 + self.noise * generator.standard_normal((2, self.seeds, len(values)))
        member = np.repeat(generator.random(self.examples), counts)

        def sums(rows: FloatArray) -> list[CaseSums]:
            return [unit_mean_sums(row, sentences) for row in rows]

        baseline, mode = values * factors
        arms = tuple(sums(mode + self.nats * (member < share)) for share in self.lost)
        return DrawnSums(sums(baseline), arms)


@dataclass(frozen=True)
class Images:
    """Images of 400 pixels of four classes; a lost image shows the most frequent class only."""

    seeds: int  # S.
    metric: str  # "mean_iou" or "pixel_accuracy".
    examples: int  # Number of images.

    family: ClassVar[str] = "images"
    classes: ClassVar[int] = 4
    shares: ClassVar[tuple[float, ...]] = (0.55, 0.25, 0.15, 0.05)
    pixels: ClassVar[int] = 400
    centre: ClassVar[float] = 1.5
    image_sd: ClassVar[float] = 0.7
    residual: ClassVar[float] = 0.1
    lost: ClassVar[tuple[float, ...]] = (0.0, 0.01, 0.03)

    def measure(self) -> Metric:
        """Return the metric."""
        return pixel_outcome.METRICS[self.metric]

    def differences(self) -> tuple[float, ...]:
        """Return the differences of the expected sums."""
        nodes, weights = roots_hermitenorm(40)
        deviation = np.hypot(self.image_sd, self.residual)
        right = float(expit(self.centre + deviation * nodes) @ weights / weights.sum())
        labelled = np.array(self.shares)
        wrong = (1 - right) * (labelled.sum() - labelled) / (self.classes - 1)
        usual = np.r_[labelled * right, labelled, labelled * right + wrong, 1]
        first = np.eye(self.classes)[0]
        lost = np.r_[labelled * first, labelled, first, 1]
        values = [
            float(self.measure().from_sums((1 - share) * usual + share * lost))
            for share in self.lost
        ]
        return tuple(value - values[0] for value in values)

    def draw(self, generator: np.random.Generator) -> DrawnSums:
        """Draw one comparison."""
        n, classes = self.examples, self.classes
        labelled = generator.multinomial(
            self.pixels, generator.dirichlet(3 * np.array(self.shares), n)
        )
        level = self.centre + self.image_sd * generator.standard_normal((n, 1))
        shift = generator.integers(1, classes, n)
        target = (np.arange(classes) + shift[:, None]) % classes
        member = generator.random((n, 1))

        def one(share: float, right: IntArray) -> CaseSums:
            rows = np.arange(n)[:, None]
            wrong = np.zeros((n, classes))
            np.add.at(wrong, (np.broadcast_to(rows, target.shape), target), labelled - right)
            first = np.eye(classes)[0]
            is_lost = member < share
            true = np.where(is_lost, labelled * first, right)
            predicted = np.where(is_lost, self.pixels * first, right + wrong)
            size = np.full((n, 1), self.pixels)
            return CaseSums.of_cases(np.concatenate([true, labelled, predicted, size], axis=1))

        def side() -> list[IntArray]:
            noise = self.residual * generator.standard_normal((self.seeds, n, 1))
            return [generator.binomial(labelled, expit(level + each)) for each in noise]

        baseline, mode = side(), side()
        return DrawnSums(
            [one(0.0, right) for right in baseline],
            tuple([one(share, right) for right in mode] for share in self.lost),
        )


@dataclass(frozen=True)
class SeveralLabels:
    """Cases with any of five labels; a lost case has no predicted label."""

    seeds: int  # S.
    metric: str  # A metric of several labels.
    examples: int  # n.
    flips: float  # Share of decisions that flip at a seed, on each side.

    family: ClassVar[str] = "several labels"
    rates: ClassVar[tuple[float, ...]] = (0.4, 0.3, 0.2, 0.1, 0.05)
    accuracy: ClassVar[float] = 0.93
    lost: ClassVar[tuple[float, ...]] = (0.0, 0.01, 0.03)
    classes: ClassVar[int] = 5

    def measure(self) -> Metric:
        """Return the metric."""
        return multi_label.METRICS[self.metric]

    def differences(self) -> tuple[float, ...]:
        """Return the differences of the expected sums, by enumeration of all cases."""
        values = np.array(list(product((False, True), repeat=self.classes)))
        right = after_flips(self.accuracy, self.flips)
        rates = np.array(self.rates)
        of_labels = np.where(values, rates, 1 - rates).prod(axis=1)
        of_errors = np.where(values, 1 - right, right).prod(axis=1)
        labels = np.repeat(values, len(values), axis=0)
        predicted = labels ^ np.tile(values, (len(values), 1))
        weights = np.outer(of_labels, of_errors).ravel()
        usual = self._vectors(labels, predicted)
        lost = self._vectors(labels, np.zeros_like(predicted))
        found = [
            float(self.measure().from_sums(weights @ ((1 - share) * usual + share * lost)))
            for share in self.lost
        ]
        return tuple(value - found[0] for value in found)

    def _vectors(self, labels: BoolArray, predicted: BoolArray) -> FloatArray:
        sums = self._sums(labels, predicted)
        vectors: FloatArray = sums.patterns.toarray()[sums.pattern_of]
        return vectors

    def _sums(self, labels: BoolArray, predicted: BoolArray) -> CaseSums:
        if self.metric.endswith("_f1") and self.metric != "samples_f1":
            return class_count_sums(labels, predicted)
        names = tuple(map(str, range(self.classes)))
        probabilities = predicted.astype(np.float32)
        outcome = multi_label.MultiLabelPredictions(labels, probabilities, names, "test", 0.5)
        return outcome.sums(self.metric)

    def draw(self, generator: np.random.Generator) -> DrawnSums:
        """Draw one comparison."""
        shape = self.examples, self.classes
        labels = generator.random(shape) < self.rates
        wrong = generator.random(shape) >= self.accuracy
        flips = generator.random((2, self.seeds, *shape)) < self.flips
        baseline, mode = labels ^ wrong ^ flips
        member = generator.random((self.examples, 1))
        arms = tuple(
            [self._sums(labels, rows & (member >= share)) for rows in mode] for share in self.lost
        )
        return DrawnSums([self._sums(labels, rows) for rows in baseline], arms)
