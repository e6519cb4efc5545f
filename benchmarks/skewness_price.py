"""What would an allowance for effects of seeds beyond exponential ones cost? A simulation.

Run: `python benchmarks/skewness_price.py --out benchmarks/results/skewness-price.json`.

Only trainings vary, the least favourable case for the allowance. S differences with the standard
deviation r times the margin are called equivalent if both one-sided tests of level 5 % say so:
- student: Student's t;
- product: `ampft.comparison.statistics.skewed_seeds`, the quantile for exponential effects;
- lognormal: the quantile for lognormal effects, whose skewness is 6;
- hall: Hall's transformation (1992) of t with the skewness that the seeds show;
- hall 2, hall 6: the same with a skewness of 2 or 6 in the direction that hides a loss.

False equivalence, at a true loss of the margin, for effects of each kind; then the seeds that call
equal arms with normal effects equivalent in 80 % of comparisons.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from provenance import provenance, write_results
from scipy.special import stdtrit
from simulated_losses import EFFECTS

from ampft.comparison.statistics.skewed_seeds import seed_critical

FloatArray = npt.NDArray[np.float64]
Rule = Callable[[FloatArray], tuple[FloatArray, FloatArray]]

ALPHA, POWER = 0.05, 0.8
SEEDS, MOST_SEEDS = (3, 5, 10, 20), 60
RARE = "one in 20"  # loses 4.4 points more, if the standard deviation is one


def drawn(effects: str, samples: int, seeds: int, generator: np.random.Generator) -> FloatArray:
    """Return standardized differences, (samples, seeds); a few trainings lose much."""
    if effects == RARE:
        return (0.05 - (generator.random((samples, seeds)) < 0.05)) / np.sqrt(0.05 * 0.95)
    return -EFFECTS[effects](generator, (samples, seeds))


def rules(seeds: int, samples: int) -> dict[str, Rule]:
    """Return for each rule a function from samples to what the mean must exceed a loss by."""
    values = drawn("lognormal", samples, seeds, np.random.default_rng(9))
    error = values.std(axis=1, ddof=1) / np.sqrt(seeds)
    criticals = {
        "student": -float(stdtrit(seeds - 1, ALPHA)),
        "product": seed_critical(ALPHA, seeds),
        "lognormal": float(np.quantile(values.mean(axis=1) / error, 1 - ALPHA)),
    }

    def by_critical(critical: float) -> Rule:
        def half(values: FloatArray) -> tuple[FloatArray, FloatArray]:
            found = critical * values.std(axis=1, ddof=1) / np.sqrt(seeds)
            return found, found

        return half

    def by_hall(skewness: float | None) -> Rule:
        def half(values: FloatArray) -> tuple[FloatArray, FloatArray]:
            deviation = values.std(axis=1, ddof=1)
            shown = ((values - values.mean(axis=1, keepdims=True)) ** 3).mean(axis=1)
            shown = shown / np.maximum(deviation, 1e-12) ** 3
            below = shown if skewness is None else np.full_like(shown, -skewness)
            above = -shown if skewness is None else below
            return deviation * inverse_hall(below), deviation * inverse_hall(above)

        def inverse_hall(g: FloatArray) -> FloatArray:
            # g(u) = u + a u^2 + a^2 u^3 / 3 + g / (6 S), a = g / 3; (1 + a u)^3 is linear in it.
            a = np.where(np.abs(g) < 1e-6, 1e-6, g) / 3
            target = criticals["student"] / np.sqrt(seeds) - g / (6 * seeds)
            return (np.cbrt(1 + 3 * a * target) - 1) / a

        return half

    halls = {"hall": by_hall(None), "hall 2": by_hall(2.0), "hall 6": by_hall(6.0)}
    return {name: by_critical(value) for name, value in criticals.items()} | halls


def equivalent(values: FloatArray, true: float, ratio: float, rule: Rule) -> float:
    """Return the share of comparisons called equivalent; the margin is 1 / ratio deviations."""
    below, above = rule(values)
    mean, margin = values.mean(axis=1) + true, 1 / ratio
    return float(np.mean((mean - below >= -margin) & (mean + above <= margin)))


def main() -> None:
    """Parse the options, simulate, write the results and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--samples", type=int, default=40_000, help="comparisons per rate")
    options = parser.parse_args()
    false, power = [], []
    for seeds in SEEDS:
        for effects in ("normal", "exponential", "lognormal", RARE):
            values = drawn(effects, options.samples, seeds, np.random.default_rng(seeds))
            found = {
                name: equivalent(values, -1.0, 1.0, rule)
                for name, rule in rules(seeds, options.samples).items()
            }
            false.append({"seeds": seeds, "effects": effects, **found})
    needed: dict[float, dict[str, int]] = {0.5: {}, 1.0: {}}
    for seeds in range(3, MOST_SEEDS):
        values = drawn("normal", options.samples, seeds, np.random.default_rng(seeds))
        each = rules(seeds, options.samples)
        for ratio, least in needed.items():
            found = {name: equivalent(values, 0.0, ratio, rule) for name, rule in each.items()}
            if seeds in SEEDS:
                power.append({"seeds": seeds, "deviation_over_margin": ratio, **found})
            for name in (name for name, share in found.items() if share >= POWER):
                least.setdefault(name, seeds)
        if all(len(least) == len(each) for least in needed.values()):
            break
    result = {
        "false_equivalence": false,
        "power_of_equality": power,
        "seeds_for_power_0.8": [{"deviation_over_margin": r, **n} for r, n in needed.items()],
        "samples": options.samples,
        "largest_standard_error": 0.5 / options.samples**0.5,
        "provenance": provenance(),
    }
    write_results(options.out, result)
    for row in (*false, *power, *result["seeds_for_power_0.8"]):
        print({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()})


if __name__ == "__main__":
    main()
