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
- rare rows among groups: macro F1, or the F1 of a class of 20 rows that are cases of their own,
  while the rows of two frequent classes are in groups of 8; equality at 3 points, or at 20;
- duplicates, grouped: copies of cases, equally or unequally many, the copies of a case being one
  group.
- probabilities: log loss and Brier score; all logits worse, or 0.1 to 1 % of the cases lost by 8 to
  30 nats at every seed;
- entities, words, images, several labels: every other metric that gets a verdict, with cases of
  several units; sentences or images that are lost as a whole at every seed.
- skewed seeds: normal, exponential, lognormal, t and two-point effects of a seed on the arm, or on
  both sides, with a standard deviation of one point.
Not held to a level: skewed seeds (`--family "skewed seeds"` prints their rates); duplicates
without groups; bad seeds (one in ten loses 10 points); offset subgroup (lost at every seed, with as
much gained in passing); rare classes of which most is lost.

Per setting, beside the limits that three standard errors of the simulation allow:
- false difference, true difference 0: p of the difference <= 5 %;
- false equivalence, margin at the true difference: p of equivalence <= 5 %;
- coverage of the 95 % interval at every true difference; its mean width, before it allows for rare
  losses, over that of a normal interval with the true variance;
- power: a loss of two points found, beside what `power` predicts; equality called equivalent.
The worst settings of each rate are simulated again with other comparisons, since the worst of some
hundred is worse by chance.

Beside the rule ("now"): the rule without the allowance for rare losses, and without that for skewed
effects of seeds. Controls that must fail somewhere: McNemar's test over all seeds' examples pooled,
the examples alone (the limit of a bootstrap over examples), the seeds alone (paired t).

A second part (`forecasts`) asks whether `seeds_to_decide` says too much: the share of undecided
comparisons that fewer seeds than its first number decide, and that its second does not decide.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from interval_methods import (
    ALPHA,
    CONTROLS,
    METHODS,
    accuracy_differences,
    all_differences,
    by_method,
    controls,
    covers,
    differs,
    excludes_rare_losses,
    is_equivalent,
)
from provenance import command_line, provenance, write_results
from scipy.special import ndtri
from simulated_grid import LIMITS, grid
from simulated_seeds import BoolArray, Latent, Setting

from ampft.comparison.statistics.interval import DifferenceEstimate, estimate_difference
from ampft.comparison.statistics.power import MAX_SEEDS, power, seeds_to_decide

PLANTED = -0.02
MARGIN = 0.01
STANDARD_ERRORS = 3.0
SEEDS_DRAWN = 200  # most seeds at which a forecast is checked


