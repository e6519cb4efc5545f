"""Do the intervals and verdicts of a comparison hold their level? A simulation.

Run: `python benchmarks/interval_calibration.py --out benchmarks/results/interval-calibration.json`.

Each setting draws comparisons whose true differences are known, and passes them to the code that
compares real runs. The families of settings (`simulated_grid.py`):
- latent: everything normal on a latent scale; mode x seed, mode x example, residual; accuracy near
  84 %, and macro F1 with five classes of 40, 30, 15, 10 and 5 %;
- logit: bimodal and heavy-tailed difficulties, both sides coupled from 0 to 0.99, accuracies from
  0.55 to 0.999, 50 to 5,000 examples;
- subgroup: a share of cases that is lost at every seed, or at most seeds, with flips and mode x
  seed beside it;
- rare classes: macro F1 and balanced accuracy, classes of 3 to 40 examples that lose 10 or 30 %;
- duplicates, grouped: copies of cases, equally or unequally many, the copies of a case being one
  group.
Not held to a level: duplicates without groups; bad seeds (one in ten loses 10 points); offset
subgroup (lost at every seed, with as much gained in passing); rare classes of which most is lost.

Per setting, beside the limits that three standard errors of the simulation allow:
- false difference, true difference 0: p of the difference <= 5 %;
- false equivalence, margin at the true difference: p of equivalence <= 5 %;
- coverage of the 95 % interval at every true difference, and its mean width;
- power: a loss of two points found, beside what `power` predicts; equality called equivalent.
"Before" is the same without `rare_losses` and without a tolerance for ties: the method of the
first calibration. Controls that must fail somewhere: McNemar's test over all seeds' examples
pooled, the examples alone (the limit of a bootstrap over examples), the seeds alone (paired t).

A second part (`forecasts`) asks whether `seeds_to_decide` says too much: the share of undecided
comparisons that fewer seeds than its first number decide, and that its second does not decide.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit
from simulated_grid import LIMITS, grid
from simulated_seeds import BoolArray, Drawn, Latent, Setting

from ampft.comparison.statistics.interval import (
    TIE_TOLERANCE,
    DifferenceEstimate,
    estimate_difference,
)
from ampft.comparison.statistics.jackknife import JackknifeDifferences, jackknife_differences
from ampft.comparison.statistics.mcnemar import mcnemar_mid_p
from ampft.comparison.statistics.power import MAX_SEEDS, power, seeds_to_decide
from ampft.metrics.sums import CaseSums, CostliestCase, single_label_sums
from ampft.tasks.single_label import METRICS

ALPHA = 0.05
PLANTED = -0.02
MARGIN = 0.01
STANDARD_ERRORS = 3.0
TINY = float(np.finfo(np.float64).tiny)
WIDTHS = 30  # comparisons whose intervals are computed for their width
SEEDS_DRAWN = 200  # most seeds at which a forecast is checked


# One comparison


def all_differences(setting: Setting, drawn: Drawn) -> list[JackknifeDifferences]:
    """Return the differences of each arm."""
    if setting.metric == "accuracy" and drawn.groups is None:
        return [accuracy_differences(arm, drawn.baseline) for arm in drawn.arms]
    baseline, *arms = (
        [sums_of(setting, drawn, right) for right in rows] for rows in (drawn.baseline, *drawn.arms)
    )
    return [jackknife_differences(arm, baseline, METRICS[setting.metric]) for arm in arms]


def sums_of(setting: Setting, drawn: Drawn, right: BoolArray) -> CaseSums:
    """Return the sums of one side at one seed; a group is a case."""
    predicted = np.where(right, drawn.labels, drawn.wrong)
    sums = single_label_sums(drawn.labels, predicted, setting.classes)
    return sums if drawn.groups is None else sums.grouped(drawn.groups)


def accuracy_differences(arm: BoolArray, baseline: BoolArray) -> JackknifeDifferences:
    """Return what `jackknife_differences` returns for accuracy, ten times as fast."""
    seeds, cases = arm.shape
    each = arm.astype(np.float64) - baseline
    per_seed = each.mean(axis=1)
    centred = each - per_seed[:, None]
    covariances = centred @ centred.T / (cases * (cases - 1))
    diagonal = float(np.trace(covariances))
    return JackknifeDifferences(
        per_seed=per_seed,
        variance=diagonal / seeds,
        covariance=(float(covariances.sum()) - diagonal) / (seeds * (seeds - 1)),
        cases=cases,
        case_effect=1 / cases,
        pseudovalues=each.mean(axis=0),
        costliest=CostliestCase(1 / cases, None, cases),
    )


def _by_t(tail: float, variance: float, degrees: float, estimate: DifferenceEstimate) -> float:
    """Return t(degrees) times the standard error; t(S - 1) at the least variance."""
    if variance <= estimate.min_variance * (1 + TIE_TOLERANCE):
        degrees = len(estimate.per_seed) - 1
    return -float(stdtrit(degrees, tail)) * float(np.sqrt(max(variance, estimate.min_variance)))


class Floored(DifferenceEstimate):
    """The earlier rule: s^2 is at least J - C, and the inverse degrees of freedom are weighted."""

    def half_width(self, tail: float) -> float:
        """Return t(df) sqrt(V), with V and df of the floored s^2."""
        seeds, covariance = len(self.per_seed), self.jackknife_covariance
        own = max(float(self.per_seed.var(ddof=1)), self.jackknife_variance - covariance) / seeds
        share = own / max(own + covariance, TINY)
        degrees = 1 / (share / (seeds - 1) + (1 - share) / (self.cases - 1))
        return _by_t(tail, own + covariance, degrees, self)


class Published(DifferenceEstimate):
    """Obuchowski and Rockette's analysis with the degrees of freedom of Hillis (2007)."""

    def half_width(self, tail: float) -> float:
        """Return t(df) sqrt(V), without any bound but that of one changed case."""
        seeds, covariance = len(self.per_seed), self.jackknife_covariance
        own = float(self.per_seed.var(ddof=1)) / seeds
        share = max(own / max(own + covariance, TINY), 1e-9)
        degrees = (seeds - 1) / share**2
        return _by_t(tail, own + covariance, degrees, self)


