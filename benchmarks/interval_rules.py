"""Which critical value holds its level for a mean over few seeds and many cases? By integration.

Run: `python benchmarks/interval_rules.py --out benchmarks/results/interval-rules.json`.

Data are normal: the mean difference has the variance V = s^2/S + C, of which s^2 is estimated with
S - 1 degrees of freedom, and C and J are known. Everything is relative to F = (J - C)/S + C, the
variance over the cases only: C = `shared` F, and the variance of the differences over seeds is
`ratio` times J - C, so that a ratio of 1 means no variance between trainings.

Rules, as multiples of sqrt(F), with w = (s^2/S) / V:
- weighted: [w t(S-1) + (1-w) t(n-1)] sqrt(V), at least t(n-1) sqrt(F): the rule of `interval.py`;
- first order: t(df) sqrt(V) with 1/df = w/(S-1) + (1-w)/(n-1), at least t(n-1) sqrt(F);
- published: t(df) sqrt(V) with df = (S-1) / w^2 (Hillis 2007), with no bound;
- floored: the first order with s^2 at least J - C, in V and in w: the earlier rule;
- bounded publication: the published one, at least t(n-1) sqrt(F).

Per number of seeds and level: the largest error over all shares and ratios, and for ratios of at
most 3 the mean error, the mean half-width over that of a known variance, and the power to find a
difference of three standard errors. "bound" is the largest power at a ratio of 1 that any rule with
an error of at most the level at every ratio can have, by linear programming over rejection regions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from provenance import provenance
from scipy.optimize import linprog
from scipy.special import chdtrc, chdtri, ndtr, stdtrit

CASES = 1000
QUANTILES = 2000
SHARED = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.97)
RATIOS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
SMALL_RATIO = 3.0
LEVELS = (0.1, 0.05, 0.025, 0.01)
SEEDS = (3, 4, 5, 10)
DIFFERENCE = 3.0  # standard errors
BOUND_SHARED = (0.0, 0.3, 0.7)

FloatArray = npt.NDArray[np.float64]


def half_widths(variances: FloatArray, shared: float, seeds: int, level: float) -> dict[str, Any]:
    """Return (m,) half-widths by rule, in units of sqrt(F), for (m,) values of s^2."""
    tail = level / 2

    def t(degrees: Any) -> Any:
        return -stdtrit(degrees, tail)

    def degrees(share: FloatArray) -> FloatArray:
        return 1 / (share / (seeds - 1) + (1 - share) / (CASES - 1))

    own = variances / seeds
    total = own + shared
    share, root = own / total, np.sqrt(total)
    fixed = t(CASES - 1)
    floored = np.maximum(own, 1 - shared)
    weighted = share * t(seeds - 1) + (1 - share) * fixed
    published = t((seeds - 1) / np.maximum(share, 1e-9) ** 2) * root
    return {
        "weighted": np.maximum(weighted * root, fixed),
        "first order": np.maximum(t(degrees(share)) * root, fixed),
        "published": published,
        "bounded publication": np.maximum(published, fixed),
        "floored": t(degrees(floored / (floored + shared))) * np.sqrt(floored + shared),
    }


def rates(seeds: int, level: float) -> dict[str, dict[str, float]]:
    """Return the rates of each rule at one number of seeds and level."""
    quantiles = chdtri(seeds - 1, (np.arange(QUANTILES) + 0.5) / QUANTILES) / (seeds - 1)
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for shared in SHARED:
        for ratio in RATIOS:
            variance = (1 - shared) * seeds * ratio
            deviation = np.sqrt(variance / seeds + shared)
            for name, half in half_widths(variance * quantiles, shared, seeds, level).items():
                relative = half / deviation
                error = 2 * float(ndtr(-relative).mean())
                width = float(relative.mean() / -stdtrit(1e9, level / 2))
                power = float(ndtr(DIFFERENCE - relative).mean())
                found.setdefault(name, []).append((ratio, error, width, power))
    result = {}
    for name, rows in found.items():
        near = np.array([row for row in rows if row[0] <= SMALL_RATIO])
        result[name] = {
            "worst_error": max(row[1] for row in rows),
            "mean_error": float(near[:, 1].mean()),
            "mean_width": float(near[:, 2].mean()),
            "mean_power": float(near[:, 3].mean()),
        }
    return result


def power_bound(seeds: int, shared: float, level: float) -> float:
    """Return the largest power at a ratio of 1 of any rule with that level at every ratio."""
    base = (1 - shared) * seeds
    edges = np.concatenate([[0.0], np.geomspace(0.005, 3000, 140) * base, [np.inf]])
    means = np.concatenate([np.linspace(0, 12, 241), np.geomspace(12, 400, 80)[1:], [np.inf]])

    def cells(ratio: float, difference: float) -> FloatArray:
        deviation = np.sqrt(base * ratio / seeds + shared)
        of_s = -np.diff(chdtrc(seeds - 1, edges * (seeds - 1) / (base * ratio)))
        shift = difference * deviation
        of_mean = np.diff(ndtr((means - shift) / deviation) + ndtr((means + shift) / deviation))
        return np.outer(of_s, of_mean).ravel()

    errors = np.array([cells(ratio, 0.0) for ratio in (1.2, 4.0, 6.0, 16.0, 300.0, *RATIOS)])
    solved = linprog(
        -cells(1.0, DIFFERENCE), A_ub=errors, b_ub=np.full(len(errors), level), bounds=(0, 1)
    )
    return float(-solved.fun)


def power_at_one(seeds: int, shared: float, level: float) -> dict[str, float]:
    """Return the power of each rule at a ratio of 1."""
    quantiles = chdtri(seeds - 1, (np.arange(QUANTILES) + 0.5) / QUANTILES) / (seeds - 1)
    halves = half_widths((1 - shared) * seeds * quantiles, shared, seeds, level)
    return {name: float(ndtr(DIFFERENCE - half).mean()) for name, half in halves.items()}


def main() -> None:
    """Parse the options, compute all rates, write them and print the worst errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    found = {f"{s} seeds, {a:g}": rates(s, a) for s in SEEDS for a in LEVELS}
    bounds = {
        f"{s} seeds, shared {c:g}": {"bound": power_bound(s, c, 0.05), **power_at_one(s, c, 0.05)}
        for s in (3, 5)
        for c in BOUND_SHARED
    }
    result = {"rates": found, "power_without_seed_variance": bounds, "provenance": provenance()}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, rules in found.items():
        print(name, {rule: round(100 * each["worst_error"], 2) for rule, each in rules.items()})
    print(json.dumps(bounds, indent=1))


if __name__ == "__main__":
    main()
