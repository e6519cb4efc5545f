"""From the folders of runs to everything that a comparison found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ampft.comparison.analysis.answers import (
    PREDICTIONS_FP32_NAME,
    PREDICTIONS_NAME,
    Answers,
    Questions,
    check_metric,
    check_recorded,
    questions_of,
    read_answers,
)
from ampft.comparison.analysis.conditions import environment, setup, title
from ampft.comparison.analysis.cost import is_emulated, memory, speed
from ampft.comparison.analysis.curves import curve
from ampft.comparison.analysis.differences import decided, estimate, explored, metric_values
from ampft.comparison.analysis.loading import RunGroup, find_runs, group_runs
from ampft.comparison.analysis.predictions import (
    calibration_bins,
    class_figures,
    flips,
    summed_confusion,
)
from ampft.comparison.analysis.stamps import all_stamps
from ampft.comparison.findings import (
    CALIBRATION_ERROR,
    ArmResult,
    Comparison,
    Difference,
    MetricInfo,
    PlanFacts,
    RunOutcome,
)
from ampft.comparison.statistics.interim import alpha_per_look
from ampft.comparison.statistics.interval import FEWEST_SEEDS
from ampft.comparison.verdict_text import verdict_texts
from ampft.errors import InputError
from ampft.metrics.sums import Metric
from ampft.precision.modes import BASELINE
from ampft.runs.predictions import read_predictions
from ampft.runs.show import problem_of
from ampft.tasks.outcome import Problem

ALPHA = 0.05
CALIBRATION = MetricInfo(name=CALIBRATION_ERROR, title="calibration error", higher_is_better=False)
FINAL_SPLITS = ("test", "validation")  # of which a run reports the first that it has


@dataclass(frozen=True)
class _Answered:
    """The answers of an arm by seed; `fp32` of its models in float32, where all runs have them."""

    own: tuple[Answers, ...]
    fp32: tuple[Answers, ...] | None


@dataclass(frozen=True)
class _Evidence:
    """All that is known of a comparison's arms before it is put into figures."""

    groups: tuple[RunGroup, ...]
    questions: Questions
    answered: dict[str, _Answered]
    differences: dict[str, Difference]
    differences_fp32: dict[str, Difference]
    metric: str

    @property
    def baseline(self) -> RunGroup:
        return self.groups[0]


def compare_folders(
    folders: Sequence[Path],
    *,
    metric: str | None = None,
    margin: float = 0.01,
    baseline: str = BASELINE,
    plan: PlanFacts | None = None,
) -> Comparison:
    """Compare runs that differ only in precision; the order of the folders does not matter.

    Args:
        folders: Output folders of runs, or of comparisons, whose runs are meant.
        metric: Name of the primary metric; `None` for that of the runs' task.
        margin: Differences within it count as none; a fraction, 0.01 is one point.
        baseline: The mode that all others are compared with.
        plan: What was decided about all runs together; `None` for runs that nobody planned.

    Raises:
        InputError: The runs cannot be read or compared, or an argument is out of range.
    """
    if not 0 < margin < 1:
        raise InputError(
            f"--margin {100 * margin:g}: give points between 0 and 100, such as 1 for one point"
        )
    plan = plan or PlanFacts()
    groups = group_runs(find_runs(folders), baseline=baseline)
    problem = problem_of(groups[0].runs[0].record)
    metric = metric or next(iter(problem.metrics))
    check_metric(metric, problem)
    stamps = all_stamps(groups, plan)
    seeds = tuple(run.seed for run in groups[0].runs)
    looks = plan.looks or (len(seeds),)
    alpha = alpha_per_look(looks, ALPHA)
    evidence = _evidence(groups, problem.metrics[metric], margin=margin, alpha=alpha)
    arms = tuple(_arm(group, evidence) for group in groups)
    record = (groups[0].finished or groups[0].runs)[0].record
    comparison = Comparison(
        title=title(record),
        metric=metric,
        metrics=metric_infos(problem),
        margin=margin,
        margin_share_of_errors=_share_of_errors(arms[0], problem.metrics[metric], margin),
        alpha=alpha,
        looks=looks,
        seeds=seeds,
        split=evidence.questions.split,
        examples=len(evidence.questions.truth),
        label_names=evidence.questions.label_names,
        arms=arms,
        verdicts=(),
        stamps=stamps,
        setup=setup(record),
        environment=environment(record),
        yardstick=plan.yardstick,
        overhead_share=plan.overhead_share,
        planned=plan.planned,
    )
    return replace(comparison, verdicts=verdict_texts(comparison))


def metric_infos(problem: type[Problem]) -> tuple[MetricInfo, ...]:
    """Return all metrics that arms have: those with intervals, then the calibration error."""
    found = [
        MetricInfo(
            name=metric.name,
            title=metric.title,
            higher_is_better=metric.higher_is_better,
            is_share=metric.is_share,
        )
        for metric in problem.metrics.values()
    ]
    return (*found, CALIBRATION)


def _share_of_errors(baseline: ArmResult, metric: Metric, margin: float) -> float | None:
    """Return the margin over what the baseline lacks of a perfect metric; None if there is none."""
    values = baseline.metrics.get(metric.name)
    if values is None or not metric.is_share or values.mean >= 1:
        return None
    return margin / (1 - values.mean)


