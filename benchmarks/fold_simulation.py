"""How often do folds find a difference between two procedures that are equally good?

Run: `python benchmarks/fold_simulation.py --out benchmarks/results/folds.json`.

Each example has two groups of features with the same distribution given its class. One procedure
learns from the first group, the other from the second by the same algorithm, so that they
are equally good on average over training sets, and differ on any one of them. Repeated
stratified cross-validation with five folds, decided at 5 % by:
- corrected: the statistics of a comparison with the correction of Nadeau and Bengio, as
  `ampft compare` uses it for folds;
- pooled: the same without it, with all rows as cases and repeats as seeds;
- folds: Student's t over all folds as if they were independent.
With a gain, the second group of features is more informative: the share that is found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from provenance import command_line, provenance, write_results
from scipy.special import stdtrit
from sklearn.model_selection import StratifiedKFold
from sklearn.tree import DecisionTreeClassifier

from ampft.comparison.statistics.folds import corrected_for_folds, fold_differences
from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.metrics.sums import ACCURACY, single_label_sums

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

FOLDS, ALPHA = 5, 0.05
METHODS = ("corrected", "pooled", "folds")


@dataclass(frozen=True)
class Setting:
    """A world."""

    learner: str  # Name of the algorithm.
    rows: int  # Number of labelled rows.
    repeats: int  # Repeats of the cross-validation.
    separation: float  # Distance of the class means in the first group of features.
    gain: float = 0.0  # How much larger it is in the second.


def centroid(x: FloatArray, y: IntArray, new: FloatArray) -> IntArray:
    """Return the class whose mean is nearest."""
    means = np.stack([x[y == label].mean(axis=0) for label in (0, 1)])
    found: IntArray = np.linalg.norm(new[:, None] - means, axis=2).argmin(axis=1)
    return found


def neighbour(x: FloatArray, y: IntArray, new: FloatArray) -> IntArray:
    """Return the class of the nearest row."""
    squares = (x**2).sum(axis=1) - 2 * new @ x.T
    found: IntArray = y[squares.argmin(axis=1)]
    return found


def tree(x: FloatArray, y: IntArray, new: FloatArray) -> IntArray:
    """Return the prediction of a decision tree."""
    found: IntArray = DecisionTreeClassifier(max_depth=4, random_state=0).fit(x, y).predict(new)
    return found


LEARNERS: dict[str, Callable[[FloatArray, IntArray, FloatArray], IntArray]] = {
    "centroid": centroid,
    "neighbour": neighbour,
    "tree": tree,
}


def finds(setting: Setting, seed: int) -> dict[str, bool]:
    """Return which methods find a difference in one set of rows."""
    generator = np.random.default_rng(seed)
    learner, features = LEARNERS[setting.learner], 10
    y = generator.permutation(np.arange(setting.rows) % 2)
    sides = []
    for distance in (setting.separation, setting.separation + setting.gain):
        shift = distance / math.sqrt(features)
        sides.append(generator.normal(size=(setting.rows, features)) + shift * y[:, None])
    sums: list[list[Any]] = [[], []]
    folds = []
    for repeat in range(setting.repeats):
        divided = StratifiedKFold(FOLDS, shuffle=True, random_state=seed * 100 + repeat)
        fold, predicted = np.zeros(setting.rows, dtype=np.int64), np.zeros((2, setting.rows), int)
        for number, (train, test) in enumerate(divided.split(y, y)):
            fold[test] = number
            for side, x in enumerate(sides):
                predicted[side, test] = learner(x[train], y[train], x[test])
        folds.append(fold)
        for side in (0, 1):
            sums[side].append(single_label_sums(y, predicted[side], 2))
    pooled = estimate_of_sums(sums[1], sums[0], ACCURACY)
    corrected = corrected_for_folds(pooled, sums[1], sums[0], folds, ACCURACY)
    every = fold_differences(sums[1], sums[0], folds, ACCURACY, FOLDS)
    error = every.std(ddof=1) / math.sqrt(every.size)
    limit = -stdtrit(every.size - 1, ALPHA / 2) * error
    return {
        "corrected": corrected.p_difference() <= ALPHA,
        "pooled": pooled.p_difference() <= ALPHA,
        "folds": bool(abs(every.mean()) > limit),
    }


def main() -> None:
    """Simulate all settings and write the results."""
    parser = command_line(__doc__)
    parser.add_argument("--number", type=int, default=400, help="sets of rows of each setting")
    args = parser.parse_args()
    settings = [
        Setting(learner, rows, repeats, 1.0)
        for learner in LEARNERS
        for rows, repeats in ((100, 3), (300, 3), (300, 10))
    ]
    settings += [Setting("centroid", 300, 3, 1.0, gain) for gain in (0.3, 0.6)]
    results = []
    for setting in settings:
        number = args.number if setting.repeats < 10 else args.number // 2
        found = [finds(setting, seed) for seed in range(number)]
        shares = {method: float(np.mean([each[method] for each in found])) for method in METHODS}
        error = math.sqrt(ALPHA * (1 - ALPHA) / number)
        results.append({**asdict(setting), "number": number, "found": shares, "error": error})
        print(json.dumps(results[-1]), flush=True)
    write_results(args.out, {"provenance": provenance(), "folds": FOLDS, "results": results})


if __name__ == "__main__":
    main()
