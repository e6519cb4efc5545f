"""Comparisons whose true difference is known, from the models that `interval_calibration.py` names.

Each setting draws the predictions of a baseline, and of one arm for each of several true
differences. Everything random but the losses is shared between these arms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit, ndtr, ndtri, roots_hermitenorm

from ampft.metrics.sums import CaseSums
from ampft.tasks.single_label import METRICS

LOSSES = (0.0, 0.01, 0.02, 0.04)
NUMBERS = (3, 5, 10)
FIVE_CLASSES = (0.4, 0.3, 0.15, 0.1, 0.05)
CLASS_SHARES = dict.fromkeys(METRICS, FIVE_CLASSES) | {"accuracy": (0.5, 0.5)}

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.integer]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Drawn:
    """One comparison, for each true difference."""

    labels: IntArray  # (n,) classes.
    wrong: IntArray  # (n,) the class that an example gets where it is wrong.
    baseline: BoolArray  # (S, n) whether the baseline is right.
    arms: tuple[BoolArray, ...]  # (S, n) whether the arm is right, for each true difference.
    # (n,) index of each example's group; None where each is its own.
    groups: IntArray | None = None


@dataclass(frozen=True)
class DrawnSums:
    """One comparison as sums over cases, at each seed: the baseline, and each true difference."""

    baseline: list[CaseSums]
    arms: tuple[list[CaseSums], ...]


class Setting(Protocol):
    """A point of the grid."""

    family: ClassVar[str]

    @property
    def seeds(self) -> int:
        """Number of seeds, S."""

    @property
    def metric(self) -> str:
        """Name of the metric."""

    @property
    def classes(self) -> int:
        """Number of classes, K."""

    def differences(self) -> tuple[float, ...]:
        """Return the true differences arm - baseline."""

    def draw(self, generator: np.random.Generator) -> Drawn | DrawnSums:
        """Draw one comparison."""


def threshold_for(value: Callable[[float], float], target: float) -> float:
    """Return where an increasing function has the value `target`, by bisection."""
    low, high = -40.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) < target else (low, middle)
    return (low + high) / 2


def two_classes(n: int, generator: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Return (n,) labels and the other class of each."""
    labels = generator.integers(0, 2, n)
    return labels, 1 - labels


# Latent Gaussian


@dataclass(frozen=True)
class Latent:
    """Everything normal on a latent scale, with its standard deviations; accuracy near 84 %."""

    seeds: int
    examples: int
    metric: str
    mode_seed: float
    mode_example: float
    residual: float

    family: ClassVar[str] = "latent"
    accuracy: ClassVar[float] = 0.84
    example_sd: ClassVar[float] = 1.0
    seed_sd: ClassVar[float] = 0.05
    shared_sd: ClassVar[float] = 0.3

    @property
    def classes(self) -> int:
        """Two, and five of 40, 30, 15, 10 and 5 % for macro F1."""
        return len(CLASS_SHARES[self.metric])

    def differences(self) -> tuple[float, ...]:
        """Return zero and losses of 1, 2 and 4 points."""
        return tuple(0.0 - loss for loss in LOSSES)

    def draw(self, generator: np.random.Generator) -> Drawn:
        """Draw one comparison."""
        shares = CLASS_SHARES[self.metric]
        seeds, n = self.seeds, self.examples
        labels = generator.choice(len(shares), size=n, p=shares)
        wrong = (labels + generator.integers(1, len(shares), n)) % len(shares)
        normal = generator.standard_normal
        shared = self.example_sd * normal(n) + self.seed_sd * normal((seeds, 1))
        shared = shared + self.shared_sd * normal((seeds, n))
        own = self.mode_example * normal(n) + self.mode_seed * normal((seeds, 1))
        residual = self.residual * normal((2, seeds, n))
        first, seconds = latent_thresholds(self)
        mode = shared + own + residual[1]
        arms = tuple(mode + second > 0 for second in seconds)
        return Drawn(labels, wrong, shared + residual[0] + first > 0, arms)


