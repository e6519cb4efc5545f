"""Compare the runs in folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from ampft.comparison.analysis.class_differences import class_differences
from ampft.comparison.analysis.conditions import command, dates, environment, setup, title
from ampft.comparison.analysis.cost import execution, memory, speed
from ampft.comparison.analysis.curves import curve
from ampft.comparison.analysis.differences import (
    estimate,
    metric_values,
    with_verdicts,
    without_verdict,
)
from ampft.comparison.analysis.flipped_cases import with_shown_cases
from ampft.comparison.analysis.loading import RunGroup, find_runs, group_runs
from ampft.comparison.analysis.predictions import (
    calibration_bins,
    class_figures,
    flips,
    read_texts,
    summed_confusion,
)
from ampft.comparison.analysis.run_predictions import (
    PREDICTIONS_FP32_NAME,
    PREDICTIONS_NAME,
    Cases,
    RunPredictions,
    cases_of,
    check_metric,
    check_recorded,
    read_run_predictions,
)
from ampft.comparison.analysis.settings import Arms, form_arms
from ampft.comparison.analysis.stamps import all_stamps, group_stamps
from ampft.comparison.analysis.subgroup_losses import with_subgroup_losses
from ampft.comparison.findings import (
    CALIBRATION_ERROR,
    PRECISION,
    ArmResult,
    ClassDifference,
    Comparison,
    Difference,
    MetricInfo,
    PlanFacts,
    RunOutcome,
)
from ampft.comparison.statistics.interim import alpha_per_analysis
from ampft.comparison.statistics.interval import MIN_SEEDS
from ampft.comparison.verdict_text import verdict_texts
from ampft.errors import InputError
from ampft.metrics.sums import Metric
from ampft.precision.modes import BASELINE
from ampft.runs.predictions import read_predictions
from ampft.runs.show import problem_of, task_row
from ampft.tasks.outcome import Problem

ALPHA = 0.05
CALIBRATION = MetricInfo(name=CALIBRATION_ERROR, title="calibration error", higher_is_better=False)
FINAL_SPLITS = ("test", "validation")  # a run reports on the first of these that it has


@dataclass(frozen=True)
class _ArmPredictions:
    """The predictions of an arm by seed.

    Attributes:
        in_mode: Predictions in the mode of the arm.
        in_fp32: Predictions of the same models in float32; None unless all runs have them.
    """

    in_mode: tuple[RunPredictions, ...]
    in_fp32: tuple[RunPredictions, ...] | None


@dataclass(frozen=True)
class _Evidence:
    """Everything that the results of the arms are computed from."""

    groups: tuple[RunGroup, ...]
    cases: Cases
    predictions: dict[str, _ArmPredictions]
    differences: dict[str, Difference]
    differences_fp32: dict[str, Difference]
    metric: str
    class_differences: Mapping[str, Sequence[ClassDifference | None]] = field(default_factory=dict)

    @property
    def baseline(self) -> RunGroup:
        return self.groups[0]


def compare_folders(
    folders: Sequence[Path],
    *,
    metric: str | None = None,
    margin: float = 0.01,
    baseline: str | None = None,
    by: Sequence[str] = (),
    plan: PlanFacts | None = None,
) -> Comparison:
    """Compare runs that differ in precision or in other settings.

    Args:
        folders: Output folders of runs, or of comparisons, which stand for their runs.
        metric: Name of the primary metric; None uses the primary metric of the runs' task.
        margin: Equivalence margin as a fraction (0.01 is one point).
        baseline: Name of the arm that all others are compared with; None for fp32 if the arms are
            modes, otherwise for the arm of the first run.
        by: Settings that distinguish the arms; empty for the precision if there are runs in several
            modes, otherwise for all settings in which the runs differ.
        plan: Facts about all runs together; None for runs without a plan.

    Raises:
        InputError: The runs cannot be read or compared, or an argument is out of range.
    """
    check_margin(margin)
    plan = plan or PlanFacts()
    arms_of_runs = form_arms(find_runs(folders), by=by, planned=plan.arm_names)
    groups = _groups(arms_of_runs, baseline)
    problem = problem_of(groups[0].runs[0].record)
    metric = metric or next(iter(problem.metrics))
    check_metric(metric, problem)
    varied = arms_of_runs.varied
    stamps = all_stamps(groups, plan, varied)
    seeds = tuple(run.seed for run in groups[0].runs)
    seed_counts = plan.seed_counts or (len(seeds),)
    alpha = alpha_per_analysis(seed_counts, ALPHA)
    evidence = _evidence(groups, problem.metrics[metric], margin=margin, alpha=alpha)
    arms: tuple[ArmResult, ...] = tuple(
        replace(
            _arm_result(group, evidence, are_modes=varied == (PRECISION,), in_turns=plan.planned),
            settings=arms_of_runs.settings.get(group.settings_name, {}),
        )
        for group in groups
    )
    in_mode = {name: each.in_mode for name, each in evidence.predictions.items()}
    arms = with_shown_cases(arms, groups, in_mode, evidence.cases)
    kind = task_row(groups[0].runs[0].record).kind
    texts = partial(read_texts, groups[0].runs[0].folder / PREDICTIONS_NAME)
    arms = with_subgroup_losses(
        arms,
        in_mode,
        evidence.cases,
        texts if kind.has_words else None,
        noun=f"{kind.case}s",
    )
    records = [(group.finished or group.runs)[0].record for group in groups]
    if varied == (PRECISION,):
        records = records[:1]
    comparison = Comparison(
        title=title(records),
        metric=metric,
        metrics=metric_infos(problem),
        margin=margin,
        margin_share_of_errors=share_of_errors(arms[0], problem.metrics[metric], margin),
        alpha=alpha,
        seed_counts=seed_counts,
        seeds=seeds,
        split=evidence.cases.split,
        examples=len(evidence.cases.truth),
        groups=len(evidence.cases.groups) if evidence.cases.groups else None,
        label_names=evidence.cases.class_names,
        arms=arms,
        verdicts=(),
        stamps=(*stamps, *group_stamps(evidence.cases)),
        setup=setup(records),
        environment=environment(records[0]),
        yardstick=plan.yardstick,
        overhead_share=plan.overhead_share,
        planned=plan.planned,
        varied=varied,
        dates=dates([run.record for group in groups for run in group.runs]),
        command=command(groups[0].runs[0].record),
    )
    return replace(comparison, verdicts=verdict_texts(comparison))


def _groups(arms: Arms, baseline: str | None) -> tuple[RunGroup, ...]:
    """Return the runs of each arm, the baseline first."""
    if baseline is None:
        baseline = BASELINE if arms.varied == (PRECISION,) else arms.first
    elif arms.settings and baseline not in arms.names:
        values = [name for name in arms.names if baseline in arms.settings[name].values()]
        baseline = values[0] if len(values) == 1 else baseline
    return group_runs(arms.runs, baseline=baseline, order=arms.names)


def check_margin(margin: float) -> None:
    """Check that an equivalence margin, as a fraction, is between 0 and 1.

    Raises:
        InputError: It is not.
    """
    if not 0 < margin < 1:
        raise InputError(
            f"--margin {100 * margin:g}: the margin must be above 0 and below 100 points. Use a "
            "value such as 1 for one point."
        )


def metric_infos(problem: type[Problem]) -> tuple[MetricInfo, ...]:
    """Return all metrics that arms have: those with intervals, then the calibration error."""
    infos = [
        MetricInfo(
            name=metric.name,
            title=metric.title,
            higher_is_better=metric.higher_is_better,
            is_share=metric.is_share,
        )
        for metric in problem.metrics.values()
    ]
    return (*infos, CALIBRATION)


def share_of_errors(baseline: ArmResult, metric: Metric, margin: float) -> float | None:
    """Return the margin over the baseline's distance from a perfect metric; None if undefined."""
    values = baseline.metrics.get(metric.name)
    if values is None or not metric.is_share or values.mean >= 1:
        return None
    return margin / (1 - values.mean)


