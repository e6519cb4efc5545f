"""The findings of a learning curve, computed from its runs; curve.json.

What twice the labels would add comes from curves through the scores of nested subsets.

The mean score at n labels is modelled as

    f(n) = a + b h(n / N),    h(x) = (1 - ((x + m) / (1 + m))^-c) / c,

with the largest size N, an exponent c from 0 to 3 and a shift m >= 0. Without a shift it is a power
law: errors fall to a floor (Hestness et al., "Deep learning scaling is predictable, empirically",
2017; Figueroa et al., "Predicting sample size required for classification performance", BMC Medical
Informatics and Decision Making 12, 2012, fit it to subsets and extrapolate); for c = 0 it is a
logarithm, and each doubling adds the same. With a shift the curve starts slowly, as hyperbolas do
(c = 1), and with c = m / r -> infinity it is an exponential, h(x) = 1 - exp(-(x - 1) / r), which
flattens soonest: the families that Viering and Loog ("The shape of learning curves: a review", IEEE
TPAMI 45, 2023) find in use, apart from curves that get worse. Twice the labels add b h(2). With
power laws only, the interval of an exponential curve never held the true gain.

The covariance of the mean scores has two parts, as in `interval`: over seeds, each drawing
its own subsets, s_k^2 / S at each size; over the test cases, the jackknife covariance C between
sizes. Scores of one seed at two sizes share rows, which makes them more alike than is assumed here,
so that differences are known slightly better than stated.

Given the shape, the model is linear, and generalised least squares gives a gain with a variance and
a misfit Q. The interval is the profile of the likelihood over the shapes: all gains whose misfit
exceeds the least misfit by at most 3 F(3, df), the limit for three parameters, because c and m are
unknown on a plateau or at their bounds, where the limit for one covers too little
(`benchmarks/curve_simulation.py`). A curve may also have reached a plateau abruptly, which no shape
does: if the last step may have added nothing, the interval contains 0. The estimate is the mean
over the shapes, weighted by exp(-Q / 2).

If the sizes do not fit, the smallest are left out, because a curve often starts with a part in
which little is learnt; at least `FEWEST_SIZES` must remain. A plateau or a jump that begins with
or after the last size cannot be foreseen. Beyond twice the labels nothing is said: the data
determine the shape too poorly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ampft.comparison.analysis.run_predictions import Cases, RunPredictions, read_run_predictions
from ampft.comparison.execution.comparison_folder import LOGS_NAME, planned_ending, run_folder
from ampft.comparison.execution.plan import Plan, PlannedRun
from ampft.comparison.findings import MetricInfo, metric_info
from ampft.comparison.settings import MIN_SEEDS
from ampft.comparison.statistics.interval import FloatArray, estimate_of_sums, half_widths
from ampft.errors import InputError
from ampft.files import read_hashed
from ampft.metrics.sums import CaseSums, Metric
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.manifest import check_files
from ampft.runs.record import RunRecord
from ampft.text.json_io import from_json
from ampft.text.numbers import Units

CURVE_NAME, SCHEMA = "curve.json", 2
FEWEST_SIZES = 5  # four parameters, and one size to notice that they do not fit
EXPONENTS = np.linspace(0.0, 3.0, 61)
SHIFTS = (0.0, *np.geomspace(0.01, 4.0, 14))
RATES = np.geomspace(0.08, 8.0, 60)  # r of the exponential
MISFIT_LEVEL = 0.1  # p-value of the fit below which the smallest size is left out
LEVEL, TAIL = 0.95, 0.025  # of intervals, and one-sided
LARGEST_FACTOR = 2.0


@dataclass(frozen=True, kw_only=True)
class ScoresBySize:
    """Mean scores at several sizes, higher is better, with their uncertainty."""

    sizes: FloatArray  # (K,) numbers of labels, ascending.
    means: FloatArray  # (K,) mean over the seeds.
    seed_variances: FloatArray  # (K,) variance over the seeds, s^2.
    case_covariance: FloatArray  # (K, K) jackknife covariance over the test cases between seeds.
    seeds: int  # S.
    min_variance: float = 0.0  # Lower bound of the variance of a mean.

    def covariance(self) -> FloatArray:
        """Return the (K, K) covariance of the means.

        The variance over a few seeds at one size is a poor estimate, so it is averaged with their
        mean over the sizes.
        """
        shared = (self.seed_variances + self.seed_variances.mean()) / 2
        values, vectors = np.linalg.eigh(self.case_covariance)
        over_cases = (vectors * np.maximum(values, 0.0)) @ vectors.T
        return np.diag(shared / self.seeds + self.min_variance) + over_cases

    def largest(self, count: int) -> ScoresBySize:
        """Return the same without the smallest sizes, so that `count` remain."""
        part = slice(len(self.sizes) - count, None)
        return replace(
            self,
            sizes=self.sizes[part],
            means=self.means[part],
            seed_variances=self.seed_variances[part],
            case_covariance=self.case_covariance[part, part],
        )


@dataclass(frozen=True, kw_only=True)
class Extrapolation:
    """What more labels would add, if the curve goes on as it is."""

    factor: float  # How many times the labels of the largest size.
    gain: float  # Estimate, in the metric's unit; positive is better.
    interval: tuple[float, float]  # 95 % interval.
    sizes_used: int  # Number of sizes, the largest ones, that the shapes were fitted to.


def extrapolate(scores: ScoresBySize, factor: float = LARGEST_FACTOR) -> Extrapolation | None:
    """Return what `factor` times the labels would add; None if no shape fits.

    Args:
        factor: Above 1, at most 2.

    Raises:
        ValueError: The factor is larger than 2.
    """
    if not 1 < factor <= LARGEST_FACTOR:
        raise ValueError("the data say nothing about more than twice the labels")
    from scipy.special import fdtrc, fdtri, stdtrit

    for count in range(len(scores.sizes), FEWEST_SIZES - 1, -1):
        part = scores.largest(count)
        gains, variances, misfits = _fits(part, factor)
        least = float(misfits.min())
        # Of the variances over seeds, which sizes share by half
        freedom = (part.seeds - 1) * (1 + len(part.sizes)) / 2
        rest = count - 4
        if fdtrc(rest, freedom, least / rest) < MISFIT_LEVEL:
            continue
        room = 3 * float(fdtri(3, freedom, LEVEL)) - (misfits - least)
        allowed = room >= 0
        half = np.sqrt(variances[allowed] * room[allowed])
        low, high = (gains[allowed] - half).min(), (gains[allowed] + half).max()
        last = np.array([-1.0, 1.0])  # of the last two sizes
        step = last @ part.means[-2:]
        error = math.sqrt(last @ part.covariance()[-2:, -2:] @ last)
        if abs(step) <= -float(stdtrit(freedom, TAIL)) * error:
            low, high = min(low, 0.0), max(high, 0.0)
        return Extrapolation(
            factor=factor,
            gain=float(np.average(gains, weights=np.exp(-(misfits - least) / 2))),
            interval=(float(low), float(high)),
            sizes_used=count,
        )
    return None


def _fits(scores: ScoresBySize, factor: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return gain, its variance and the misfit of each shape."""
    weight = np.linalg.inv(scores.covariance())
    ratios = np.append(scores.sizes / scores.sizes[-1], factor)
    shapes = np.array(
        [_shape(ratios, shift, exponent) for shift in SHIFTS for exponent in EXPONENTS]
        + [-np.expm1((1 - ratios) / rate) for rate in RATES]
    )
    shapes /= np.abs(shapes).max(axis=1, keepdims=True)
    curves, added = shapes[:, :-1], shapes[:, -1]
    # Generalised least squares, after the level is taken out.
    level = weight.sum(axis=0) / weight.sum()
    curves = curves - (curves @ level)[:, None]
    rest = scores.means - level @ scores.means
    variances = 1 / np.einsum("ki,ij,kj->k", curves, weight, curves)
    slopes = variances * (curves @ weight @ rest)
    misfits = rest @ weight @ rest - slopes**2 / variances
    return added * slopes, added**2 * variances, misfits


