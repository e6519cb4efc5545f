"""Do intervals and verdicts on two finished models hold their level? A simulation.

Run: `python benchmarks/two_models.py --out benchmarks/results/two-models.json`.

Each setting draws the predictions of one baseline model, and of one model for each of several true
differences, and passes them to the code that compares one run or one table per arm. Only the
examples, or groups of them, are random. The settings are those of `interval_calibration.py` with
one seed and without noise of training: a subgroup that is lost, tiny classes, log loss and Brier
score with rare losses, and copies of examples as groups.

Per setting, beside the limit that three standard errors of the simulation allow:
- false difference, true difference 0: p of the difference <= 5 %;
- false equivalence, margin at the true difference: p of equivalence <= 5 %, the worst difference;
- false class, true difference 0: the F1 of any class is called different after Holm;
- found: the largest loss is called a difference.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
from interval_calibration import limit
from interval_methods import ALPHA, sums_of
from provenance import command_line, provenance, write_results
from simulated_losses import GroupedDuplicates, RareClasses, Subgroup
from simulated_metrics import Probabilities
from simulated_seeds import Drawn, Setting

from ampft.comparison.analysis.subgroup_losses import class_differences
from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.metrics.sums import CaseSums
from ampft.tasks.single_label import METRICS

SUPPORTS = ((250, 150, 91, 3, 3, 3), (250, 150, 90, 10), (200, 150, 75, 50, 25))


def settings() -> list[Setting]:
    """Return the settings, each with one model per arm."""
    subgroups = product((1,), (100, 300, 1000), (0.75, 0.97), (0.005, 0.05), (1.0,), (0.0,))
    tiny = product((1,), ("macro_f1", "balanced_accuracy"), SUPPORTS, (0.95,), (0.005,))
    return [
        *(Subgroup(*point) for point in subgroups),
        *(RareClasses(*point) for point in tiny),
        *(Probabilities(1, "log_loss", 1000, 0.0, nats) for nats in (12.0, 0.0)),
        *(Probabilities(1, "brier", 1000, 0.0, nats) for nats in (8.0, 0.0)),
        *(GroupedDuplicates(1, 250, 4, varies) for varies in (False, True)),
    ]


def drawn_sums(
    setting: Setting, generator: np.random.Generator
) -> tuple[CaseSums, tuple[CaseSums, ...]]:
    """Return the sums of the baseline's model, and of one model for each true difference."""
    drawn = setting.draw(generator)
    if isinstance(drawn, Drawn):
        baseline, *arms = (
            sums_of(setting, drawn, right[0]) for right in (drawn.baseline, *drawn.arms)
        )
        return baseline, tuple(arms)
    return drawn.baseline[0], tuple(arm[0] for arm in drawn.arms)


def is_class_found(arm: CaseSums, baseline: CaseSums) -> bool:
    """Return whether the F1 of some class is called different."""
    one, other = (SimpleNamespace(class_sums=sums, folds=None) for sums in (arm, baseline))
    arms: Any = {"arm": [one]}
    base: Any = [other]
    found = class_differences(arms, base, judged=["arm"], alpha=ALPHA)["arm"]
    corrected = [each.p_difference_holm for each in found if each is not None]
    return any(p is not None and p <= ALPHA for p in corrected)


def simulate(setting: Any, comparisons: int, seed: int) -> dict[str, Any]:
    """Return the shares of a setting, in percent."""
    generator = np.random.default_rng(seed)
    metric = METRICS[setting.metric]
    truths = setting.differences()
    differences, equivalences = np.zeros(len(truths)), np.zeros(len(truths))
    classes = 0
    for _ in range(comparisons):
        baseline, arms = drawn_sums(setting, generator)
        for index, (truth, arm) in enumerate(zip(truths, arms, strict=True)):
            estimate = estimate_of_sums([arm], [baseline], metric)
            differences[index] += estimate.p_difference() <= ALPHA
            if truth:
                equivalences[index] += estimate.p_equivalence(abs(truth)) <= ALPHA
        if setting.family == "rare classes":
            classes += is_class_found(arms[0], baseline)
    shares, largest = 100 * differences / comparisons, int(np.argmax(np.abs(truths)))
    return {
        "family": setting.family,
        **asdict(setting),
        "comparisons": comparisons,
        "true_differences": list(truths),
        "false_difference": float(shares[0]),
        "false_equivalence": float(100 * equivalences.max() / comparisons),
        "false_class": 100 * classes / comparisons if setting.family == "rare classes" else None,
        "found": float(shares[largest]),
    }


def worst(cells: Sequence[dict[str, Any]], name: str) -> float:
    """Return the largest share of that name."""
    return max(cell[name] for cell in cells if cell[name] is not None)


def main() -> None:
    """Simulate every setting, write the results, print the worst, and fail beyond the limit."""
    parser = command_line(__doc__)
    parser.add_argument("--comparisons", type=int, default=1000, help="per setting")
    parser.add_argument("--seed", type=int, default=0, help="seed of the whole simulation")
    options = parser.parse_args()
    cells = [simulate(each, options.comparisons, options.seed) for each in settings()]
    most = 100 * limit(ALPHA, options.comparisons)
    result = {
        "limit": most,
        "settings_over": sum(
            max(cell["false_difference"], cell["false_equivalence"], cell["false_class"] or 0.0)
            > most
            for cell in cells
        ),
        **{
            f"worst_{name}": worst(cells, name)
            for name in ("false_difference", "false_equivalence", "false_class")
        },
        "settings": cells,
        "provenance": provenance(),
    }
    write_results(options.out, result)
    print(json.dumps({name: result[name] for name in list(result)[:5]}, indent=1))


if __name__ == "__main__":
    main()
