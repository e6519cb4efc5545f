"""How often does the interval of `ampft curve` contain what twice the labels really add?

Run: `python benchmarks/curve_simulation.py --out benchmarks/results/curve.json`.

Worlds with a known curve: errors that fall to a floor by a power law, an exponential or a
hyperbola, plateaus, the same gain at each doubling, and curves that are none of the shapes fitted:
a logarithm that ends in a plateau, an S over the logarithm of the labels, and a late jump. Six
sizes, each half of the next. A seed draws its own nested subsets, whose luck is shared between
neighbouring sizes and is larger for few labels. A test row is right with the probability of the
curve; rows are alike between models (correlation 0.6), so that all scores share the luck of the
test rows.

Reported: the share of intervals that contain the true gain of the next doubling, their mean
width, the error of the estimate, and for comparison an interval that takes the last measured
doubling as the next one.
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
from scipy.special import ndtr

from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.lab.curve.learning_curve import extrapolate, scores_by_size
from ampft.metrics.sums import ACCURACY, single_label_sums

FloatArray = npt.NDArray[np.float64]

SIZES = np.array([50.0, 100, 200, 400, 800, 1600])
ALIKE = 0.6  # correlation of a row's difficulty between two models
CURVES: dict[str, Callable[[FloatArray], FloatArray]] = {
    "power 0.25": lambda n: 0.95 - 1.00 * n**-0.25,
    "power 0.5": lambda n: 0.92 - 2.5 * n**-0.5,
    "power 1": lambda n: 0.9 - 12 * n**-1.0,
    "exponential, fast": lambda n: 0.9 - 0.3 * np.exp(-n / 300),
    "exponential": lambda n: 0.9 - 0.3 * np.exp(-n / 600),
    "exponential, slow": lambda n: 0.9 - 0.4 * np.exp(-n / 1500),
    "hyperbola": lambda n: 0.9 - 0.4 / (1 + n / 200),
    "hyperbola, slow": lambda n: 0.9 - 0.4 / (1 + n / 800),
    "logarithm, plateau from 400": lambda n: 0.6 + 0.03 * np.log2(np.minimum(n, 400) / 50),
    "logarithm, plateau from 800": lambda n: 0.6 + 0.03 * np.log2(np.minimum(n, 800) / 50),
    "logarithm, plateau from 1600": lambda n: 0.6 + 0.03 * np.log2(np.minimum(n, 1600) / 50),
    "same each doubling": lambda n: 0.5 + 0.03 * np.log2(n / 50),
    "plateau": lambda n: np.full_like(n, 0.8),
    "S": lambda n: 0.5 + 0.4 / (1 + np.exp(-1.5 * (np.log2(n / 50) - 2.5))),
    "late jump": lambda n: np.where(n < 3000, 0.7, 0.85),
}


@dataclass(frozen=True)
class Setting:
    """A world."""

    curve: str  # Name of the curve.
    rows: int  # Test rows.
    seeds: int  # Seeds of each size.
    # Standard deviation of the score over draws at 50 labels; it falls with the square root of the
    # labels, to a fifth at least.
    noise: float


def simulated(setting: Setting, generator: np.random.Generator) -> list[list[Any]]:
    """Return the sums of each size and seed."""
    truth = CURVES[setting.curve](SIZES)
    falling = np.maximum(np.sqrt(SIZES[0] / SIZES), 0.2) * setting.noise
    rows = generator.normal(size=setting.rows)
    labels = np.zeros(setting.rows, dtype=np.int64)
    sums: list[list[Any]] = [[] for _ in SIZES]
    for _ in range(setting.seeds):
        luck = 0.0
        for index, (mean, deviation) in enumerate(zip(truth, falling, strict=True)):
            luck = math.sqrt(0.5) * luck + math.sqrt(0.5) * generator.normal()
            share = float(np.clip(mean + deviation * luck, 0.01, 0.99))
            own = generator.normal(size=setting.rows)
            place = math.sqrt(ALIKE) * rows + math.sqrt(1 - ALIKE) * own
            wrong = (ndtr(place) > share).astype(np.int64)
            sums[index].append(single_label_sums(labels, wrong, 2))
    return sums


def expected_gain(setting: Setting) -> float:
    """Return what the next doubling adds on average."""
    last, following = CURVES[setting.curve](np.array([SIZES[-1], 2 * SIZES[-1]]))
    return float(following - last)


def summary(setting: Setting, number: int) -> dict[str, Any]:
    """Return the figures of one setting."""
    truth, covered, naive, widths, errors, refused = expected_gain(setting), 0, 0, [], [], 0
    for index in range(number):
        generator = np.random.default_rng([index, *setting.curve.encode()])
        sums = simulated(setting, generator)
        last = estimate_of_sums(sums[-1], sums[-2], ACCURACY).interval(0.95)
        naive += last[0] <= truth <= last[1]
        found = extrapolate(scores_by_size(SIZES, sums, ACCURACY))
        if found is None:
            refused += 1
            continue
        covered += found.interval[0] <= truth <= found.interval[1]
        widths.append(found.interval[1] - found.interval[0])
        errors.append(found.gain - truth)
    said = number - refused
    return {
        **asdict(setting),
        "true_gain": truth,
        "simulations": number,
        "refused": refused,
        "covered": covered / said if said else None,
        "standard_error": math.sqrt(0.05 * 0.95 / said) if said else None,
        "width": float(np.mean(widths)) if said else None,
        "root_mean_square_error": float(np.sqrt(np.mean(np.square(errors)))) if said else None,
        "last_doubling_covered": naive / number,
    }


def main() -> None:
    """Simulate all settings and write the results."""
    parser = command_line(__doc__)
    parser.add_argument("--number", type=int, default=400, help="simulations of each setting")
    args = parser.parse_args()
    worlds = ((500, 5, 0.04), (2000, 3, 0.04), (2000, 10, 0.02))
    results = []
    for curve in CURVES:
        for rows, seeds, noise in worlds:
            results.append(summary(Setting(curve, rows, seeds, noise), args.number))
            print(json.dumps(results[-1]), flush=True)
    write_results(args.out, {"provenance": provenance(), "results": results})


if __name__ == "__main__":
    main()