def by_method(estimate: DifferenceEstimate) -> dict[str, DifferenceEstimate]:
    """Return the estimate with the intervals of each method: see `METHODS`."""
    values = {each.name: getattr(estimate, each.name) for each in fields(estimate)}
    return {
        "now": estimate,
        "floored": Floored(**values),
        "published": Published(**values),
        "without rare losses": replace(estimate, case_distribution=None),
    }


def covers(estimate: DifferenceEstimate, truth: float) -> bool:
    """Return whether the 95 % interval holds the truth, without looking for its ends."""
    case_distribution, noise = estimate.case_distribution, estimate.seed_noise
    half = estimate.half_width(ALPHA / 2)
    low, high = estimate.estimate - half, estimate.estimate + half
    if low <= truth <= high:
        return True
    if case_distribution is None:
        return False
    if truth < low:
        return low <= 0 and case_distribution.p_above(truth, noise=noise) > ALPHA / 2
    return high >= 0 and case_distribution.p_below(truth, noise=noise) > ALPHA / 2


def differs(estimate: DifferenceEstimate) -> bool:
    """Return whether p of the difference is at most 5 %, without computing it."""
    return abs(estimate.estimate) >= estimate.half_width(ALPHA / 2)


def is_equivalent(estimate: DifferenceEstimate, margin: float) -> bool:
    """Return whether p of equivalence is at most 5 %; rare losses are looked at last."""
    cases, noise = estimate.case_distribution, estimate.seed_noise
    if abs(estimate.estimate) + estimate.half_width(ALPHA) > margin:
        return False
    return cases is None or (
        cases.p_above(-margin, noise=noise) <= ALPHA and cases.p_below(margin, noise=noise) <= ALPHA
    )