@dataclass
class Found:
    """What the comparisons of a setting found, by method and true difference."""

    false_difference: dict[str, list[bool]] = field(default_factory=dict)
    false_equivalence: dict[str, list[bool]] = field(default_factory=dict)
    coverage: dict[str, list[bool]] = field(default_factory=dict)
    beyond: dict[str, list[bool]] = field(default_factory=dict)
    found: dict[str, list[bool]] = field(default_factory=dict)  # true losses
    equivalent_at_0: list[bool] = field(default_factory=list)
    found_planted: list[bool] = field(default_factory=list)
    by_t: list[tuple[float, float]] = field(default_factory=list)

    def add(
        self,
        estimate: DifferenceEstimate,
        truth: float,
        excluded: Callable[[float], bool],
        margin: float,
    ) -> None:
        """Add one comparison; `excluded` as in `is_equivalent`."""
        name = f"{truth:.4g}"
        self.coverage.setdefault(name, []).append(covers(estimate, truth))
        is_different = differs(estimate)
        if truth:
            equivalent = is_equivalent(estimate, abs(truth), excluded)
            self.false_equivalence.setdefault(name, []).append(equivalent)
            is_beyond = abs(estimate.estimate) - estimate.half_width(ALPHA / 2) >= MARGIN
            self.beyond.setdefault(name, []).append(is_beyond)
            is_found = is_different and estimate.estimate * truth > 0
            self.found.setdefault(name, []).append(is_found)
            if truth == PLANTED:
                self.found_planted.append(is_found)
            return
        self.false_difference.setdefault("0", []).append(is_different)
        self.equivalent_at_0.append(is_equivalent(estimate, margin, excluded))
        self.by_t.append((estimate.estimate, estimate.half_width(ALPHA / 2)))

    def rates(self) -> dict[str, object]:
        """Return the shares, and points for the width."""
        estimates, halves = np.transpose(self.by_t)
        ideal = float(-ndtri(ALPHA / 2) * estimates.std())
        rates: dict[str, object] = {
            "width_over_ideal": float(halves.mean()) / ideal if ideal else None,
            "false_difference": shares(self.false_difference)["0"],
            "false_equivalence": shares(self.false_equivalence),
            "coverage": shares(self.coverage),
            "found": shares(self.found),
            "beyond_one_point": shares(self.beyond),
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
            excluded = cache(partial(excludes_rare_losses, estimate))
            for method, each in by_method(estimate).items():
                found[method].add(each, truth, excluded, getattr(setting, "margin", MARGIN))
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
        "mean_width_over_ideal": mean_of(
            rate["width_over_ideal"] for rate in rates if rate["width_over_ideal"]
        ),
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
    parser = command_line(__doc__)
    parser.add_argument("--comparisons", type=int, default=1000, help="per setting and difference")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which no setting starts")
    parser.add_argument("--forecasts", type=int, default=100, help="per setting and difference")
    parser.add_argument("--again", type=int, default=3000, help="comparisons of the worst settings")
    parser.add_argument("--progress", type=Path, help="JSON Lines of settings done, to resume from")
    parser.add_argument("--seed", type=int, default=0, help="seed of the whole simulation")
    parser.add_argument("--family", help="simulate one family of settings only, without forecasts")
    options = parser.parse_args()
    done = Progress(options.progress)
    work = partial(run_setting, comparisons=options.comparisons, seed=options.seed)
    check = partial(run_forecast, comparisons=options.forecasts, seed=options.seed)
    wanted = [each for each in grid() if options.family in (None, each.family)]
    settings = in_turns(wanted, done, work)
    deadline = time.monotonic() + 60 * options.minutes
    cells = [
        done.result("setting", work, each)
        for each in settings
        if done.has("setting", work, each) or time.monotonic() < deadline
    ]
    again = partial(run_setting, comparisons=options.again, seed=options.seed + 1)
    if options.family in LIMITS:
        print_rates(cells)
        write_results(options.out, {"settings": cells, "provenance": provenance()})
        return
    repeated = [done.result("again", again, settings[index]) for index in worst_settings(cells)]
    forecast = [] if options.family else forecast_settings()
    forecasts = [done.result("forecast", check, each) for each in forecast]
    result = {
        "outcome": outcome(cells),
        "worst_settings_again": outcome(repeated)["now"],
        "worst_forecasts": {
            name: max((max(cell[name].values(), default=0.0) for cell in forecasts), default=0.0)
            for name in ("decided_sooner", "undecided_later")
        },
        "comparisons": options.comparisons,
        "settings_left_out": len(settings) - len(cells),
        "comparisons_again": options.again,
        "seconds": round(done.seconds),
        "settings": cells,
        "again": repeated,
        "forecasts": forecasts,
        "provenance": provenance(),
    }
    write_results(options.out, result)
    print(json.dumps(result["outcome"], indent=1))


def print_rates(cells: list[dict[str, Any]]) -> None:
    """Print rates in percent with standard errors, without and with allowance for skewness."""
    print("setting | different | called equivalent: wrongly | equal modes")
    for cell in cells:
        columns = [[cell["now"]["false_difference"]]]
        before, now = cell["without skewness"], cell["now"]
        columns.append([max(each["false_equivalence"].values()) for each in (before, now)])
        columns.append([each["equivalent_at_0"] for each in (before, now)])
        texts = [
            " -> ".join(
                f"{100 * rate:.1f} ({100 * np.sqrt(rate * (1 - rate) / cell['comparisons']):.1f})"
                for rate in rates
            )
            for rates in columns
        ]
        print(" | ".join([" ".join(map(str, cell["setting"].values())), *texts]))


class Progress:
    """Results that are kept in a file, so that a stopped simulation goes on.

    Attributes:
        seconds: Time that the results have taken, in all parts.
    """

    def __init__(self, file: Path | None) -> None:
        self.file, self.seconds = file, 0.0
        self.known: dict[str, dict[str, Any]] = {}
        if file is not None and file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self.known[row["key"]] = row["result"]
                self.seconds += row["seconds"]

    def has(self, part: str, work: partial[dict[str, Any]], setting: Any) -> bool:
        """Return whether the result of a setting is known."""
        return f"{part} {setting!r} {work.keywords}" in self.known

    def result(self, part: str, work: partial[dict[str, Any]], setting: Any) -> dict[str, Any]:
        """Return the result of a setting, computed now or before with the same arguments."""
        key = f"{part} {setting!r} {work.keywords}"
        if key not in self.known:
            start = time.perf_counter()
            self.known[key] = work(setting)
            seconds = time.perf_counter() - start
            self.seconds += seconds
            if self.file is not None:
                row = {"key": key, "seconds": seconds, "result": self.known[key]}
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        return self.known[key]


def in_turns(
    settings: list[Setting], done: Progress, work: partial[dict[str, Any]]
) -> list[Setting]:
    """Return the settings that are done, and then one of each family and metric in turns."""
    known = [each for each in settings if done.has("setting", work, each)]
    rank: dict[tuple[str, str], int] = {}
    others: list[tuple[int, Setting]] = []
    for each in settings:
        if each not in known:
            kind = each.family, each.metric
            rank[kind] = rank.get(kind, -1) + 1
            others.append((rank[kind], each))
    return known + [each for _, each in sorted(others, key=lambda pair: pair[0])]


def worst_settings(cells: list[dict[str, Any]], number: int = 3) -> list[int]:
    """Return the indices of the settings with the worst of each rate, of those held to a level."""
    rates = {
        index: (
            cell["now"]["false_difference"],
            max(cell["now"]["false_equivalence"].values(), default=0.0),
            1 - min(cell["now"]["coverage"].values()),
        )
        for index, cell in enumerate(cells)
        if cell["family"] not in LIMITS
    }
    worst_of = [sorted(rates, key=lambda index: -rates[index][part])[:number] for part in range(3)]
    return sorted({index for part in worst_of for index in part})


if __name__ == "__main__":
    main()