def _evidence(
    groups: tuple[RunGroup, ...], metric: Metric, *, margin: float, alpha: float
) -> _Evidence:
    cases: Cases | None = None
    predictions: dict[str, _ArmPredictions] = {}
    for group in groups:
        if group.status == "complete":
            predictions[group.name], cases = _read_arm(group, cases, metric.name)
    cases = cases or _cases_without_complete_arms(groups)
    base = predictions.get(groups[0].name)
    evidence = _Evidence(groups, cases, predictions, {}, {}, metric.name)
    if base is None or len(groups[0].runs) < MIN_SEEDS:
        return evidence
    base_fp32 = base.in_mode if groups[0].mode == BASELINE else base.in_fp32
    estimates, estimates_fp32 = {}, {}
    for group in groups[1:]:
        arm = predictions.get(group.name)
        if arm is None:
            continue
        estimates[group.name] = estimate(arm.in_mode, base.in_mode, metric)
        if arm.in_fp32 and base_fp32:
            estimates_fp32[group.name] = estimate(arm.in_fp32, base_fp32, metric)
    judged = {
        group.name: estimates[group.name]
        for group in groups
        if group.name in estimates and not group.is_placebo
        if not (group.is_suspect or groups[0].is_suspect)
    }
    return replace(
        evidence,
        differences=with_verdicts(judged, metric, margin=margin, alpha=alpha)
        | {
            name: without_verdict(each, alpha=alpha)
            for name, each in estimates.items()
            if name not in judged
        },
        differences_fp32={
            name: without_verdict(each, alpha=alpha) for name, each in estimates_fp32.items()
        },
        class_differences=class_differences(
            {name: predictions[name].in_mode for name in estimates},
            base.in_mode,
            judged=judged,
            alpha=alpha,
        ),
    )


