"""Do intervals of errors without a largest one hold, where the verdict does not warn? A simulation.

Run: `python benchmarks/large_errors.py --out benchmarks/results/large-errors.json`.

A model predicts numbers with normal errors of 0.3 standard deviations of the labels. The other one
- predicts the mean of the labels for a share of the rows ("mean"), or each model does so for rows
  of its own ("both", no difference);
- predicts numbers that are a share too close to the mean ("shrunk");
- has errors by the distribution of the labels, and so has the first one ("errors", no difference).

Labels are uniform, normal, exponential, lognormal, or by t with 2.5 to 10 degrees of freedom. The
code that compares real runs judges each pair. A verdict warns if few errors carry the difference,
or few labels could (`few_carrying`). Per setting: how often the 95 % interval misses the true
difference, how often the verdict warns, and how often it misses without a warning. The rule that
asks the errors only is beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from interval_methods import covers
from provenance import command_line, provenance, write_results

from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.labels.regression import METRICS, RegressionPredictions
from ampft.metrics.sums import CaseSums

FloatArray = npt.NDArray[np.float64]

ERROR = 0.3  # standard deviation of an error, in those of the labels
LABELS = ("uniform", "normal", "exponential", "lognormal", "t10", "t5", "t3", "t2.5")
OTHER_MODEL = (
    *(("mean", share) for share in (0.003, 0.01, 0.05, 0.3)),
    *(("both", share) for share in (0.01, 0.1)),
    *(("shrunk", share) for share in (0.1, 0.5)),
    ("errors", ERROR),
)


def drawn_labels(
    name: str, generator: np.random.Generator, shape: int | tuple[int, ...]
) -> FloatArray:
    """Return labels of one of `LABELS`, with mean 0 and standard deviation 1."""
    if name == "uniform":
        return np.sqrt(12) * (generator.random(shape) - 0.5)
    if name == "normal":
        return generator.standard_normal(shape)
    if name == "exponential":
        return generator.exponential(size=shape) - 1
    if name == "lognormal":
        normal = generator.standard_normal(shape)
        return (np.exp(normal) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
    freedom = float(name[1:])
    return generator.standard_t(freedom, shape) / np.sqrt(freedom / (freedom - 2))


@dataclass(frozen=True)
class Setting:
    """Two models that predict numbers."""

    metric: str  # "mse" or "r2".
    cases: int
    seeds: int
    labels: str  # One of `LABELS`.
    other: str  # What the other model does.
    share: float  # Of rows, of the distance from the mean, or the size of the errors.

    def difference(self) -> float:
        """Return the true difference of the metric; the labels have a variance of 1."""
        error = {"mean": self.share * (1 - ERROR**2), "shrunk": self.share**2}
        return error.get(self.other, 0.0) * (1 if self.metric == "mse" else -1)

    def draw(self, generator: np.random.Generator) -> tuple[list[CaseSums], list[CaseSums]]:
        """Return the sums of the other model and of the first one, at each seed."""
        labels = drawn_labels(self.labels, generator, self.cases)
        errors = ERROR * generator.standard_normal((2, self.seeds, self.cases))
        if self.other == "errors":
            errors = self.share * drawn_labels(self.labels, generator, errors.shape)
        if self.other == "shrunk":
            errors[0] -= self.share * labels
        for side in {"mean": (0,), "both": (0, 1)}.get(self.other, ()):
            errors[side] = np.where(
                generator.random(self.cases) < self.share, -labels, errors[side]
            )
        other, first = (
            [
                RegressionPredictions(labels, labels + each, ("number",), "test").sums(self.metric)
                for each in side
            ]
            for side in errors
        )
        return other, first


def settings() -> list[Setting]:
    """Return the settings, of one model and of five."""
    sizes = (("mse", 1000, 1), ("r2", 1000, 1), ("mse", 200, 1), ("mse", 1000, 5), ("mse", 5000, 1))
    return [
        Setting(*size, labels, *other)
        for size, labels, other in product(sizes, LABELS, OTHER_MODEL)
    ]


def simulate(setting: Setting, comparisons: int, seed: int) -> dict[str, Any]:
    """Return counts of comparisons: missed and warned, by both rules."""
    generator = np.random.default_rng([seed, *repr(setting).encode()])
    missed, errors, labels = np.zeros((3, comparisons), dtype=bool)
    for row in range(comparisons):
        other, first = setting.draw(generator)
        estimate = estimate_of_sums(other, first, METRICS[setting.metric])
        missed[row] = not covers(estimate, setting.difference())
        errors[row] = estimate.carrying is not None
        labels[row] = estimate.carrying_labels is not None
    warned = errors | labels
    return {
        **asdict(setting),
        "comparisons": comparisons,
        "missed": int(missed.sum()),
        "warned": int(warned.sum()),
        "missed_unwarned": int((missed & ~warned).sum()),
        "warned_by_errors": int(errors.sum()),
        "missed_unwarned_by_errors": int((missed & ~errors).sum()),
    }


def outcome(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return shares in percent: of all comparisons, and of those without a warning."""
    comparisons = sum(cell["comparisons"] for cell in cells)
    found: dict[str, Any] = {
        "comparisons": comparisons,
        "missed": 100 * sum(cell["missed"] for cell in cells) / comparisons,
    }
    for rule in ("", "_by_errors"):
        unwarned = comparisons - sum(cell[f"warned{rule}"] for cell in cells)
        misses = sum(cell[f"missed_unwarned{rule}"] for cell in cells)
        rate = misses / max(unwarned, 1)
        found |= {
            f"unwarned{rule}": unwarned,
            f"missed_of_unwarned{rule}": 100 * rate,
            f"standard_error{rule}": 100 * np.sqrt(rate * (1 - rate) / max(unwarned, 1)),
            f"worst_setting{rule}": max(
                100 * cell[f"missed_unwarned{rule}"] / cell["comparisons"] for cell in cells
            ),
        }
    return found


def main() -> None:
    """Simulate all settings and write the results."""
    parser = command_line(__doc__)
    parser.add_argument("--comparisons", type=int, default=400, help="per setting")
    parser.add_argument("--seed", type=int, default=0, help="seed of the whole simulation")
    options = parser.parse_args()
    cells = [simulate(each, options.comparisons, options.seed) for each in settings()]
    groups = {
        "all": outcome(cells),
        **{
            labels: outcome([cell for cell in cells if cell["labels"] == labels])
            for labels in LABELS
        },
    }
    for name, found in groups.items():
        print(name, found)
    write_results(options.out, {"outcome": groups, "settings": cells, "provenance": provenance()})


if __name__ == "__main__":
    main()
