"""Comparisons drawn from the latent Gaussian model that `interval_calibration.py` describes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri, roots_hermitenorm

BASELINE_ACCURACY = 0.84
LOSSES = (0.0, 0.01, 0.02, 0.04)
EXAMPLE_SD, SEED_SD, SHARED_SD = 1.0, 0.05, 0.3
CLASS_SHARES = {"accuracy": (0.5, 0.5), "macro_f1": (0.4, 0.3, 0.15, 0.1, 0.05)}

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cell:
    """One point of the grid; standard deviations on the latent scale."""

    seeds: int
    examples: int
    metric: str
    mode_seed: float
    mode_example: float
    residual: float


def grid() -> list[Cell]:
    """Return the full grid for accuracy at 500 examples, and slices beside it."""
    numbers = (3, 5, 10)
    full = product(numbers, (500,), ("accuracy",), (0.0, 0.03, 0.1), (0.0, 0.15, 0.4), (0.1, 0.4))
    macro = product(numbers, (500,), ("macro_f1",), (0.0, 0.1), (0.0, 0.4), (0.1, 0.4))
    small = product(numbers, (100,), ("accuracy",), (0.0, 0.1), (0.0, 0.4), (0.4,))
    rare = product(numbers, (500,), ("accuracy",), (0.0,), (0.0, 0.03), (0.01, 0.03))
    large = product(numbers, (4000,), ("accuracy",), (0.03,), (0.15,), (0.1,))
    return [Cell(*point) for part in (full, macro, small, rare, large) for point in part]


def population_value(accuracy: npt.NDArray[np.float64], metric: str) -> npt.NDArray[np.float64]:
    """Return the metric of the expected confusion matrix at each accuracy."""
    if metric == "accuracy":
        return accuracy
    shares = np.array(CLASS_SHARES[metric])[:, None]
    others = (1 - shares) * (1 - accuracy) / (len(shares) - 1)
    return (2 * shares * accuracy / (shares + shares * accuracy + others)).mean(axis=0)


def expected_value(threshold: float, seed_sd: float, rest_sd: float, metric: str) -> float:
    """Return the metric over seeds (level ~ N(0, seed_sd^2)) and examples (sd `rest_sd`)."""
    nodes, weights = roots_hermitenorm(40)
    accuracy = ndtr((threshold + seed_sd * nodes) / rest_sd)
    return float(population_value(accuracy, metric) @ weights / weights.sum())


def threshold_for(target: float, seed_sd: float, rest_sd: float, metric: str) -> float:
    """Return the threshold at which `expected_value` is `target`, by bisection."""
    low, high = -6.0, 6.0
    for _ in range(60):
        middle = (low + high) / 2
        below = expected_value(middle, seed_sd, rest_sd, metric) < target
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Drawn:
    """One comparison: labels and wrong classes (n,), latent values (S, n) without thresholds."""

    labels: IntArray
    wrong: IntArray
    baseline: npt.NDArray[np.float64]
    mode: npt.NDArray[np.float64]


def draw(cell: Cell, generator: np.random.Generator) -> Drawn:
    """Draw one comparison."""
    shares = CLASS_SHARES[cell.metric]
    seeds, n = cell.seeds, cell.examples
    labels = generator.choice(len(shares), size=n, p=shares)
    wrong = (labels + generator.integers(1, len(shares), n)) % len(shares)
    normal = generator.standard_normal
    shared = EXAMPLE_SD * normal(n) + SEED_SD * normal((seeds, 1)) + SHARED_SD * normal((seeds, n))
    own = cell.mode_example * normal(n) + cell.mode_seed * normal((seeds, 1))
    residual = cell.residual * normal((2, seeds, n))
    return Drawn(labels, wrong, shared + residual[0], shared + own + residual[1])


def thresholds(cell: Cell) -> tuple[float, list[float]]:
    """Return the baseline's threshold, and the mode's at each of `LOSSES`."""
    rest = np.sqrt(EXAMPLE_SD**2 + SHARED_SD**2 + cell.residual**2)
    first = float(ndtri(BASELINE_ACCURACY) * np.hypot(rest, SEED_SD))
    level = expected_value(first, SEED_SD, rest, cell.metric)
    seed_sd, rest_sd = np.hypot(SEED_SD, cell.mode_seed), np.hypot(rest, cell.mode_example)
    return first, [threshold_for(level - loss, seed_sd, rest_sd, cell.metric) for loss in LOSSES]