def _shape(ratios: FloatArray, shift: float, exponent: float) -> FloatArray:
    """Return h of the module's docstring."""
    shifted = (ratios + shift) / (1 + shift)
    if math.isclose(exponent, 0.0):
        return np.log(shifted)
    return (1 - shifted**-exponent) / exponent


@dataclass(frozen=True, kw_only=True)
class SizeResult:
    """The runs with one number of labels."""

    labels: int  # Number of labelled rows, including those for validation if they are counted.
    train: int  # Number of training rows.
    scores: tuple[float, ...]  # Score at each seed.
    mean: float  # Their mean.
    interval: tuple[float, float]  # 95 % interval of the mean.


@dataclass(frozen=True, kw_only=True)
class MeasuredGain:
    """The measured gain from one number of labels to the next; positive is better."""

    fewer: int
    more: int
    gain: float
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """A learning curve."""

    name: str  # Name of the data.
    metric: MetricInfo  # Metric of the curve.
    examples: int  # Number of test examples.
    cases: int  # Number of independent test examples.
    seeds: tuple[int, ...]  # Seeds of every size.
    validation_share: float  # Share of the labels that are for validation; 0 if none are counted.
    sizes: tuple[SizeResult, ...]  # Results, by ascending number of labels.
    steps: tuple[MeasuredGain, ...]  # What was measured between neighbouring sizes.
    # What twice the labels of the largest size would add; None if it is not said.
    twice: Extrapolation | None
    reason: str  # Why `twice` is not said; empty otherwise.
    omitted: tuple[int, ...]  # Seeds at which a run has no result.
    settings: str  # Settings of all runs for readers, as flags.
    schema: int = SCHEMA  # Version of this layout.

    @property
    def units(self) -> Units:
        """How values and differences are printed."""
        metric = self.metric
        return Units(metric.title, 0.01, metric.is_share, 1.0 if metric.is_share else None)


