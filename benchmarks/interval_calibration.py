"""Do the intervals and verdicts of a comparison hold their level? A simulation.

Run: `python benchmarks/interval_calibration.py --out benchmarks/results/interval-calibration.json`.

Each cell of the grid draws comparisons from a latent Gaussian model and passes their predictions
to the code that compares real runs. Example i is right at seed s where

    baseline   c0 + a_i + b_s + e_si + r0_si > 0
    mode       c1 + a_i + b_s + e_si + r1_si + g_i + h_s > 0

with a difficulty of examples (sd 1), b level of seeds (0.05), e seed x example (0.3), all shared
by both sides; r residual of each side (how many predictions flip), g mode x example, h mode x seed.
The accuracy of a side over seeds and examples is Phi(c / sd of its sum), so the true difference is
set by construction. For macro F1 there are five classes of 40, 30, 15, 10 and 5 % and a wrong
prediction falls on another class at random (the same one on both sides); the true value is that of
the expected confusion matrix, averaged over seeds.

Per cell, with the limits that three standard errors of the simulation allow:
- false alarms, true difference 0: p of the difference <= 5 %;
- false equivalence, true difference at the margin (1 point, and 4 points, which is within reach);
- coverage of the 95 % interval at every true difference, and its mean width;
- power for a loss of two points, beside what `power` predicts from the cell's mean s^2, J and C.
Controls that must fail somewhere: McNemar's test over all seeds' examples pooled, the examples
alone (the limit of a bootstrap over examples), the seeds alone (paired t test).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtr
from simulated_seeds import (
    CLASS_SHARES,
    LOSSES,
    Cell,
    Drawn,
    draw,
    grid,
    thresholds,
)

from ampft.comparison.statistics.interval import DifferenceEstimate, estimate_difference
from ampft.comparison.statistics.jackknife import JackknifeDifferences, jackknife_differences
from ampft.comparison.statistics.mcnemar import mcnemar_mid_p
from ampft.comparison.statistics.power import power
from ampft.metrics.sums import single_label_sums
from ampft.tasks.single_label import METRICS

ALPHA = 0.05
MARGINS = (0.01, 0.04)
PLANTED = 0.02
STANDARD_ERRORS = 3.0


def one_comparison(
    cell: Cell, drawn: Drawn, first: float, second: float
) -> tuple[JackknifeDifferences, tuple[int, int]]:
    """Return the differences, and the pooled counts of examples that one side alone got right."""
    baseline_right, mode_right = drawn.baseline + first > 0, drawn.mode + second > 0
    baseline, mode = (
        np.where(right, drawn.labels, drawn.wrong) for right in (baseline_right, mode_right)
    )
    classes = len(CLASS_SHARES[cell.metric])
    mode_sums, baseline_sums = (
        [single_label_sums(drawn.labels, row, classes) for row in rows] for rows in (mode, baseline)
    )
    jackknife = jackknife_differences(mode_sums, baseline_sums, METRICS[cell.metric])
    return jackknife, (
        int((mode_right & ~baseline_right).sum()),
        int((baseline_right & ~mode_right).sum()),
    )


def control_alarms(jackknife: JackknifeDifferences, only: tuple[int, int]) -> tuple[bool, ...]:
    """Return whether each negative control finds a difference: see `CONTROLS`."""
    differences = jackknife.per_seed
    seeds, mean = len(differences), abs(float(differences.mean()))
    examples = (jackknife.variance + (seeds - 1) * jackknife.covariance) / seeds
    spread = float(differences.std(ddof=1)) / np.sqrt(seeds)
    return (
        mcnemar_mid_p(*only) <= ALPHA,
        bool(mean > -ndtri(ALPHA / 2) * np.sqrt(max(examples, 0.0))),
        bool(2 * stdtr(seeds - 1, -mean / spread) <= ALPHA) if spread else mean > 0,
    )


CONTROLS = ("pooled_mcnemar", "examples_alone", "seeds_alone")


def run_cell(cell: Cell, *, comparisons: int, seed: int) -> dict[str, object]:
    """Simulate one cell and return its rates; shares, and points for widths.

    Args:
        cell: The point of the grid.
        comparisons: At each true difference; the draws are shared between these.
        seed: Of the whole simulation.
    """
    scale = [round(1000 * value) for value in (cell.mode_seed, cell.mode_example, cell.residual)]
    key = [seed, cell.seeds, cell.examples, len(cell.metric), *scale]
    generator = np.random.default_rng(key)
    first, seconds = thresholds(cell)
    found: dict[float, list[DifferenceEstimate]] = {loss: [] for loss in LOSSES}
    alarms = []
    for _ in range(comparisons):
        drawn = draw(cell, generator)
        for loss, second in zip(LOSSES, seconds, strict=True):
            jackknife, only = one_comparison(cell, drawn, first, second)
            found[loss].append(estimate_difference(jackknife))
            if not loss:
                alarms.append(control_alarms(jackknife, only))
    control = np.mean(alarms, axis=0)
    return asdict(cell) | summary(found) | dict(zip(CONTROLS, map(float, control), strict=True))


def summary(found: dict[float, list[DifferenceEstimate]]) -> dict[str, object]:
    """Return the rates of one cell."""
    coverage = {loss: covered(estimates, -loss) for loss, estimates in found.items()}
    null, planted = found[0.0], found[PLANTED]
    width = np.mean([high - low for low, high in (each.interval(1 - ALPHA) for each in null)])
    variance = np.mean([each.standard_error**2 for each in null])
    return {
        "false_alarms": share(each.p_difference() <= ALPHA for each in null),
        "false_equivalence": {
            f"{margin:g}": share(each.p_equivalence(margin) <= ALPHA for each in found[margin])
            for margin in MARGINS
        },
        "coverage": {f"{-loss:g}": value for loss, value in coverage.items()},
        "mean_width_points": 100 * float(width),
        "variance_over_true": float(variance / np.var([each.estimate for each in null])),
        "bias_points": 100 * float(np.mean([each.estimate for each in null])),
        "power": share(each.p_difference() <= ALPHA and each.estimate < 0 for each in planted),
        "power_predicted": power(
            PLANTED,
            seeds=len(planted[0].per_seed),
            seed_variance=float(np.mean([each.per_seed.var(ddof=1) for each in planted])),
            covariance=float(np.mean([each.jackknife_covariance for each in planted])),
            jackknife_variance=float(np.mean([each.jackknife_variance for each in planted])),
            cases=planted[0].cases,
            alpha=ALPHA,
        ),
        "equivalent_at_0": {
            f"{margin:g}": share(each.p_equivalence(margin) <= ALPHA for each in null)
            for margin in MARGINS
        },
    }


def covered(estimates: Iterable[DifferenceEstimate], truth: float) -> float:
    """Return the share of 95 % intervals that hold the truth."""
    intervals = [each.interval(1 - ALPHA) for each in estimates]
    return share(low <= truth <= high for low, high in intervals)


def share(hits: Iterable[bool]) -> float:
    """Return the share of true values."""
    return float(np.mean(list(hits)))


def limit(rate: float, comparisons: int) -> float:
    """Return the largest share that a true rate explains, within `STANDARD_ERRORS`."""
    return rate + STANDARD_ERRORS * float(np.sqrt(rate * (1 - rate) / comparisons))


def outcome(cells: list[dict[str, Any]], comparisons: int) -> dict[str, object]:
    """Return what the grid shows as a whole: worst rates and the cells outside the limits."""
    most = limit(ALPHA, comparisons)
    alarms = [cell["false_alarms"] for cell in cells]
    equivalences = [max(cell["false_equivalence"].values()) for cell in cells]
    coverages = [min(cell["coverage"].values()) for cell in cells]
    off = [cell["power"] - cell["power_predicted"] for cell in cells]
    return {
        "cells": len(cells),
        "limit": most,
        "worst_false_alarms": max(alarms),
        "worst_false_equivalence": max(equivalences),
        "worst_coverage": min(coverages),
        "mean_false_alarms": float(np.mean(alarms)),
        "cells_over_false_alarms": int(sum(value > most for value in alarms)),
        "cells_over_false_equivalence": int(sum(value > most for value in equivalences)),
        "cells_under_coverage": int(sum(value < 1 - most for value in coverages)),
        "power_minus_predicted": [min(off), max(off)],
        "controls": {
            name: {
                "worst_false_alarms": max(cell[name] for cell in cells),
                "cells_over": int(sum(cell[name] > most for cell in cells)),
            }
            for name in CONTROLS
        },
    }


def main() -> None:
    """Parse the options, simulate every cell, write the results and print the outcome."""
    from provenance import provenance

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--comparisons", type=int, default=1000, help="per cell and difference")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, default=0, help="of the whole simulation")
    options = parser.parse_args()
    start = time.perf_counter()
    work = partial(run_cell, comparisons=options.comparisons, seed=options.seed)
    with ProcessPoolExecutor(options.jobs) as pool:
        cells = []
        for cell in pool.map(work, grid()):
            cells.append(cell)
            print(json.dumps(cell), file=sys.stderr, flush=True)
    result = {
        "outcome": outcome(cells, options.comparisons),
        "comparisons": options.comparisons,
        "seconds": round(time.perf_counter() - start),
        "jobs": options.jobs,
        "cells": cells,
        "provenance": provenance(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["outcome"], indent=1))


if __name__ == "__main__":
    main()
