"""Compare the runs in folders, and show the cases whose predictions changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import NoneType

import numpy as np

from ampft.comparison.analysis import run_figures
from ampft.comparison.analysis.loading import (
    ArmAssignment,
    RunGroup,
    find_runs,
    form_arms,
    group_runs,
)
from ampft.comparison.analysis.predictions import (
    ALPHA,
    ArmPredictions,
    check_margin,
    read_texts,
    with_prediction_results,
)
from ampft.comparison.analysis.run_predictions import (
    PREDICTIONS_FP32_NAME,
    CaseInputs,
    Cases,
    RunPredictions,
    cases_from_outcome,
    primary_metric,
    read_run_predictions,
)
from ampft.comparison.analysis.stamps import all_stamps, side_by_side_stamps
from ampft.comparison.findings import (
    DISTURBED,
    PRECISION,
    ArmResult,
    Comparison,
    FlippedExample,
    PlanFacts,
    RunOutcome,
    metric_infos,
)
from ampft.comparison.statistics.verdict import alpha_per_analysis
from ampft.errors import InputError, check_type
from ampft.files import describe_file
from ampft.kinds.views import CasePrediction
from ampft.precision.modes import BASELINE
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.manifest import RECORD_NAME
from ampft.runs.predictions import CaseViewer, is_input, read_groups, read_predictions, read_rows
from ampft.runs.run_text import problem_of, task_row

FINAL_SPLITS = ("test", "validation")  # a run reports on the first of these that it has


def compare_folders(
    folders: Sequence[str | Path] | str | Path,
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
    check_type("compare_folders", "folders", folders, (list, tuple, str, Path))
    given = [folders] if isinstance(folders, str | Path) else folders
    for each in given:
        check_type("compare_folders", "each of folders", each, (str, Path))
    check_type("compare_folders", "metric", metric, (str, NoneType))
    check_type("compare_folders", "baseline", baseline, (str, NoneType))
    check_type("compare_folders", "by", by, (list, tuple))
    check_margin(margin)
    if not given:
        raise InputError("RUN: no run was given. Pass the --output_dir of at least two runs.")
    plan = plan or PlanFacts()
    arms = form_arms(find_runs(list(map(Path, given))), by=by, planned=plan.arm_names)
    if baseline is None:
        baseline = BASELINE if arms.varied == (PRECISION,) else arms.runs[0].name
    elif arms.settings and baseline not in arms.names:
        values = [name for name in arms.names if baseline in arms.settings[name].values()]
        baseline = values[0] if len(values) == 1 else baseline
    groups = group_runs(arms.runs, baseline=baseline, order=arms.names)
    first = groups[0].runs[0]
    problem, kind = problem_of(first.record), task_row(first.record).kind
    metric = primary_metric(metric, problem)
    stamps = all_stamps(groups, plan, arms.varied)
    seeds = tuple(run.seed for run in groups[0].runs)
    seed_counts = plan.seed_counts or (len(seeds),)
    alpha = alpha_per_analysis(seed_counts, ALPHA)
    predictions, cases = _read_predictions(groups, metric)
    records = [(group.finished or group.runs)[0].record for group in groups]
    if arms.varied == (PRECISION,):
        records = records[:1]
    days = sorted(run.record.started.partition("T")[0] for group in groups for run in group.runs)
    draft = Comparison(
        title=run_figures.title(records),
        metric=metric,
        metrics=metric_infos(problem),
        margin=margin,
        alpha=alpha,
        seed_counts=seed_counts,
        seeds=seeds,
        split=cases.split,
        examples=len(cases.truth),
        groups=cases.group_count,
        label_names=cases.class_names,
        arms=tuple(_arm_of_runs(group, groups, arms, plan, metric) for group in groups),
        stamps=stamps,
        setup=run_figures.shared_settings(records),
        environment=run_figures.environment(records[0]),
        yardstick=plan.yardstick,
        overhead_share=plan.overhead_share,
        planned=plan.planned,
        varied=arms.varied,
        dates=(days[0], days[-1]),
        command=run_figures.command(first.record),
    )
    texts = partial(read_texts, first.folder / PREDICTIONS_NAME)
    inputs = CaseInputs(texts, f"{kind.case}s", has_words=kind.has_words)
    comparison = with_prediction_results(draft, predictions, replace(cases, inputs=inputs))
    return replace(comparison, arms=_with_shown_cases(comparison.arms, groups, predictions, cases))


def _read_predictions(
    groups: Sequence[RunGroup], metric: str
) -> tuple[dict[str, ArmPredictions], Cases]:
    """Return the predictions of the complete arms by name, and the cases that they predict."""
    cases: Cases | None = None
    predictions: dict[str, ArmPredictions] = {}
    for group in groups:
        if group.status != "complete":
            continue
        in_mode: list[RunPredictions] = []
        in_fp32: list[RunPredictions] = []
        for run in group.runs:
            path, record = run.folder / PREDICTIONS_NAME, run.record
            found, cases = read_run_predictions(path, cases, metric, record.metrics)
            in_mode.append(found)
            path = run.folder / PREDICTIONS_FP32_NAME
            if group.mode != BASELINE and path.exists():  # for fp32 they would be the same
                found, cases = read_run_predictions(path, cases, metric, record.metrics_fp32)
                in_fp32.append(found)
        has_fp32 = len(in_fp32) == len(in_mode)
        predictions[group.name] = ArmPredictions(in_mode, in_fp32 if has_fp32 else None)
    return predictions, cases or _cases_without_complete_arms(groups)


def _cases_without_complete_arms(groups: Sequence[RunGroup]) -> Cases:
    """Return the cases if no arm is complete, because divergence is a result to report.

    Raises:
        InputError: Runs are missing, and none diverged, which would have been a result.
    """
    if all(group.status != "unstable" for group in groups):
        listed = ", ".join(f"{group.name} {group.status_words}" for group in groups)
        raise InputError(
            f"RUN: no arm has finished runs with every seed ({listed}), so there is nothing to "
            "compare. Train the missing runs, or omit those seeds."
        )
    for group in groups:
        for run in group.finished:
            path = run.folder / PREDICTIONS_NAME
            return cases_from_outcome(path, read_predictions(path), read_groups(path))
    record = groups[0].runs[0].record
    split = next((name for name in FINAL_SPLITS if name in record.data.examples), FINAL_SPLITS[0])
    names = tuple(record.label_names)
    return Cases(
        path=groups[0].runs[0].folder / PREDICTIONS_NAME,
        kind=problem_of(record).name,
        split=split,
        # Without any predictions, only the number of cases is used, not their labels.
        truth=np.zeros(record.data.examples.get(split, 0), dtype=np.int64),
        label_names=names,
        class_names=names,
    )


def _arm_of_runs(
    group: RunGroup, groups: Sequence[RunGroup], arms: ArmAssignment, plan: PlanFacts, metric: str
) -> ArmResult:
    """Return an arm with all that its runs recorded, without what its predictions show."""
    summaries = [run.record.precision.summary for run in (*group.finished, *group.runs)]
    steps = [run.record.steps for run in group.runs]
    remarks = side_by_side_stamps(groups, plan)
    in_turns = plan.planned and not any(each.kind in DISTURBED for each in remarks)
    return ArmResult(
        name=group.name,
        mode=group.mode,
        is_placebo=group.is_placebo,
        execution=run_figures.execution_kind(group),
        executed=next((summary for summary in summaries if summary), None),
        status=group.status,
        runs=tuple(
            RunOutcome(
                seed=run.seed,
                status=run.record.status,
                reason=run.record.reason,
                folder=run.folder.resolve().name,
                warnings=run.record.training_warnings,
                node=plan.nodes.get(run.folder.resolve().name),
                record_sha256=describe_file(run.folder / RECORD_NAME).sha256,
            )
            for run in group.runs
        ),
        speed=run_figures.speed(
            group, groups, in_turns=in_turns, explain=arms.varied == (PRECISION,)
        ),
        memory=run_figures.memory(group, groups[0]),
        skipped_steps=tuple(each.skipped for each in steps),
        total_steps=tuple(each.applied + each.skipped for each in steps),
        curves=tuple(run_figures.curve(run, metric) for run in group.runs),
        settings=arms.settings.get(group.runs[0].name, {}),
    )


MAX_SHOWN = 20  # examples of all arms together, which keeps the page small


def _with_shown_cases(
    arms: Sequence[ArmResult],
    groups: Sequence[RunGroup],
    predictions: Mapping[str, ArmPredictions],
    cases: Cases,
) -> tuple[ArmResult, ...]:
    """Return the arms with at most `MAX_SHOWN` of their changed examples shown as what they are.

    Texts are left as they are, because the tables of the report contain them.
    """
    record = groups[0].runs[0].record
    changed = [arm for arm in arms if arm.flips is not None and arm.flips.examples]
    if task_row(record).kind.view is None or not changed:
        return tuple(arms)
    views = CaseViewer(record, cases.split, cases.label_names)
    limit = max(1, MAX_SHOWN // len(changed))

    def shown(group: RunGroup, example: FlippedExample) -> FlippedExample:
        case, sides = example.example_id, (groups[0], group)
        choices = [[p.choices[case] for p in predictions[side.name].in_mode] for side in sides]
        pairs = zip(*choices, strict=True)
        seed = next(seed for seed, (one, two) in enumerate(pairs) if (one != two).any())
        both = [
            CasePrediction(side.name, of_side[seed], side.runs[seed].folder / PREDICTIONS_NAME)
            for side, of_side in zip(sides, choices, strict=True)
        ]
        inputs = read_rows(both[0].path, [case], is_input)[case]
        view = views.show(case, inputs, cases.truth[case], both)
        return example if view.texts else replace(example, shown=view)

    result = []
    for arm, group in zip(arms, groups, strict=True):
        if arm.flips is not None:
            examples = arm.flips.examples
            first = tuple(shown(group, example) for example in examples[:limit])
            arm = replace(arm, flips=replace(arm.flips, examples=(*first, *examples[limit:])))
        result.append(arm)
    return tuple(result)