def learning_curve(
    plan: Plan,
    folder: Path,
    labels: Mapping[str, int],
    *,
    name: str,
    validation_share: float,
    settings: str,
) -> LearningCurve:
    """Return the curve of finished runs.

    Args:
        labels: Number of labels by arm, ascending.

    Raises:
        InputError: Too few seeds are complete, or the runs have other test rows.
    """
    by_seed: dict[int, dict[str, PlannedRun]] = {}
    for run in plan.runs():
        by_seed.setdefault(run.seed, {})[run.arm.name] = run
    records: list[RunRecord] = []
    read: dict[str, list[RunPredictions]] = {arm: [] for arm in labels}
    cases: Cases | None = None
    omitted = [
        seed
        for seed, runs in by_seed.items()
        if any(planned_ending(folder, run).status != "finished" for run in runs.values())
    ]
    seeds = sorted(set(by_seed) - set(omitted))
    if len(seeds) < MIN_SEEDS:
        raise InputError(
            f"--output_dir {folder}: {len(omitted)} of {len(by_seed)} seeds lack a finished run, "
            f"but a curve needs {MIN_SEEDS} seeds. See {folder / LOGS_NAME}, and repeat the "
            "command to train the missing runs."
        )
    for seed in seeds:
        for arm, run in by_seed[seed].items():
            path = run_folder(folder, run)
            record = planned_ending(folder, run).record
            assert record is not None, "the seed is complete"
            check_files(path, record.files, [PREDICTIONS_NAME])
            predictions = path / PREDICTIONS_NAME
            found, cases = read_run_predictions(predictions, cases, plan.metric, record.metrics)
            read[arm].append(found)
            records.append(record)
    assert cases is not None, "there are seeds"
    prints = {record.data.fingerprints.get(cases.split) for record in records}
    if len(prints) > 1:
        raise InputError(
            f"--output_dir: the runs have {len(prints)} different {cases.split} splits. A learning "
            "curve needs the same test rows in all runs: pass them with --test_file."
        )
    metric = cases.problem.metrics[plan.metric]
    sums = [[each.sums for each in of_arm] for of_arm in read.values()]
    scores = scores_by_size(np.array([*labels.values()], dtype=np.float64), sums, metric)
    twice, reason = _possible(extrapolate(scores), float(scores.means[-1]), metric), ""
    if twice is None:
        reason = "the scores follow none of the shapes, so the curve cannot be extrapolated"
        if len(labels) < FEWEST_SIZES:
            reason = f"{len(labels)} sizes cannot show how the curve bends; pass at least "
            reason += f"{FEWEST_SIZES} with --sizes"
    return LearningCurve(
        name=name,
        metric=metric_info(metric),
        examples=len(cases.truth),
        cases=cases.group_count or len(cases.truth),
        seeds=tuple(seeds),
        validation_share=validation_share,
        sizes=_sizes(plan, labels, read, metric),
        steps=_steps(labels, sums, metric),
        twice=twice,
        reason=reason,
        omitted=tuple(omitted),
        settings=settings,
    )


def scores_by_size(
    sizes: FloatArray, sums: Sequence[Sequence[CaseSums]], metric: Metric
) -> ScoresBySize:
    """Return mean scores with their uncertainty; a metric that is better if lower is negated.

    Args:
        sizes: (K,) numbers of labels, ascending.
        sums: Sums of each size and seed, over the same cases.
        metric: A function of these sums.
    """
    sign = 1.0 if metric.higher_is_better else -1.0
    values = sign * np.array([[metric.value(one) for one in of_size] for of_size in sums])
    _, covariance = _case_covariances(sums, metric)
    return ScoresBySize(
        sizes=sizes,
        means=values.mean(axis=1),
        seed_variances=values.var(axis=1, ddof=1),
        case_covariance=covariance,
        seeds=values.shape[1],
        min_variance=max(metric.effect_of_changed_case(one) for one in sums[-1]) ** 2,
    )