def _evidence(
    groups: tuple[RunGroup, ...], metric: Metric, *, margin: float, alpha: float
) -> _Evidence:
    questions: Questions | None = None
    answered: dict[str, _Answered] = {}
    for group in groups:
        if group.status == "complete":
            answered[group.name], questions = _read(group, questions, metric.name)
    questions = questions or _unanswered(groups)
    base = answered.get(groups[0].name)
    evidence = _Evidence(groups, questions, answered, {}, {}, metric.name)
    if base is None or len(groups[0].runs) < FEWEST_SEEDS:
        return evidence
    base_fp32 = base.own if groups[0].mode == BASELINE else base.fp32
    estimates, in_fp32 = {}, {}
    for group in groups[1:]:
        found = answered.get(group.name)
        if found is None:
            continue
        estimates[group.name] = estimate(found.own, base.own, metric)
        if found.fp32 and base_fp32:
            in_fp32[group.name] = estimate(found.fp32, base_fp32, metric)
    placebos = {group.name for group in groups if group.is_placebo}
    modes = {name: each for name, each in estimates.items() if name not in placebos}
    return replace(
        evidence,
        differences=decided(modes, metric, margin=margin, alpha=alpha)
        | {name: explored(estimates[name], alpha=alpha) for name in placebos & set(estimates)},
        differences_fp32={name: explored(each, alpha=alpha) for name, each in in_fp32.items()},
    )


def _unanswered(groups: tuple[RunGroup, ...]) -> Questions:
    """Return the questions where no arm is whole: that modes diverge is a result to report.

    Raises:
        InputError: No run diverged: runs are missing, which is no result.
    """
    if all(group.status != "unstable" for group in groups):
        words = ", ".join(f"{group.name} {group.status_words()}" for group in groups)
        raise InputError(
            f"RUN: no mode has finished runs at every seed ({words}), so there is nothing to "
            "compare; train what is missing, or leave those seeds away"
        )
    for group in groups:
        for run in group.finished:
            path = run.folder / PREDICTIONS_NAME
            return questions_of(path, read_predictions(path))
    record = groups[0].runs[0].record
    split = next((name for name in FINAL_SPLITS if name in record.data.examples), FINAL_SPLITS[0])
    # Nobody answered them: their number is shown, and no label is looked at.
    nothing = np.zeros(record.data.examples.get(split, 0), dtype=np.int64)
    path = groups[0].runs[0].folder / PREDICTIONS_NAME
    names = tuple(record.label_names)
    kind = problem_of(record).name
    return Questions(path=path, kind=kind, split=split, truth=nothing, label_names=names)


def _read(group: RunGroup, questions: Questions | None, metric: str) -> tuple[_Answered, Questions]:
    """Read the predictions of an arm, one run at a time."""
    own: list[Answers] = []
    fp32: list[Answers] = []
    for run in group.runs:
        path = run.folder / PREDICTIONS_NAME
        answers, questions = read_answers(path, questions, metric)
        check_recorded(path, answers, run.record.metrics, questions.problem)
        own.append(answers)
        path = run.folder / PREDICTIONS_FP32_NAME
        if group.mode != BASELINE and path.exists():  # in fp32 they would be the same again
            answers, questions = read_answers(path, questions, metric)
            check_recorded(path, answers, run.record.metrics_fp32, questions.problem)
            fp32.append(answers)
    assert questions is not None
    return _Answered(tuple(own), tuple(fp32) if len(fp32) == len(own) else None), questions


def _arm(group: RunGroup, evidence: _Evidence) -> ArmResult:
    """Put what is known of an arm into figures."""
    baseline = evidence.baseline
    found = evidence.answered.get(group.name)
    is_baseline = group is baseline
    base = None if is_baseline else evidence.answered.get(baseline.name)
    tf32 = next((other for other in evidence.groups if other.name == "tf32"), None)
    summaries = [run.record.precision.summary for run in (*group.finished, *group.runs)]
    own = found.own if found else ()
    return ArmResult(
        name=group.name,
        mode=group.mode,
        is_placebo=group.is_placebo,
        execution="emulated" if is_emulated(group) else "native",
        executed=next((summary for summary in summaries if summary), None),
        status=group.status,
        status_words=group.status_words(),
        runs=tuple(
            RunOutcome(
                seed=run.seed,
                status=run.record.status,
                reason=run.record.reason,
                folder=run.folder.resolve().name,
            )
            for run in group.runs
        ),
        metrics=metric_values(own) if own else {},
        metrics_fp32=metric_values(found.fp32) if found and found.fp32 else {},
        difference=evidence.differences.get(group.name),
        difference_fp32=evidence.differences_fp32.get(group.name),
        speed=speed(group, baseline, tf32),
        memory=memory(group, baseline),
        skipped_steps=tuple(run.record.steps.skipped for run in group.runs),
        total_steps=tuple(
            run.record.steps.applied + run.record.steps.skipped for run in group.runs
        ),
        flips=flips(evidence.questions, own, base.own, baseline.runs[0].folder / PREDICTIONS_NAME)
        if own and base
        else None,
        classes=class_figures(evidence.questions.label_names, own, base.own if base else None)
        if own
        else (),
        confusion=summed_confusion(own) if own else (),
        calibration=calibration_bins(own) if own else (),
        curves=tuple(curve(run, evidence.metric) for run in group.runs),
    )