def _cases_without_complete_arms(groups: tuple[RunGroup, ...]) -> Cases:
    """Return the cases if no arm is complete, because divergence is a result to report.

    Raises:
        InputError: Runs are missing, and none diverged, which would have been a result.
    """
    if all(group.status != "unstable" for group in groups):
        listed = ", ".join(f"{group.name} {group.status_words()}" for group in groups)
        raise InputError(
            f"RUN: no arm has finished runs with every seed ({listed}), so there is nothing to "
            "compare. Train the missing runs, or omit those seeds."
        )
    for group in groups:
        for run in group.finished:
            path = run.folder / PREDICTIONS_NAME
            return cases_of(path, read_predictions(path))
    record = groups[0].runs[0].record
    split = next((name for name in FINAL_SPLITS if name in record.data.examples), FINAL_SPLITS[0])
    # Without any predictions, only the number of cases is used, not their labels.
    labels = np.zeros(record.data.examples.get(split, 0), dtype=np.int64)
    path = groups[0].runs[0].folder / PREDICTIONS_NAME
    names = tuple(record.label_names)
    kind = problem_of(record).name
    return Cases(
        path=path, kind=kind, split=split, truth=labels, label_names=names, class_names=names
    )


def _read_arm(group: RunGroup, cases: Cases | None, metric: str) -> tuple[_ArmPredictions, Cases]:
    """Read the predictions of an arm, one run at a time."""
    in_mode: list[RunPredictions] = []
    in_fp32: list[RunPredictions] = []
    for run in group.runs:
        path = run.folder / PREDICTIONS_NAME
        predictions, cases = read_run_predictions(path, cases, metric)
        check_recorded(path, predictions, run.record.metrics, cases.problem)
        in_mode.append(predictions)
        path = run.folder / PREDICTIONS_FP32_NAME
        if group.mode != BASELINE and path.exists():  # for fp32 they would be the same
            predictions, cases = read_run_predictions(path, cases, metric)
            check_recorded(path, predictions, run.record.metrics_fp32, cases.problem)
            in_fp32.append(predictions)
    assert cases is not None
    has_fp32 = len(in_fp32) == len(in_mode)
    return _ArmPredictions(tuple(in_mode), tuple(in_fp32) if has_fp32 else None), cases


def _arm_result(
    group: RunGroup, evidence: _Evidence, *, are_modes: bool, in_turns: bool
) -> ArmResult:
    """Compute the results of an arm."""
    baseline = evidence.baseline
    arm = evidence.predictions.get(group.name)
    is_baseline = group is baseline
    base = None if is_baseline else evidence.predictions.get(baseline.name)
    tf32 = next((other for other in evidence.groups if other.name == "tf32"), None)
    summaries = [run.record.precision.summary for run in (*group.finished, *group.runs)]
    predictions = arm.in_mode if arm else ()
    return ArmResult(
        name=group.name,
        mode=group.mode,
        is_placebo=group.is_placebo,
        execution=execution(group),
        executed=next((summary for summary in summaries if summary), None),
        status=group.status,
        status_words=group.status_words(),
        runs=tuple(
            RunOutcome(
                seed=run.seed,
                status=run.record.status,
                reason=run.record.reason,
                folder=run.folder.resolve().name,
                warnings=tuple(run.record.warnings.values()),
            )
            for run in group.runs
        ),
        metrics=metric_values(predictions) if predictions else {},
        metrics_fp32=metric_values(arm.in_fp32) if arm and arm.in_fp32 else {},
        difference=evidence.differences.get(group.name),
        difference_fp32=evidence.differences_fp32.get(group.name),
        speed=speed(group, baseline, tf32, in_turns=in_turns, explain=are_modes),
        memory=memory(group, baseline),
        skipped_steps=tuple(run.record.steps.skipped for run in group.runs),
        total_steps=tuple(
            run.record.steps.applied + run.record.steps.skipped for run in group.runs
        ),
        flips=flips(
            evidence.cases,
            predictions,
            base.in_mode,
            partial(read_texts, baseline.runs[0].folder / PREDICTIONS_NAME),
        )
        if predictions and base
        else None,
        classes=class_figures(
            evidence.cases.class_names,
            predictions,
            base.in_mode if base else None,
            evidence.class_differences.get(group.name, ()),
        )
        if predictions
        else (),
        confusion=summed_confusion(predictions) if predictions else (),
        calibration=calibration_bins(predictions) if predictions else (),
        curves=tuple(curve(run, evidence.metric) for run in group.runs),
    )