def controls(drawn: Drawn, jackknife: JackknifeDifferences) -> tuple[bool, ...]:
    """Return whether each negative control finds a difference: see `CONTROLS`."""
    arm, baseline = drawn.arms[0], drawn.baseline
    differences = jackknife.per_seed
    seeds, mean = len(differences), abs(float(differences.mean()))
    examples = (jackknife.variance + (seeds - 1) * jackknife.covariance) / seeds
    spread = float(differences.std(ddof=1)) / np.sqrt(seeds)
    return (
        mcnemar_mid_p(int((arm & ~baseline).sum()), int((baseline & ~arm).sum())) <= ALPHA,
        bool(mean > -ndtri(ALPHA / 2) * np.sqrt(max(examples, 0.0))),
        bool(2 * stdtr(seeds - 1, -mean / spread) <= ALPHA) if spread else mean > 0,
    )


CONTROLS = ("pooled_mcnemar", "examples_alone", "seeds_alone")
METHODS = ("now", "floored", "published", "without rare losses")


# One setting


@dataclass
class Found:
    """What the comparisons of a setting found, by method and true difference."""

    false_difference: dict[str, list[bool]] = field(default_factory=dict)
    false_equivalence: dict[str, list[bool]] = field(default_factory=dict)
    coverage: dict[str, list[bool]] = field(default_factory=dict)
    beyond: dict[str, list[bool]] = field(default_factory=dict)
    equivalent_at_0: list[bool] = field(default_factory=list)
    found_planted: list[bool] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    by_t: list[tuple[float, float]] = field(default_factory=list)

    def add(self, estimate: DifferenceEstimate, truth: float) -> None:
        """Add one comparison."""
        name = f"{truth:.4g}"
        self.coverage.setdefault(name, []).append(covers(estimate, truth))
        is_different = differs(estimate)
        if truth:
            equivalent = is_equivalent(estimate, -truth)
            self.false_equivalence.setdefault(name, []).append(equivalent)
            is_beyond = estimate.estimate + estimate.half_width(ALPHA / 2) <= -MARGIN
            self.beyond.setdefault(name, []).append(is_beyond)
            if truth == PLANTED:
                self.found_planted.append(is_different and estimate.estimate < 0)
            return
        self.false_difference.setdefault("0", []).append(is_different)
        self.equivalent_at_0.append(is_equivalent(estimate, MARGIN))
        self.by_t.append((estimate.estimate, estimate.half_width(ALPHA / 2)))
        if len(self.widths) < WIDTHS:
            low, high = estimate.interval(1 - ALPHA)
            self.widths.append(100 * (high - low))

    def rates(self) -> dict[str, object]:
        """Return the shares, and points for the width."""
        estimates, halves = np.transpose(self.by_t)
        ideal = float(-ndtri(ALPHA / 2) * estimates.std())
        rates: dict[str, object] = {
            "width_over_ideal": float(halves.mean()) / ideal if ideal else None,
            "false_difference": shares(self.false_difference)["0"],
            "false_equivalence": shares(self.false_equivalence),
            "coverage": shares(self.coverage),
            "beyond_one_point": shares(self.beyond),
            "mean_width_points": float(np.mean(self.widths)),
            "equivalent_at_0": share(self.equivalent_at_0),
        }
        return rates | ({"power": share(self.found_planted)} if self.found_planted else {})


def run_setting(setting: Setting, *, comparisons: int, seed: int) -> dict[str, Any]:
    """Simulate one setting and return its rates before and after.

    Args:
        setting: The point of the grid.
        comparisons: At each true difference; the draws are shared between these. Half as many for
            metrics over classes, which take ten times as long.
        seed: Of the whole simulation.
    """
    if setting.metric != "accuracy":
        comparisons //= 2
    generator = np.random.default_rng([seed, *repr(setting).encode()])
    found = {method: Found() for method in METHODS}
    planted, null, alarms = [], [], []
    for _ in range(comparisons):
        drawn = setting.draw(generator)
        compared = all_differences(setting, drawn)
        for truth, jackknife in zip(setting.differences(), compared, strict=True):
            estimate = estimate_difference(jackknife)
            for method, each in by_method(estimate).items():
                found[method].add(each, truth)
            if truth == PLANTED:
                planted.append(estimate)
            if not truth:
                null.append(estimate.estimate)
                alarms.append(controls(drawn, jackknife))
    return {
        "family": setting.family,
        "setting": asdict(setting),  # type: ignore[call-overload]
        "comparisons": comparisons,
        **{method: each.rates() for method, each in found.items()},
        "bias_points": 100 * float(np.mean(null)),
        "power_predicted": predicted_power(planted) if planted else None,
        **dict(zip(CONTROLS, map(float, np.mean(alarms, axis=0)), strict=True)),
    }


