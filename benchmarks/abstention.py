"""Does the promise of --abstain hold? Simulated validation splits of 50 to 2,000 rows.

Run: `python benchmarks/abstention.py --out benchmarks/results/abstention.json`.

A model is a distribution of confidences and, at each confidence, a probability of being right:
- calibrated: right as often as the confidence says;
- overconfident: wrong twice as often as that;
- useless: right in 90 % at every confidence;
- peaked: almost all confidences above 0.99, of which 2 % are wrong;
- reversed: the most confident answers are wrong more often than those below;
- edge: wrong just more often than promised, at every confidence.

For each, `REPEATS` validation splits are drawn, halved and used as a run does. "broken" is the
share of all splits whose true error among the answered rows, computed over `POPULATION` rows from
their probabilities, is above the promise; it must be at most 5 %. "promised" is the share of splits
with a promise, and "answered" the mean share of rows that are then answered. "refused" says that
the split is too small, which a run says before the training. "picked" is the share of broken splits
if the confidence is instead the lowest at which the observed error of the whole split is at most
the promise.

The second part is the coverage of the 95 % intervals of log loss, Brier score and calibration
error, and of their changes by a temperature of `TEMPERATURE`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from provenance import command_line, provenance, write_results

from ampft.metrics.abstention import (
    candidate_confidences,
    least_confidence,
    rows_needed,
    split_in_halves,
)
from ampft.metrics.bootstrap import Statistic, difference_interval, interval, resampled_sums
from ampft.metrics.calibration import BINS, calibration_statistic

ROWS = (50, 100, 200, 300, 500, 1000, 2000)
ERRORS = (0.02, 0.05, 0.1)
REPEATS = 1000
POPULATION = 200_000
COVERAGE_ROWS = (100, 500, 2000)
COVERAGE_REPEATS = 200
TEMPERATURE = 1.5

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Model = Callable[[np.random.Generator, int, float], tuple[FloatArray, FloatArray]]


def skewed(rng: np.random.Generator, n: int) -> FloatArray:
    """Return (n,) confidences of two classes, of which half are above 0.93."""
    return 0.5 + 0.5 * rng.beta(2.0, 0.5, n)


def calibrated(rng: np.random.Generator, n: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Return confidences and the probabilities of being right, (n,) each."""
    del error
    confidence = skewed(rng, n)
    return confidence, confidence