@cache
def latent_thresholds(cell: Latent) -> tuple[float, tuple[float, ...]]:
    """Return the baseline's threshold, and the mode's at each of `LOSSES`."""
    rest = np.sqrt(cell.example_sd**2 + cell.shared_sd**2 + cell.residual**2)
    first = float(ndtri(cell.accuracy) * np.hypot(rest, cell.seed_sd))
    level = latent_value(first, cell.seed_sd, rest, cell.metric)
    seed_sd, rest_sd = np.hypot(cell.seed_sd, cell.mode_seed), np.hypot(rest, cell.mode_example)
    return first, tuple(
        threshold_for(lambda at: latent_value(at, seed_sd, rest_sd, cell.metric), level - loss)
        for loss in LOSSES
    )


def latent_value(threshold: float, seed_sd: float, rest_sd: float, metric: str) -> float:
    """Return the metric over seeds (level ~ N(0, seed_sd^2)) and examples (sd `rest_sd`)."""
    nodes, weights = roots_hermitenorm(40)
    accuracy = ndtr((threshold + seed_sd * nodes) / rest_sd)
    return float(population_value(accuracy, metric) @ weights / weights.sum())


def population_value(accuracy: FloatArray, metric: str) -> FloatArray:
    """Return the metric of the expected confusion matrix at each accuracy."""
    if metric == "accuracy":
        return accuracy
    shares = np.array(CLASS_SHARES[metric])
    right = accuracy[:, None] * shares
    others = (1 - accuracy[:, None]) * shares
    wrong = (others.sum(axis=1, keepdims=True) - others) / (len(shares) - 1)
    labelled = np.broadcast_to(shares, right.shape)
    ones = np.ones((len(right), 1))
    sums = np.concatenate([right, labelled, right + wrong, ones], axis=1)
    return METRICS[metric].from_sums(sums)


# Logit


@dataclass(frozen=True)
class Logit:
    """Logistic noise on difficulties that are bimodal or heavy-tailed, coupled between the arms."""

    seeds: int  # S.
    examples: int  # n.
    accuracy: float  # Of the baseline.
    # "bimodal" (four fifths easy, a fifth hard, 6 apart) or "heavy" (t with 2 degrees of freedom).
    difficulty: str
    coupling: float  # Correlation of the noise of both sides at the same seed and example.
    mode_seed: float  # Standard deviation of mode x seed.
    mode_example: float  # Standard deviation of mode x example.

    family: ClassVar[str] = "logit"
    metric: ClassVar[str] = "accuracy"
    classes: ClassVar[int] = 2
    seed_sd: ClassVar[float] = 0.1

    def differences(self) -> tuple[float, ...]:
        """Return zero and losses of 1, 2 and 4 points."""
        return tuple(0.0 - loss for loss in LOSSES)

    def draw(self, generator: np.random.Generator) -> Drawn:
        """Draw one comparison."""
        seeds, n = self.seeds, self.examples
        normal = generator.standard_normal
        level = self.quantile(generator.random(n)) + self.seed_sd * normal((seeds, 1))
        noise = normal((2, seeds, n))
        noise[1] = self.coupling * noise[0] + np.sqrt(1 - self.coupling**2) * noise[1]
        baseline, mode = level + logit(ndtr(noise))
        mode += self.mode_example * normal(n) + self.mode_seed * normal((seeds, 1))
        first, seconds = logit_thresholds(self)
        arms = tuple(mode + second > 0 for second in seconds)
        return Drawn(*two_classes(n, generator), baseline + first > 0, arms)

    def quantile(self, share: FloatArray) -> FloatArray:
        """Return the difficulties with these shares below them."""
        if self.difficulty == "bimodal":
            return np.where(share < 0.2, -3.0, 3.0)
        return (2 * share - 1) / np.sqrt(2 * share * (1 - share))  # t with 2 degrees of freedom


@cache
def logit_thresholds(cell: Logit) -> tuple[float, tuple[float, ...]]:
    """Return the baseline's threshold, and the mode's at each of `LOSSES`."""
    points = cell.quantile((np.arange(2000) + 0.5) / 2000)[:, None]
    nodes, weights = roots_hermitenorm(20)

    def accuracy(threshold: float, deviation: float) -> float:
        return float(expit(threshold + points + deviation * nodes).mean(axis=0) @ weights)

    def threshold(target: float, deviation: float) -> float:
        return threshold_for(lambda at: accuracy(at, deviation) / float(weights.sum()), target)

    own = float(np.sqrt(cell.seed_sd**2 + cell.mode_seed**2 + cell.mode_example**2))
    return threshold(cell.accuracy, cell.seed_sd), tuple(
        threshold(cell.accuracy - loss, own) for loss in LOSSES
    )
