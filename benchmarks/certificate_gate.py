"""Does the gate of a certificate pass faithful artifacts and stop faulty ones? A simulation.

Run: `python benchmarks/certificate_gate.py --out benchmarks/results/certificate-gate.json`.

Each setting draws the logits of a model on n rows, and of artifacts of it, and passes both to the
code that certifies artifacts (`ampft.export.certificate.gate`). Beside it stands the usual gate:
accuracy within 1 % on the first 100 rows.

Faithful artifacts are as good as the model, with other rounding: of float32, of float16, or of
int8, which changes logits by 5 or 14 % of the standard deviation of their noise. Faulty artifacts:
- margin: loses as many rows as the margin allows, evenly, or all in one class. It must not pass;
- class: a class is predicted as another one;
- labels: two labels are swapped;
- truncation, lower case: 3 and 10 % of the rows lose a part of what they say;
- pooling: all logits are noisier;
- stale: another training of the same model, as good as this one, a quarter of whose noise differs;
- batch: a third of the rows of a batch see the noise of their neighbours.
Each is judged as int8, where only the statistics can tell, and as float32, where logits must
agree. A last part has groups of 8 rows, and a class of 20 rows that are cases of their own, of
which an artifact loses 0, 30 or 50 %: how often does the gate say that a class falls?

Per setting: the shares of artifacts that fail, that stay undecided and that pass. A faithful one
that fails is a false alarm; a faulty one that passes is missed. Only "passed" ships.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from provenance import command_line, provenance, write_results

from ampft.comparison.analysis.predictions import ALPHA
from ampft.comparison.analysis.subgroup_losses import sums_of_class
from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.comparison.statistics.verdict import EQUIVALENT, WORSE, Verdict, holm
from ampft.data.splits import group_equal_keys
from ampft.export.certificate.certificate import FAILED, PASSED, UNDECIDED, BatchInvariance
from ampft.export.certificate.gate import (
    BATCH_SIZES,
    TOLERANCES,
    LogitTally,
    compare_outcomes,
    depends_on_batch,
)
from ampft.metrics.sums import ACCURACY, MACRO_F1, single_label_sums
from ampft.tasks.single_label import Predictions

Logits = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

MARGIN = 0.01
NAIVE_ROWS = 100
BATCH_ROWS = 300
RARE_ROWS = 20
SUPPORTS = ((0.5, 0.5), (0.6, 0.2, 0.15, 0.05), (0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.02))
ROWS = (300, 1000, 3000)
STRENGTH = 3.0  # evidence for the true class, in standard deviations of the noise


@dataclass(frozen=True)
class Drawn:
    """The rows of a split, and the logits of the model."""

    labels: Labels
    logits: Logits
    generator: np.random.Generator

    def noisy(self, deviation: float, rows: Any = slice(None)) -> Logits:
        """Return the logits with noise in some rows."""
        logits = self.logits.copy()
        logits[rows] += self.generator.normal(0, deviation, logits[rows].shape)
        return logits


def draw(rows: int, support: Sequence[float], generator: np.random.Generator) -> Drawn:
    """Return a split of which every class has a row."""
    classes = len(support)
    labels = generator.choice(classes, rows, p=support)
    labels[:classes] = np.arange(classes)
    logits = generator.normal(0, 1, (rows, classes))
    logits[np.arange(rows), labels] += STRENGTH
    return Drawn(labels, logits, generator)


def lost(drawn: Drawn, rows: npt.NDArray[np.intp]) -> Logits:
    """Return the logits with some rows predicted wrong."""
    logits = drawn.noisy(1e-6)
    classes = logits.shape[1]
    logits[rows, (drawn.labels[rows] + 1) % classes] = logits[rows].max(axis=1) + 1
    return logits


def correct_rows(drawn: Drawn) -> npt.NDArray[np.intp]:
    """Return the rows that the model predicts correctly."""
    return np.flatnonzero(drawn.logits.argmax(axis=1) == drawn.labels)


def margin_lost(drawn: Drawn) -> Logits:
    """Lose each correct row with the probability that costs the margin."""
    rows = correct_rows(drawn)
    share = MARGIN * len(drawn.labels) / len(rows)
    return lost(drawn, rows[drawn.generator.random(len(rows)) < share])


def margin_lost_in_class(drawn: Drawn) -> Logits:
    """Lose the margin in the last class, as far as it has as many rows."""
    rows = correct_rows(drawn)
    of_class = rows[drawn.labels[rows] == drawn.logits.shape[1] - 1]
    share = min(1.0, MARGIN * len(drawn.labels) / max(len(of_class), 1))
    return lost(drawn, of_class[drawn.generator.random(len(of_class)) < share])


def broken_class(drawn: Drawn) -> Logits:
    """Predict the last, rarest class as the first one."""
    logits = drawn.noisy(1e-6)
    rows = drawn.labels == logits.shape[1] - 1
    logits[rows, 0] += 10
    return logits


def swapped(drawn: Drawn) -> Logits:
    """Swap the last two labels."""
    order = [*range(drawn.logits.shape[1] - 2), drawn.logits.shape[1] - 1]
    return drawn.logits[:, [*order, drawn.logits.shape[1] - 2]]


def less_evidence(share: float) -> Callable[[Drawn], Logits]:
    """Return the fault that a share of the rows lose two thirds of their evidence."""

    def fault(drawn: Drawn) -> Logits:
        rows = np.flatnonzero(drawn.generator.random(len(drawn.labels)) < share)
        logits = drawn.noisy(0.3, rows)
        logits[rows, drawn.labels[rows]] -= STRENGTH * 2 / 3
        return logits

    return fault


def redrawn(share: float) -> Callable[[Drawn], Logits]:
    """Return artifacts in which a share of the variance of the noise is drawn anew.

    They are exactly as good as the model, on average over all rows there are.
    """

    def artifact(drawn: Drawn) -> Logits:
        evidence = np.zeros_like(drawn.logits)
        evidence[np.arange(len(drawn.labels)), drawn.labels] = STRENGTH
        own = drawn.generator.normal(0, 1, drawn.logits.shape)
        kept = drawn.logits - evidence
        mixed: Logits = evidence + np.sqrt(1 - share) * kept + np.sqrt(share) * own
        return mixed

    return artifact


FAITHFUL: dict[str, tuple[str, Callable[[Drawn], Logits]]] = {
    "float32": ("fp32", redrawn(1e-10)),
    "float16": ("fp16", redrawn(2.5e-5)),
    "int8": ("int8", redrawn(0.0025)),
    "coarse int8": ("int8", redrawn(0.02)),
}
FAULTY: dict[str, Callable[[Drawn], Logits]] = {
    "margin": margin_lost,
    "margin in one class": margin_lost_in_class,
    "class": broken_class,
    "labels": swapped,
    "truncation": less_evidence(0.03),
    "lower case": less_evidence(0.10),
    "pooling": lambda drawn: drawn.noisy(0.8),
    "stale": redrawn(0.25),
    "batch": lambda drawn: drawn.noisy(1e-6),
}


def decide(drawn: Drawn, artifact: Logits, precision: str, alone: Logits | None = None) -> str:
    """Return the verdict of the gate, without the intervals, which take most of its time.

    Args:
        drawn: Rows and logits of the model.
        artifact: Logits of the artifact.
        precision: Precision that it states.
        alone: Logits of the artifact in batches of one; None if they are the same.
    """
    tally = LogitTally(TOLERANCES.get(precision))
    tally.add(drawn.logits, artifact)
    if tally.differences().tolerance is not None and tally.differences().rows_beyond:
        return FAILED
    if alone is not None and depends_on_batch(_batches(artifact, alone, precision), MARGIN):
        return FAILED
    before, after = (
        single_label_sums(drawn.labels, each.argmax(axis=1), each.shape[1])
        for each in (drawn.logits, artifact)
    )
    overall = estimate_of_sums([after], [before], ACCURACY)
    is_equivalent = overall.p_equivalence(MARGIN) <= ALPHA
    p_value = overall.p_difference() if overall.estimate < 0 else overall.p_beyond(MARGIN)
    if not is_equivalent and p_value <= ALPHA:
        return FAILED
    estimates = {
        f"{label}": estimate_of_sums(
            sums_of_class([after], label), sums_of_class([before], label), MACRO_F1
        )
        for label in range(artifact.shape[1])
    }
    p_values = holm({name: each.p_difference() for name, each in estimates.items()})
    if any(p <= ALPHA and estimates[name].estimate < 0 for name, p in p_values.items()):
        return FAILED
    return PASSED if is_equivalent else UNDECIDED


def _batches(artifact: Logits, alone: Logits, precision: str) -> BatchInvariance:
    rows = slice(0, BATCH_ROWS)
    tally = LogitTally(TOLERANCES.get(precision))
    tally.add(alone[rows], artifact[rows])
    changed = int((alone[rows].argmax(axis=1) != artifact[rows].argmax(axis=1)).sum())
    return BatchInvariance(
        sizes=BATCH_SIZES, rows=len(artifact[rows]), changed=changed, logits=tally.differences()
    )


def full_verdict(drawn: Drawn, artifact: Logits) -> str:
    """Return the verdict of the whole code on the statistics of an int8 artifact."""
    names = tuple(f"class {index}" for index in range(artifact.shape[1]))
    before, after = (_predictions(each, drawn.labels, names) for each in (drawn.logits, artifact))
    comparison, classes = compare_outcomes(before, after, margin=MARGIN)
    outcome, difference = comparison.arms[1].outcome, comparison.arms[1].difference
    assert difference is not None
    is_another = outcome == WORSE or difference.verdict == Verdict.BETTER_BEYOND
    if is_another or any(each.status == WORSE for each in classes):
        return FAILED
    return PASSED if outcome == EQUIVALENT else UNDECIDED


def falls_among_groups(lost_share: float, artifacts: int, seed: int) -> dict[str, Any]:
    """Return how often the gate says that a class of rows alone falls, beside groups of 8 rows.

    Args:
        lost_share: Share of the rare class that the artifact loses.
        artifacts: Number of artifacts.
        seed: Seed of the simulation.
    """
    generator = np.random.default_rng([seed, round(1000 * lost_share)])
    labels = np.repeat(np.arange(3), (400, 400, RARE_ROWS))
    groups = group_equal_keys(np.r_[np.repeat(np.arange(100), 8), 100 + np.arange(RARE_ROWS)])
    names = ("one", "other", "rare")
    found: Counter[str] = Counter()
    for _ in range(artifacts):
        logits = generator.normal(0, 1, (len(labels), 3))
        logits[np.arange(len(labels)), labels] += STRENGTH
        drawn = Drawn(labels, logits, generator)
        rows = correct_rows(drawn)
        rows = rows[(labels[rows] == 2) & (generator.random(len(rows)) < lost_share)]
        artifact = lost(drawn, rows) + generator.normal(0, 0.05, logits.shape)
        before, after = (_predictions(each, labels, names) for each in (logits, artifact))
        _, classes = compare_outcomes(before, after, margin=MARGIN, groups=groups)
        found.update(each.name for each in classes if each.status == WORSE)
    return {
        "lost_share": lost_share,
        "artifacts": artifacts,
        **{f"{name}_falls": 100 * found[name] / artifacts for name in names},
    }


def _predictions(logits: Logits, labels: Labels, names: tuple[str, ...]) -> Predictions:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Predictions(
        example_ids=np.arange(len(labels)),
        labels=labels,
        probabilities=(shifted / shifted.sum(axis=1, keepdims=True)).astype(np.float32),
        label_names=names,
        split="simulated",
    )


def naive(drawn: Drawn, artifact: Logits) -> str:
    """Return the verdict of the usual gate: accuracy within 1 % on the first 100 rows."""
    rows = slice(0, NAIVE_ROWS)
    before, after = (
        float((each[rows].argmax(axis=1) == drawn.labels[rows]).mean())
        for each in (drawn.logits, artifact)
    )
    return PASSED if abs(after - before) <= MARGIN + 1e-12 else FAILED


def simulate(
    rows: int, support: Sequence[float], artifacts: int, seed: int, checks: int
) -> list[dict[str, Any]]:
    """Return the shares of the verdicts by artifact, in percent."""
    generator = np.random.default_rng(seed)
    kinds = [(name, True, *row) for name, row in FAITHFUL.items()]
    kinds += [(n, False, p, fault) for n, fault in FAULTY.items() for p in ("int8", "fp32")]
    result = []
    for name, is_faithful, precision, make in kinds:
        found: Counter[str] = Counter()
        usual: Counter[str] = Counter()
        for number in range(artifacts):
            drawn = draw(rows, support, generator)
            artifact = make(drawn)
            alone = None
            if name == "batch":
                alone, third = artifact, drawn.generator.random(rows) < 1 / 3
                artifact = drawn.noisy(0.8, third)
            verdict = decide(drawn, artifact, precision, alone)
            if number < checks and precision == "int8" and alone is None:
                assert verdict == full_verdict(drawn, artifact), (name, rows, support, number)
            found[verdict] += 1
            usual[naive(drawn, artifact)] += 1
        result.append(
            {
                "rows": rows,
                "classes": len(support),
                "artifact": name,
                "is_faithful": is_faithful,
                "precision": precision,
                "artifacts": artifacts,
                **{kind: 100 * found[kind] / artifacts for kind in (FAILED, UNDECIDED, PASSED)},
                "usual_gate_failed": 100 * usual[FAILED] / artifacts,
            }
        )
    return result


def summary(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and worst over the settings, by artifact and precision."""
    keys = list(dict.fromkeys((cell["artifact"], cell["precision"]) for cell in cells))
    lines = []
    for artifact, precision in keys:
        own = [c for c in cells if (c["artifact"], c["precision"]) == (artifact, precision)]
        bad = FAILED if own[0]["is_faithful"] else PASSED
        lines.append(
            {
                "artifact": artifact,
                "is_faithful": own[0]["is_faithful"],
                "precision": precision,
                **{
                    f"mean_{kind}": float(np.mean([cell[kind] for cell in own]))
                    for kind in (FAILED, UNDECIDED, PASSED)
                },
                f"worst_{bad}": max(cell[bad] for cell in own),
                "usual_gate_failed": float(np.mean([c["usual_gate_failed"] for c in own])),
            }
        )
    return lines


def main() -> None:
    """Simulate every setting, write the results, and print the summary."""
    parser = command_line(__doc__)
    parser.add_argument("--artifacts", type=int, default=300, help="per setting and kind")
    parser.add_argument("--checks", type=int, default=2, help="of them, judged by the whole code")
    parser.add_argument("--seed", type=int, default=0, help="seed of the whole simulation")
    options = parser.parse_args()
    cells = [
        cell
        for rows, support in product(ROWS, SUPPORTS)
        for cell in simulate(rows, support, options.artifacts, options.seed, options.checks)
    ]
    lines = summary(cells)
    falls = [falls_among_groups(each, options.artifacts, options.seed) for each in (0.0, 0.3, 0.5)]
    result = {
        "margin": MARGIN,
        "summary": lines,
        "rare_class_among_groups": falls,
        "settings": cells,
        "provenance": provenance(),
    }
    write_results(options.out, result)
    for line in (*lines, *falls):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
