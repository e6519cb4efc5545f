"""The findings of a learning curve, computed from its runs; curve.json."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ampft.arguments.compare import MIN_SEEDS
from ampft.comparison.analysis.run_predictions import (
    Cases,
    RunPredictions,
    read_run_predictions,
)
from ampft.comparison.execution.folder import LOGS_NAME, run_ending, run_folder
from ampft.comparison.execution.plan import Plan, PlannedRun
from ampft.comparison.findings import MetricInfo, metric_info
from ampft.comparison.statistics.interval import estimate_of_sums, half_widths
from ampft.comparison.statistics.learning_curve import (
    FEWEST_SIZES,
    TAIL,
    Extrapolation,
    FloatArray,
    ScoresBySize,
    extrapolate,
)
from ampft.errors import InputError
from ampft.metrics.sums import CaseSums, Metric
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.record import RunRecord
from ampft.text.json_io import check_schema, from_json, read_json_object
from ampft.text.numbers import Units

CURVE_NAME, SCHEMA = "curve.json", 1


@dataclass(frozen=True, kw_only=True)
class SizeResult:
    """The runs with one number of labels.

    Attributes:
        labels: Number of labelled rows, including those for validation if they are counted.
        train: Number of training rows.
        scores: Score at each seed.
        mean: Their mean.
        interval: 95 % interval of the mean.
    """

    labels: int
    train: int
    scores: tuple[float, ...]
    mean: float
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What more labels added, measured from one size to the next; positive is better."""

    fewer: int
    more: int
    gain: float
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """A learning curve.

    Attributes:
        name: Name of the data.
        metric: Metric of the curve.
        examples: Number of test examples.
        cases: Number of independent test examples.
        seeds: Seeds of every size.
        validation_share: Share of the labels that are for validation; 0 if none are counted.
        sizes: Results, by ascending number of labels.
        steps: What was measured between neighbouring sizes.
        twice: What twice the labels of the largest size would add; None if it is not said.
        reason: Why `twice` is not said; empty otherwise.
        omitted: Seeds at which a run has no result.
        settings: Settings of all runs for readers, as flags.
        schema: Version of this layout.
    """

    name: str
    metric: MetricInfo
    examples: int
    cases: int
    seeds: tuple[int, ...]
    validation_share: float
    sizes: tuple[SizeResult, ...]
    steps: tuple[Step, ...]
    twice: Extrapolation | None
    reason: str
    omitted: tuple[int, ...]
    settings: str
    schema: int = SCHEMA

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
        plan: Plan whose arms are the sizes.
        folder: Folder of the runs.
        labels: Number of labels by arm, ascending.
        name: Name of the data.
        validation_share: Share of the labels that are for validation.
        settings: Settings of all runs for readers.

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
        if any(run_ending(run_folder(folder, run)).status != "finished" for run in runs.values())
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
            record = run_ending(path).record
            assert record is not None, "the seed is complete"
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
        reason = "the scores do not follow a power law, so the curve does not say how it goes on"
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
        metric: Metric of the score.
    """
    most = 1.0 - score if metric.is_share and metric.higher_is_better else math.inf
    most = most if metric.higher_is_better else -score
    if found is None or found.interval[1] <= most:
        return found
    low, high = (min(end, most) for end in found.interval)
    return replace(found, gain=min(found.gain, most), interval=(low, high))


def _steps(
    labels: Mapping[str, int], sums: Sequence[Sequence[CaseSums]], metric: Metric
) -> tuple[Step, ...]:
    """Return what was measured between neighbouring sizes, by the statistics of a comparison."""
    found = []
    pairs = zip(itertools.pairwise(labels.values()), itertools.pairwise(sums), strict=True)
    for (fewer, more), (below, above) in pairs:
        sides = (above, below) if metric.higher_is_better else (below, above)
        estimate = estimate_of_sums(*sides, metric)
        found.append(
            Step(fewer=fewer, more=more, gain=estimate.estimate, interval=estimate.interval(0.95))
        )
    return tuple(found)


def read_curve(path: Path) -> LearningCurve:
    """Read curve.json.

    Raises:
        InputError: The file is missing, damaged, or of another version.
    """
    try:
        values = read_json_object(path)
        check_schema(path, values, SCHEMA, "Repeat the command.")
        values.pop("sentences", None)
        return from_json(LearningCurve, values, CURVE_NAME)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: this is not a learning curve ({error}).") from error
