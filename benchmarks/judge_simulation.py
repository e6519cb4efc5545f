"""How often does a sequence of tries on one test set keep a change that does nothing?

Run: `python benchmarks/judge_simulation.py --part errors --out benchmarks/results/judge.json`,
`--part power --out benchmarks/results/judge-power.json`, and
`--part classes --out benchmarks/results/judge-classes.json`.

Each sequence has 200 tries on the same rows. A candidate gets fresh seeds, and the decision code of
`ampft judge` answers. Compared: the sealed and the open ledger, Bonferroni's correction, each try
at 5 %, and "keep if the score is higher", all with the same estimates of gain.

The world: 30 % of the rows are hard, with a probability 1/2 of being right; the others are easy,
with 0.97. A change moves the probability of each hard row by 0.3 with a random sign, whose mean
over the population is 0: a null change, whose effect on these rows is not 0. A planted gain adds
the same to all hard rows. Seeds move all hard rows together (small noise: 0.3 points of accuracy,
large: 1.2), and each prediction is drawn anew. With more than two classes, the metric is macro F1.

Who chooses the changes:
- climber: a new random change at every try, on top of what was kept; planted gains are pure;
- tuner: after a keep, every second try adds a kept change once more, because its keep says that it
  suits these rows; planted gains come with random changes, so that there is something to add;
- voter: 150 random changes, then combinations of them with the signs of the gains that the
  answers showed, as in Blum and Hardt (2015), which fit the rows without any gain elsewhere.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from provenance import command_line, provenance, write_results

from ampft.comparison.statistics.interval import DifferenceEstimate
from ampft.lab.referee.keep_or_drop import (
    CandidateAnswer,
    CandidateCriteria,
    Claim,
    TryErrorBudget,
    decide,
    level_of_try,
    lower_limit,
)
from ampft.metrics.sums import MACRO_F1, single_label_sums

FloatArray = npt.NDArray[np.float64]

TRIES, ERROR, MARGIN = 200, 0.05, 0.01
HARD, EASY_RIGHT, HARD_RIGHT = 0.3, 0.97, 0.5
STEP, VOTED_STEP = 0.3, 0.45  # of a change, and of a combination, in a hard row's probability
VOTES = 150  # random changes before the voter combines them
SEALED, OPENED, BONFERRONI, EACH, HIGHER = (
    "ledger, sealed", "ledger, open", "Bonferroni", "each try at 5 %", "higher score",
)  # fmt: skip
METHODS = (SEALED, OPENED, BONFERRONI, EACH, HIGHER)


@dataclass(frozen=True)
class Setting:
    """A world and who chooses the changes."""

    classes: int  # Number of classes; above 2, the metric is macro F1, otherwise accuracy.
    n: int  # Number of test rows.
    seeds: int  # Seeds of every candidate.
    noise: float  # Standard deviation of the probability of hard rows between seeds.
    policy: str  # "climber", "tuner" or "voter".
    planted: int = 0  # Number of tries with a gain, at random positions.
    gain: float = 0.0  # Their gain in points of accuracy.


@dataclass(frozen=True)
class Models:
    """Models with several seeds, reduced to what their metric needs."""

    values: FloatArray  # (S,) the metric.
    left_out: FloatArray  # (S, n) the metric without each row.
    case_effect: float  # Effect of one changed row.


@dataclass
class Best:
    """The best so far: probabilities of its rows, and the models that were trained."""

    right: FloatArray  # (n,) expected probability of being right on each row, before seeds.
    models: Models  # What was trained.
    # Random changes that it contains, each (n,).
    changes: list[FloatArray] = field(default_factory=list)


class World:
    """The test rows of one sequence."""

    def __init__(self, setting: Setting, generator: np.random.Generator) -> None:
        self.setting, self.generator = setting, generator
        self.is_hard = generator.random(setting.n) < HARD
        self.labels = generator.integers(0, setting.classes, setting.n)
        other = generator.integers(1, setting.classes, setting.n)
        self.confused = (self.labels + other) % setting.classes
        right = np.where(self.is_hard, HARD_RIGHT, EASY_RIGHT)
        self.best = Best(right, self.trained(right))

    def trained(self, right: FloatArray) -> Models:
        """Return freshly trained models."""
        setting = self.setting
        shift = self.generator.normal(0, setting.noise, (setting.seeds, 1)) * self.is_hard
        drawn = self.generator.random((setting.seeds, setting.n)) < right + shift
        if setting.classes == 2:
            totals = drawn.sum(axis=1, keepdims=True)
            return Models(
                totals[:, 0] / setting.n, (totals - drawn) / (setting.n - 1), 1 / setting.n
            )
        predicted = np.where(drawn, self.labels, self.confused)
        sums = [single_label_sums(self.labels, each, setting.classes) for each in predicted]
        return Models(
            np.array([MACRO_F1.value(each) for each in sums]),
            np.stack([MACRO_F1.leave_one_out(each)[each.pattern_of] for each in sums]),
            MACRO_F1.effect_of_changed_case(sums[0]),
        )

    def random_change(self) -> FloatArray:
        """Return a change with the mean 0 over the population."""
        signs = self.generator.integers(0, 2, self.setting.n) * 2.0 - 1
        return (STEP * signs * self.is_hard).astype(np.float64)


def estimate_of(candidate: Models, best: Models) -> DifferenceEstimate:
    """Return the estimate of `ampft compare`, without its allowance for rare losses.

    A test compares it with `estimate_of_sums`, which is slower.
    """
    per_seed = candidate.values - best.values
    left_out = candidate.left_out - best.left_out
    seeds, n = left_out.shape
    centred = left_out - left_out.mean(axis=1, keepdims=True)
    covariances = (n - 1) / n * centred @ centred.T
    diagonal = float(np.trace(covariances))
    pairs = seeds * (seeds - 1)
    return DifferenceEstimate(
        estimate=float(per_seed.mean()),
        per_seed=per_seed,
        seed_variance=float(np.var(per_seed, ddof=1)),
        jackknife_variance=diagonal / seeds,
        jackknife_covariance=max((float(covariances.sum()) - diagonal) / pairs, 0.0),
        cases=n,
        min_variance=best.case_effect**2,
    )


class Referee:
    """One of the methods, with its memory of a sequence."""

    def __init__(self, method: str, planned: int = TRIES) -> None:
        self.method, self.planned = method, planned
        self.number, self.shown = 0, list[int]()

    def answer(self, estimate: DifferenceEstimate) -> tuple[bool, int, float]:
        """Return whether a candidate is kept, the points shown, and the gain that is seen."""
        self.number += 1
        gain = estimate.estimate
        if self.method == HIGHER:
            return gain > 0, 0, gain
        if self.method in (EACH, BONFERRONI):
            level = ERROR if self.method == EACH else ERROR / self.planned
            allowed = TryErrorBudget(number=self.number, level=level, log_share=0.0)
            return lower_limit(estimate, allowed, gain=gain) > 0, 0, gain
        sealed = self.method == SEALED
        allowed = level_of_try(
            self.number, self.shown, error=ERROR, planned=self.planned, sealed=sealed
        )
        seeds = len(estimate.per_seed)
        question = CandidateCriteria(
            claim=Claim.BETTER, margin=MARGIN, max_seeds=seeds, sealed=sealed
        )
        found = decide(estimate, allowed, question)
        is_kept = found.answer is CandidateAnswer.KEEP
        if is_kept:
            self.shown.append(found.shown_points)
        return is_kept, found.shown_points, 0.0 if sealed else gain


@dataclass
class Counts:
    """What happened in one sequence."""

    false_keeps: int = 0  # Keeps of changes without a gain.
    true_keeps: int = 0  # Keeps of planted gains.
    planted: int = 0  # Planted gains that were tried.
    overstated: int = 0  # Keeps whose shown points exceed the true gain.
    # Accuracy of the last best on these rows - in the population, in points, if nothing was
    # planted.
    score_excess: float = 0.0


def simulate_sequence(setting: Setting, method: str, seed: int) -> Counts:
    """Return what one sequence of tries keeps."""
    generator = np.random.default_rng(seed)
    world, referee, counts = World(setting, generator), Referee(method), Counts()
    positions = set(generator.choice(TRIES, setting.planted, replace=False).tolist())
    tried: list[tuple[FloatArray, float]] = []
    for number in range(TRIES):
        gain = setting.gain if number in positions else 0.0
        change = proposed(world, setting, number, tried, has_gain=gain > 0)
        right = world.best.right + change + gain / 100 / HARD * world.is_hard
        models = world.trained(right)
        is_kept, points, seen = referee.answer(estimate_of(models, world.best.models))
        tried.append((change, seen))
        counts.planted += gain > 0
        if is_kept:
            counts.true_keeps += gain > 0
            counts.false_keeps += gain == 0
            counts.overstated += 100 * MARGIN * points > gain
            changes = [*world.best.changes, change] if change.any() else world.best.changes
            world.best = Best(right, models, changes)
    expected = (1 - HARD) * EASY_RIGHT + HARD * HARD_RIGHT
    counts.score_excess = 100 * (float(world.best.models.values.mean()) - expected)
    return counts


def proposed(
    world: World,
    setting: Setting,
    number: int,
    tried: Sequence[tuple[FloatArray, float]],
    *,
    has_gain: bool,
) -> FloatArray:
    """Return the change that the next try makes, (n,), without its gain."""
    kept = world.best.changes
    if setting.policy == "climber" and has_gain:
        return np.zeros(setting.n)
    if setting.policy == "tuner" and kept and number % 2 and not has_gain:
        return kept[int(world.generator.integers(len(kept)))]
    if setting.policy == "voter" and number >= VOTES:
        signs = [math.copysign(1.0, seen) if seen else 0.0 for _, seen in tried[:VOTES]]
        if any(signs):
            votes = np.sum([s * c for s, (c, _) in zip(signs, tried, strict=False)], axis=0)
            voted: FloatArray = VOTED_STEP * np.sign(votes)
            return voted
    return world.random_change()


def summary(setting: Setting, method: str, every: Sequence[Counts], seconds: float) -> Any:
    """Return the figures of one setting and method."""
    number = len(every)
    share = sum(each.false_keeps > 0 for each in every) / number
    planted = sum(each.planted for each in every)
    excess = [each.score_excess for each in every]
    return {
        **asdict(setting),
        "method": method,
        "sequences": number,
        "share_with_false_keep": share,
        "standard_error": math.sqrt(max(share * (1 - share), 0.0) / number),
        "limit": ERROR + 3 * math.sqrt(ERROR * (1 - ERROR) / number),
        "false_keeps_per_sequence": sum(each.false_keeps for each in every) / number,
        "power": sum(each.true_keeps for each in every) / planted if planted else None,
        "overstated_keeps": sum(each.overstated for each in every),
        "score_excess": None if setting.classes > 2 or planted else float(np.mean(excess)),
        "seconds": round(seconds, 1),
    }


def error_jobs() -> list[tuple[Setting, str, int]]:
    """Return settings of the policies, with methods and numbers of sequences."""
    jobs: list[tuple[Setting, str, int]] = []
    sizes = ((300, 3, 0.01, 120), (1000, 5, 0.01, 120), (1000, 10, 0.04, 80), (5000, 10, 0.01, 30))
    for policy in ("climber", "tuner", "voter"):
        tuned = policy == "tuner"
        for n, seeds, noise, number in sizes:
            setting = Setting(2, n, seeds, noise, policy, 5 * tuned, 4.0 * tuned)
            jobs.append((setting, SEALED, number))
        setting = Setting(2, 1000, 5, 0.01, policy, 5 * tuned, 4.0 * tuned)
        jobs += [(setting, method, 50) for method in METHODS[1:]]
    return jobs


def power_jobs() -> list[tuple[Setting, str, int]]:
    """Return settings with planted gains, likewise."""
    jobs: list[tuple[Setting, str, int]] = []
    for gain in (0.5, 1.0, 2.0, 3.0):
        for n, seeds, number in ((1000, 5, 15), (1000, 10, 15), (5000, 10, 8)):
            setting = Setting(2, n, seeds, 0.01, "climber", planted=3, gain=gain)
            jobs += [(setting, method, number) for method in METHODS[:4]]
    return jobs


def class_jobs() -> list[tuple[Setting, str, int]]:
    """Return settings of macro F1, likewise."""
    sizes = ((12, 1000, 20), (77, 3000, 4))
    return [
        (Setting(classes, n, 10, 0.01, "tuner", planted=5, gain=4.0), SEALED, number)
        for classes, n, number in sizes
    ]


JOBS = {"errors": error_jobs, "power": power_jobs, "classes": class_jobs}


def main() -> None:
    """Simulate all settings and write the results."""
    parser = command_line(__doc__)
    parser.add_argument("--part", choices=tuple(JOBS), default="errors")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of sequences")
    parser.add_argument("--method", choices=METHODS, help="only this one")
    parser.add_argument("--policy", choices=("climber", "tuner", "voter"), help="only this one")
    args = parser.parse_args()
    results, origin = [], provenance()
    for index, (setting, method, planned) in enumerate(JOBS[args.part]()):
        if args.method not in (None, method) or args.policy not in (None, setting.policy):
            continue
        number = max(round(args.scale * planned), 1)
        start = time.perf_counter()
        every = [simulate_sequence(setting, method, 1000 * index + k) for k in range(number)]
        results.append(summary(setting, method, every, time.perf_counter() - start))
        print(json.dumps(results[-1]), flush=True)
        write_results(args.out, {"provenance": origin, "tries": TRIES, "results": results})


if __name__ == "__main__":
    main()