def _case_covariances(
    sums: Sequence[Sequence[CaseSums]], metric: Metric
) -> tuple[FloatArray, FloatArray]:
    """Return J of each size (K,), and the covariances C between seeds and sizes (K, K).

    C between two sizes is the mean over pairs of different seeds: what the test rows have in
    common for models that share nothing else.
    """
    sizes, seeds = len(sums), len(sums[0])
    cases = len(sums[0][0])
    left_out = np.stack(
        [metric.leave_one_out(one)[one.pattern_of] for of_size in sums for one in of_size]
    )
    left_out -= left_out.mean(axis=1, keepdims=True)
    products = (cases - 1) / cases * left_out @ left_out.T
    blocks = products.reshape(sizes, seeds, sizes, seeds).transpose(0, 2, 1, 3)
    diagonals = np.trace(blocks, axis1=2, axis2=3)
    covariances = (blocks.sum(axis=(2, 3)) - diagonals) / (seeds * (seeds - 1))
    variances: FloatArray = diagonals[np.arange(sizes), np.arange(sizes)] / seeds
    return variances, covariances


def _sizes(
    plan: Plan,
    labels: Mapping[str, int],
    read: Mapping[str, Sequence[RunPredictions]],
    metric: Metric,
) -> tuple[SizeResult, ...]:
    """Return the scores of each size, with the interval of their mean as for a difference."""
    sums = [[each.sums for each in of_arm] for of_arm in read.values()]
    variances, covariances = _case_covariances(sums, metric)
    found = []
    for index, (arm, count) in enumerate(labels.items()):
        scores = np.array([each.metrics[metric.name] for each in read[arm]])
        mean = float(scores.mean())
        half = half_widths(
            TAIL,
            seed_variances=np.array([scores.var(ddof=1)]),
            seeds=len(scores),
            jackknife_variance=float(variances[index]),
            covariance=max(float(covariances[index, index]), 0.0),
            cases=len(sums[index][0]),
            min_variance=max(metric.effect_of_changed_case(one) for one in sums[index]) ** 2,
        )
        low, high = mean - float(half[0]), mean + float(half[0])
        found.append(
            SizeResult(
                labels=count,
                train=plan.arm_estimates[arm].size.train_examples,
                scores=tuple(map(float, scores)),
                mean=mean,
                interval=(max(low, 0.0), min(high, 1.0)) if metric.is_share else (low, high),
            )
        )
    return tuple(found)


def _possible(found: Extrapolation | None, score: float, metric: Metric) -> Extrapolation | None:
    """Return the gain without what no score can reach: beyond 1 for shares, below 0 for losses.

    Args:
        found: What more labels would add.
        score: Score with all labels, negated if lower is better.
    """
    most = 1.0 - score if metric.is_share and metric.higher_is_better else math.inf
    most = most if metric.higher_is_better else -score
    if found is None or found.interval[1] <= most:
        return found
    low, high = (min(end, most) for end in found.interval)
    return replace(found, gain=min(found.gain, most), interval=(low, high))


def _steps(
    labels: Mapping[str, int], sums: Sequence[Sequence[CaseSums]], metric: Metric
) -> tuple[MeasuredGain, ...]:
    """Return what was measured between neighbouring sizes, by the statistics of a comparison."""
    found = []
    pairs = zip(itertools.pairwise(labels.values()), itertools.pairwise(sums), strict=True)
    for (fewer, more), (below, above) in pairs:
        sides = (above, below) if metric.higher_is_better else (below, above)
        estimate = estimate_of_sums(*sides, metric)
        found.append(
            MeasuredGain(
                fewer=fewer, more=more, gain=estimate.estimate, interval=estimate.interval(0.95)
            )
        )
    return tuple(found)


def read_curve(path: Path) -> LearningCurve:
    """Read curve.json.

    Raises:
        InputError: The file is missing, damaged, or of another version.
    """
    try:
        values, _ = read_hashed(path, SCHEMA, "Repeat the command.")
        values.pop("sentences", None)
        return from_json(LearningCurve, values, CURVE_NAME)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: this is not a learning curve ({error}).") from error
