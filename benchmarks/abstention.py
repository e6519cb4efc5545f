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

The second part repeats this with groups of rows of unequal sizes, of which the large ones are wrong
more often (`GROUPED`). "groups" is the share of broken splits if one row of each group proves the
promise.

The third part is the coverage of the 95 % intervals of log loss, Brier score and calibration
error, and of their changes by a temperature of `TEMPERATURE`; and of shares, F1, macro F1, costs
and changes of them, with and without groups (`DECIDED`).
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

# Promise, groups, share of large ones, their rows, and errors of rows in large and in single ones.
GROUPED = (
    (0.1, 400, 0.1, 10, 0.25, 0.02),
    (0.1, 1000, 0.1, 10, 0.3, 0.02),
    (0.1, 1000, 0.2, 5, 0.2, 0.03),
    (0.05, 1000, 0.1, 10, 0.15, 0.01),
    (0.1, 600, 0.5, 3, 0.1201, 0.06),
    (0.1, 1000, 0.1, 10, 0.03, 0.02),  # kept
)
# Cases, share of cases with each label, recall, false alarms; and recall of another model.
DECIDED: tuple[tuple[int, tuple[float, ...], float, float, float], ...] = (
    (100, (0.5,), 0.9, 0.1, 0.95),
    (300, (0.1,), 0.95, 0.005, 0.9),
    (300, (0.05,), 0.02, 0.01, 0.3),
    (300, (0.3, 0.1, 0.05), 0.99, 0.002, 0.95),
    (500, (0.02,) * 10, 0.05, 0.01, 0.2),
)
SHARES = ((100, 0.5), (100, 0.97), (100, 0.99), (300, 0.997), (1000, 0.995), (100, 0.03))
MISS, ALARM = 10.0, 1.0

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


def grouped_promise(
    error: float, groups: int, share: float, rows: int, large: float, single: float
) -> dict[str, float]:
    """Return how often a promise for rows in groups is given and broken."""
    rng = np.random.default_rng(0)
    true = (share * rows * large + (1 - share) * single) / (share * rows + 1 - share)
    given, by_groups = 0, 0
    for _ in range(REPEATS):
        sizes = np.where(rng.random(groups) < share, rows, 1)
        ids = np.repeat(np.arange(groups), sizes)
        confidence = rng.beta(5, 1.5, len(ids)).astype(np.float32)
        correct = rng.random(len(ids)) >= np.where(sizes > 1, large, single)[ids]
        halves = split_in_halves(len(ids), ids)
        candidates = candidate_confidences(confidence[halves.fit], correct[halves.fit], error)
        of_rest = np.flatnonzero(~np.isin(ids, ids[halves.fit]))
        one_of_each = of_rest[np.unique(ids[of_rest], return_index=True)[1]]
        for proof, is_ours in ((halves.promise, True), (one_of_each, False)):
            least = least_confidence(candidates, confidence[proof], correct[proof], error)
            given += is_ours and least is not None
            by_groups += not is_ours and least is not None
    is_broken = true > error
    return {
        "error": true,
        "promised": given / REPEATS,
        "broken": given / REPEATS * is_broken,
        "groups": by_groups / REPEATS * is_broken,
    }


def _mean_f1(sums: FloatArray) -> FloatArray:
    right, labelled, predicted = np.split(sums, 3, axis=-1)
    return np.asarray((2 * right / np.maximum(labelled + predicted, 1)).mean(axis=-1))


def _mean_of(sums: FloatArray) -> FloatArray:
    return np.asarray(sums[..., 0] / sums[..., 1])


def decided(has: BoolArray, predicted: BoolArray) -> dict[str, Statistic]:
    """Return share of right cases, mean F1 and cost of labels, (n, K)."""
    ones = np.ones(len(has))
    counts = np.concatenate([has & predicted, has, predicted], axis=1).astype(np.float64)
    right = (has == predicted).all(axis=1)
    costs = MISS * (has & ~predicted).sum(axis=1) + ALARM * (predicted & ~has).sum(axis=1)
    most = MISS * has.shape[1]
    return {
        "share": Statistic(np.stack([right, ones], axis=1), _mean_of, limits=(0.0, 1.0)),
        "f1": Statistic(counts, _mean_f1, limits=(0.0, 1.0)),
        "cost": Statistic(np.stack([costs, ones], axis=1), _mean_of, limits=(0.0, most)),
    }


def decided_coverage(
    cases: int, labelled: tuple[float, ...], recall: float, alarms: float, other: float, rows: int
) -> dict[str, float]:
    """Return how often intervals contain the true value,.

    Args:
        rows: Largest number of rows of a group, which all have its recall and alarms; 1 for none.
    """
    rng, shares = np.random.default_rng(1), np.array(labelled)
    hits = shares * np.array([[recall], [other]])
    wrong = (1 - shares) * alarms
    truths = {
        "share": (hits + 1 - shares - wrong).prod(axis=1),
        "f1": (2 * hits / (shares + hits + wrong)).mean(axis=1),
        "cost": (MISS * (shares - hits) + ALARM * wrong).sum(axis=1),
    }
    inside = {f"{kind}{name}": 0 for kind in ("", "change of ") for name in truths}
    for _ in range(COVERAGE_REPEATS):
        ids = np.repeat(np.arange(cases), rng.integers(1, rows + 1, cases))
        has = rng.random((len(ids), len(shares))) < shares
        chance = rng.random((cases, len(shares)))[ids]
        sides = [
            decided(has, np.where(has, chance < each, chance < alarms)) for each in (recall, other)
        ]
        groups = None if rows == 1 else ids
        for name, values in truths.items():
            old, new = (side[name] for side in sides)
            sums = resampled_sums([old, new], groups)
            low, high = interval(old, sums[0])
            inside[name] += low <= values[0] <= high
            ends = difference_interval(old, sums[0], new, sums[1])
            inside[f"change of {name}"] += (
                ends is None or ends[0] <= values[1] - values[0] <= ends[1]
            )
    return {name: count / COVERAGE_REPEATS for name, count in inside.items()}


def share_coverage(rows: int, share: float) -> float:
    """Return how often the interval of a share contains the true one."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(2 * COVERAGE_REPEATS):
        values = np.stack([rng.random(rows) < share, np.ones(rows)], axis=1)
        statistic = Statistic(values, _mean_of, limits=(0.0, 1.0))
        low, high = interval(statistic, resampled_sums([statistic], None)[0])
        inside += low <= share <= high
    return inside / (2 * COVERAGE_REPEATS)


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
    covered |= {
        f"decided, {', '.join(map(str, setting))}, rows of a group {rows}": decided_coverage(
            *setting, rows
        )
        for setting in DECIDED
        for rows in (1, 5)
    }
    of_shares = {f"{rows} rows, {share:g}": share_coverage(rows, share) for rows, share in SHARES}
    grouped = {", ".join(map(str, setting)): grouped_promise(*setting) for setting in GROUPED}
    settings = {"repeats": REPEATS, "population": POPULATION, "coverage_repeats": COVERAGE_REPEATS}
    result = {
        "settings": settings,
        "rates": rates,
        "grouped": grouped,
        "coverage": covered,
        "shares": of_shares,
        "provenance": provenance(),
    }
    write_results(options.out, result)
    for name, each in rates.items():
        print(name, each)
    print("worst broken", max(each["broken"] for each in rates.values()))
    print(json.dumps([grouped, covered, of_shares], indent=1))


if __name__ == "__main__":
    main()