def predicted_power(planted: Sequence[DifferenceEstimate]) -> float:
    """Return what `power` says of a loss of two points, given the setting's mean variances."""
    return power(
        PLANTED,
        seeds=len(planted[0].per_seed),
        seed_variance=float(np.mean([each.per_seed.var(ddof=1) for each in planted])),
        covariance=float(np.mean([each.jackknife_covariance for each in planted])),
        jackknife_variance=float(np.mean([each.jackknife_variance for each in planted])),
        min_variance=planted[0].min_variance,
        cases=planted[0].cases,
        alpha=ALPHA,
    )


def share(hits: Iterable[bool]) -> float:
    """Return the share of true values."""
    return float(np.mean(list(hits)))


def shares(hits: dict[str, list[bool]]) -> dict[str, float]:
    """Return the share of true values of each."""
    return {name: share(each) for name, each in hits.items()}


# The grid as a whole


def limit(rate: float, comparisons: int) -> float:
    """Return the largest share that a true rate explains, within `STANDARD_ERRORS`."""
    return rate + STANDARD_ERRORS * float(np.sqrt(rate * (1 - rate) / comparisons))


def outcome(cells: list[dict[str, Any]]) -> dict[str, object]:
    """Return worst rates and the number of settings outside the limits, by family and in all."""
    held = [cell for cell in cells if cell["family"] not in LIMITS]
    families = dict.fromkeys(cell["family"] for cell in cells)
    off = [
        cell["now"]["power"] - cell["power_predicted"]
        for cell in held
        if cell["power_predicted"] is not None
    ]
    return {
        "settings": len(held),
        "limits": sorted({limit(ALPHA, cell["comparisons"]) for cell in held}),
        **{method: worst(held, method) for method in METHODS},
        "families": {
            name: {
                method: worst([c for c in cells if c["family"] == name], method)
                for method in METHODS
            }
            for name in families
        },
        "not_held_to_a_level": list(LIMITS),
        "power_minus_predicted": [min(off), max(off)] if off else None,
        "controls": {
            name: {
                "worst_false_difference": max(cell[name] for cell in held),
                "settings_over": sum(
                    cell[name] > limit(ALPHA, cell["comparisons"]) for cell in held
                ),
            }
            for name in CONTROLS
        },
    }


def worst(cells: list[dict[str, Any]], method: str) -> dict[str, object]:
    """Return the worst rates of one method, the settings outside the limits, and mean gains."""
    rates = [cell[method] for cell in cells]
    differences = [rate["false_difference"] for rate in rates]
    equivalences = [max(rate["false_equivalence"].values(), default=0.0) for rate in rates]
    coverages = [min(rate["coverage"].values()) for rate in rates]
    limits = [limit(ALPHA, cell["comparisons"]) for cell in cells]

    def over(values: list[float]) -> int:
        return sum(value > most for value, most in zip(values, limits, strict=True))

    return {
        "settings": len(cells),
        "worst_false_difference": max(differences),
        "worst_false_equivalence": max(equivalences),
        "worst_coverage": min(coverages),
        "over_false_difference": over(differences),
        "over_false_equivalence": over(equivalences),
        "under_coverage": over([1 - value for value in coverages]),
        "mean_width_points": float(np.mean([rate["mean_width_points"] for rate in rates])),
        "mean_equivalent_at_0": float(np.mean([rate["equivalent_at_0"] for rate in rates])),
        "mean_power": mean_of(rate["power"] for rate in rates if "power" in rate),
    }


def mean_of(values: Iterable[float]) -> float | None:
    """Return the mean, or None of nothing."""
    found = list(values)
    return float(np.mean(found)) if found else None


# Forecasts