def overconfident(rng: np.random.Generator, n: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Return confidences, and probabilities of being wrong that are twice too large."""
    del error
    confidence = skewed(rng, n)
    return confidence, 1 - np.minimum(2 * (1 - confidence), 0.5)


def useless(rng: np.random.Generator, n: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Return confidences that say nothing about a model that is right in 90 %."""
    del error
    return skewed(rng, n), np.full(n, 0.9)


def peaked(rng: np.random.Generator, n: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Return confidences close to 1, and 2 % of rows that are wrong at random."""
    del error
    confidence = 1 - 0.01 * rng.random(n) ** 4
    low = rng.random(n) < 0.1
    confidence[low] = rng.uniform(0.5, 0.99, int(low.sum()))
    return confidence, np.where(low, 0.6, 0.98)


def reversed_order(rng: np.random.Generator, n: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Return confidences whose highest fifth is wrong three times as often as promised."""
    confidence = rng.uniform(0.5, 1, n)
    return confidence, np.where(confidence > 0.9, 1 - 3 * error, 1 - 0.3 * error)


def edge(rng: np.random.Generator, n: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Return a model whose error is the least above the promised one at every confidence."""
    return skewed(rng, n), np.full(n, 1 - error - 1e-6)


MODELS: Mapping[str, Model] = {
    "calibrated": calibrated,
    "overconfident": overconfident,
    "useless": useless,
    "peaked": peaked,
    "reversed": reversed_order,
    "edge": edge,
}


def picked_confidence(
    confidence: FloatArray, correct: npt.NDArray[np.bool_], error: float
) -> float:
    """Return the lowest confidence at which the observed error is at most `error`; 2 if none."""
    order = np.argsort(-confidence)
    wrong = np.cumsum(~correct[order]) / np.arange(1, len(order) + 1)
    (good,) = np.nonzero(wrong <= error)
    return float(confidence[order][good[-1]]) if len(good) else 2.0


def promise_rates(model: Model, rows: int, error: float, seed: int) -> dict[str, float | bool]:
    """Return how often the promise is given and broken, for one model and size of the split."""
    rng = np.random.default_rng(seed)
    population, right = model(rng, POPULATION, error)
    order = np.argsort(-population)
    errors = np.cumsum(1 - right[order]) / np.arange(1, POPULATION + 1)
    ascending = population[order][::-1]

    def answered(least: float) -> int:
        return POPULATION - int(np.searchsorted(ascending, least, side="left"))

    def is_broken(least: float | None) -> bool:
        count = 0 if least is None else answered(least)
        return bool(count) and bool(errors[count - 1] > error)

    halves = split_in_halves(rows, None)
    promised, broken, picked, shares = 0, 0, 0, []
    for _ in range(REPEATS):
        drawn = rng.integers(0, POPULATION, rows)
        confidence, correct = population[drawn], rng.random(rows) < right[drawn]
        fit, proof = halves.fit, halves.promise
        candidates = candidate_confidences(confidence[fit], correct[fit], error)
        least = least_confidence(candidates, confidence[proof], correct[proof], error)
        broken += is_broken(least)
        picked += is_broken(picked_confidence(confidence, correct, error))
        if least is not None:
            promised += 1
            shares.append(answered(least) / POPULATION)
    return {
        "refused": len(halves.promise) < rows_needed(error),
        "broken": broken / REPEATS,
        "promised": promised / REPEATS,
        "answered": float(np.mean(shares)) if shares else 0.0,
        "picked": picked / REPEATS,
    }


def statistics(confidence: FloatArray, correct: BoolArray) -> dict[str, Statistic]:
    """Return log loss, Brier score and calibration error of two classes."""
    losses = -np.log(np.where(correct, confidence, 1 - confidence))
    squares = 2 * (correct - confidence) ** 2

    def mean(sums: FloatArray) -> FloatArray:
        return np.asarray(sums[..., 0] / sums[..., 1])

    means = {"log_loss": losses, "brier": squares}
    ones = np.ones(len(correct))
    found = {name: Statistic(np.stack([v, ones], axis=1), mean) for name, v in means.items()}
    error = calibration_statistic(confidence[:, None], correct[:, None], None)
    return {**found, "expected_calibration_error": error}


def true_values(confidence: FloatArray, right: FloatArray) -> dict[str, float]:
    """Return the same figures from the probabilities of being right."""
    losses = -right * np.log(confidence) - (1 - right) * np.log(1 - confidence)
    squares = 2 * (right * (1 - confidence) ** 2 + (1 - right) * confidence**2)
    bin_of = np.digitize(confidence, np.arange(1, BINS) / BINS, right=True)
    gaps = np.abs(np.bincount(bin_of, weights=right - confidence)).sum() / len(right)
    return {
        "log_loss": float(losses.mean()),
        "brier": float(squares.mean()),
        "expected_calibration_error": float(gaps),
    }


def coverage(model: Model, rows: int, seed: int) -> dict[str, float]:
    """Return how often the intervals contain the value of the population, by figure."""
    rng = np.random.default_rng(seed)
    before, right = model(rng, POPULATION, 0.1)
    before = before.clip(0.5, 1 - 1e-9)
    after = 1 / (1 + ((1 - before) / before) ** (1 / TEMPERATURE))
    truths = [true_values(confidence, right) for confidence in (before, after)]
    inside = {f"{kind}{name}": 0 for kind in ("", "change of ") for name in truths[0]}
    for _ in range(COVERAGE_REPEATS):
        drawn = rng.integers(0, POPULATION, rows)
        correct = rng.random(rows) < right[drawn]
        old, new = (statistics(confidence[drawn], correct) for confidence in (before, after))
        sums = resampled_sums([*old.values(), *new.values()], None)
        for index, name in enumerate(old):
            ends = interval(old[name], sums[index])
            changes = difference_interval(old[name], sums[index], new[name], sums[index + len(old)])
            assert changes is not None
            change = truths[1][name] - truths[0][name]
            inside[name] += ends[0] <= truths[0][name] <= ends[1]
            inside[f"change of {name}"] += changes[0] <= change <= changes[1]
    return {name: count / COVERAGE_REPEATS for name, count in inside.items()}


def main() -> None:
    """Parse the options, simulate, write the rates and print the worst."""
    parser = command_line(__doc__)
    options = parser.parse_args()
    rates = {
        f"{name}, {rows} rows, {error:g}": promise_rates(model, rows, error, seed)
        for seed, (name, model) in enumerate(MODELS.items())
        for rows in ROWS
        for error in ERRORS
    }
    covered = {
        f"{name}, {rows} rows": coverage(MODELS[name], rows, seed)
        for seed, name in enumerate(("calibrated", "overconfident"))
        for rows in COVERAGE_ROWS
    }
    settings = {"repeats": REPEATS, "population": POPULATION, "coverage_repeats": COVERAGE_REPEATS}
    result = {"settings": settings, "rates": rates, "coverage": covered, "provenance": provenance()}
    write_results(options.out, result)
    for name, each in rates.items():
        print(name, each)
    print("worst broken", max(each["broken"] for each in rates.values()))
    print(json.dumps(covered, indent=1))


if __name__ == "__main__":
    main()
