"""Does the gain of a chosen arm stay unbiased, and its test at 5 %? A simulation.

Run: `python benchmarks/selection.py --out benchmarks/results/selection.json`.

Six arms are equal to the baseline in truth: they differ only by the luck of training, which a run's
validation and test share, and by the draw of examples. The best one is chosen and compared with the
baseline by the code that compares real runs, in five ways:
- test: the best mean on test, where its gain is then read off;
- same seeds: the best mean on validation, with the seeds that are then compared on test;
- per seed: at every seed the run with the best validation;
- left-out seed: at every seed the arm with the best validation at the other seeds;
- other seeds: the best mean on validation with other seeds, as `--select validation` does.
Per setting: how often a difference is found (5 % allowed), and its mean estimate (0 is true).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from interval_methods import ALPHA, accuracy_differences
from provenance import provenance
from scipy.special import ndtri

from ampft.comparison.statistics.interval import estimate_difference

ARMS, SELECT_SEEDS, ACCURACY = 6, 2, 0.85
SEEDS = (3, 5, 10)
LUCK = (0.03, 0.15)  # of a training run: 0.6 and 3 points of accuracy, about
EXAMPLES = ((200, 600), (1000, 600))  # of validation and of test
STANDARD_ERRORS = 3.0

FloatArray = np.ndarray
# From mean validation (arm, seed) of the compared seeds, of the other seeds, and mean test, the arm
# chosen at each compared seed.
Choice = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


def left_out(validation: FloatArray) -> FloatArray:
    """Return for each seed the arm with the best validation at the other seeds."""
    return (validation.sum(axis=1, keepdims=True) - validation).argmax(axis=0)


CHOICES: dict[str, Choice] = {
    "test": lambda same, other, test: np.full(same.shape[1], test.mean(axis=1).argmax()),
    "same seeds": lambda same, other, test: np.full(same.shape[1], same.mean(axis=1).argmax()),
    "per seed": lambda same, other, test: same.argmax(axis=0),
    "left-out seed": lambda same, other, test: left_out(same),
    "other seeds": lambda same, other, test: np.full(same.shape[1], other.mean(axis=1).argmax()),
}


def correct(rng: np.random.Generator, luck: FloatArray, examples: int) -> FloatArray:
    """Return (arm, seed, example) whether runs with this luck (arm, seed) are right."""
    arms, seeds = luck.shape
    difficulty = rng.normal(size=examples)
    of_arm = 0.4 * rng.normal(size=(arms, 1, examples))  # the same at every seed
    noise = 0.4 * rng.normal(size=(arms, seeds, examples))
    spread = np.sqrt(1 + 2 * 0.4**2)
    return difficulty + of_arm + noise < ndtri(ACCURACY) * spread + luck[:, :, None]


def simulate(seeds: int, luck: float, sizes: tuple[int, int], count: int) -> dict[str, Any]:
    """Return the alarms and the bias of each choice, in percent."""
    rng = np.random.default_rng([seeds, round(100 * luck), *sizes])
    alarms = dict.fromkeys(CHOICES, 0)
    gains: dict[str, list[float]] = {name: [] for name in CHOICES}
    for _ in range(count):
        drawn = luck * rng.normal(size=(ARMS + 1, seeds + SELECT_SEEDS))
        validation = correct(rng, drawn, sizes[0])[1:].mean(axis=2)
        test = correct(rng, drawn[:, :seeds], sizes[1])
        same, other = validation[:, :seeds], validation[:, seeds:]
        for name, choice in CHOICES.items():
            chosen = choice(same, other, test[1:].mean(axis=2)) + 1
            arm = test[chosen, np.arange(seeds)]
            estimate = estimate_difference(accuracy_differences(arm, test[0]))
            alarms[name] += estimate.p_difference() <= ALPHA
            gains[name].append(estimate.estimate)
    return {
        "seeds": seeds,
        "luck": luck,
        "validation": sizes[0],
        "test": sizes[1],
        "comparisons": count,
        "alarms": {name: 100 * n / count for name, n in alarms.items()},
        "bias_points": {name: 100 * float(np.mean(g)) for name, g in gains.items()},
        "bias_standard_error": {
            name: 100 * float(np.std(g)) / count**0.5 for name, g in gains.items()
        },
    }


def main() -> None:
    """Simulate every setting, print the worst, and fail if other seeds break their promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = [simulate(*each, args.comparisons) for each in product(SEEDS, LUCK, EXAMPLES)]
    limit = 100 * (ALPHA + STANDARD_ERRORS * (ALPHA * (1 - ALPHA) / args.comparisons) ** 0.5)
    for name in CHOICES:
        alarms = max(each["alarms"][name] for each in results)
        bias = max((each["bias_points"][name] for each in results), key=abs)
        print(f"{name:14} alarms {alarms:5.1f} % (limit {limit:.1f}), bias {bias:+.2f} points")
    if args.out is not None:
        content = {"limit": limit, "settings": results, **provenance()}
        args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for each in results:
        assert each["alarms"]["other seeds"] <= limit, each
        error = STANDARD_ERRORS * each["bias_standard_error"]["other seeds"]
        assert abs(each["bias_points"]["other seeds"]) <= error, each


if __name__ == "__main__":
    main()