def forecast_settings() -> list[Latent]:
    """Return settings in which comparisons are often undecided."""
    return [
        Latent(seeds, examples, "accuracy", mode_seed, mode_example, 0.1)
        for seeds in (3, 5, 10)
        for examples in (500, 2000)
        for mode_seed in (0.0, 0.03, 0.1)
        for mode_example in (0.0, 0.15)
    ]


def run_forecast(setting: Latent, *, comparisons: int, seed: int) -> dict[str, Any]:
    """Return how often `seeds_to_decide` is wrong, at each true difference.

    Args:
        setting: Its seeds are those that are there.
        comparisons: Whose forecasts are checked with up to `SEEDS_DRAWN` seeds.
        seed: Of the whole simulation.
    """
    generator = np.random.default_rng([seed, 1, *repr(setting).encode()])
    more = replace(setting, seeds=SEEDS_DRAWN)
    wrong: dict[float, list[tuple[bool, bool]]] = {truth: [] for truth in setting.differences()}
    ranges: list[tuple[int, int]] = []
    for _ in range(comparisons):
        drawn = more.draw(generator)
        for truth, arm in zip(setting.differences(), drawn.arms, strict=True):

            def at(seeds: int, rows: BoolArray = arm, base: BoolArray = drawn.baseline) -> Any:
                return estimate_difference(accuracy_differences(rows[:seeds], base[:seeds]))

            estimate = at(setting.seeds)
            if not is_decided(estimate):
                found = seeds_to_decide(estimate, margin=MARGIN, alpha=ALPHA)
                first, last = found or (MAX_SEEDS, MAX_SEEDS)
                ranges.append((first, last))
                sooner = min(first - 1, SEEDS_DRAWN)
                wrong[truth].append(
                    (
                        sooner > setting.seeds and is_decided(at(sooner)),
                        last <= SEEDS_DRAWN and not is_decided(at(last)),
                    )
                )
    return {
        "setting": asdict(setting),
        "undecided": {f"{truth:g}": len(each) for truth, each in wrong.items()},
        "median_range": np.median(ranges, axis=0).tolist() if ranges else None,
        "without_range": share(first == MAX_SEEDS for first, _ in ranges) if ranges else None,
        "without_end": share(last == MAX_SEEDS for _, last in ranges) if ranges else None,
        **{
            name: {
                f"{truth:g}": float(np.mean([pair[index] for pair in each]))
                for truth, each in wrong.items()
                if len(each) >= comparisons / 4
            }
            for index, name in enumerate(("decided_sooner", "undecided_later"))
        },
    }


def is_decided(estimate: DifferenceEstimate) -> bool:
    """Return whether there is a verdict at the margin."""
    return differs(estimate) or is_equivalent(estimate, MARGIN)


def main() -> None:
    """Parse the options, simulate every setting, write the results and print the outcome."""
    from provenance import provenance

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--comparisons", type=int, default=1000, help="per setting and difference")
    parser.add_argument("--forecasts", type=int, default=100, help="per setting and difference")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the whole simulation")
    options = parser.parse_args()
    start = time.perf_counter()
    work = partial(run_setting, comparisons=options.comparisons, seed=options.seed)
    check = partial(run_forecast, comparisons=options.forecasts, seed=options.seed)
    with ProcessPoolExecutor(options.jobs) as pool:
        cells = list(shown(pool.map(work, grid())))
        forecasts = list(shown(pool.map(check, forecast_settings())))
    result = {
        "outcome": outcome(cells),
        "worst_forecasts": {
            name: max(max(cell[name].values(), default=0.0) for cell in forecasts)
            for name in ("decided_sooner", "undecided_later")
        },
        "comparisons": options.comparisons,
        "seconds": round(time.perf_counter() - start),
        "jobs": options.jobs,
        "settings": cells,
        "forecasts": forecasts,
        "provenance": provenance(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["outcome"], indent=1))


def shown(found: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Pass results on, and write each to the standard error as it comes."""
    for each in found:
        print(json.dumps(each), file=sys.stderr, flush=True)
        yield each


if __name__ == "__main__":
    main()
