"""What is printed about a plan: its arms and runs, what it can show, its time and disk space."""

from __future__ import annotations

import math
import shlex
import shutil
from pathlib import Path

from ampft.comparison.execution.plan import Arm, Plan, PlannedRun, keeps_model
from ampft.comparison.remarks import remark_texts
from ampft.comparison.settings import ComparisonDesign
from ampft.comparison.statistics.power import DetectionLimits, detection_limits
from ampft.comparison.statistics.verdict import alpha_per_analysis
from ampft.files import nearest_existing
from ampft.processes import RAY
from ampft.tasks.table import problem_types
from ampft.text.numbers import approximate_duration, counted, in_epochs
from ampft.text.terminal import labelled


def plan_lines(
    folder: Path, plan: Plan, todo: tuple[PlannedRun, ...], keep_models: str = "all"
) -> str:
    """Return a description of the plan, with the time and the disk space that `todo` needs."""
    design, runs = plan.design, plan.all_runs()
    seeds = design.seed_counts[-1]
    first = design.first_seed + design.select_seeds
    choosing = analyses = ""
    if design.select_seeds:
        choosing = f"{design.first_seed} to {first - 1} choose an arm on validation; "
    if len(design.seed_counts) > 1:
        analyses = f", analysed after {' and '.join(map(str, design.seed_counts))} seeds"
    done = f"; {len(runs) - len(todo)} already done" if len(todo) < len(runs) else ""
    arms = ", ".join(_arm_text(plan, arm) for arm in plan.arms)
    lines = [
        ("comparing", f"{arms}; on {plan.estimate.device}"),
        (
            "seeds",
            f"{choosing}{first} to {first + seeds - 1}{analyses}; {counted(len(runs), 'run')}, "
            f"{_at_a_time(plan)}, arms interleaved{done}",
        ),
        ("each run", *_sizes(plan)),
    ]
    found = None if design.draws else plan_detection_limits(plan)  # no verdict, or other cases
    if found is not None:
        lines.append(("can show", _reach_text(plan, found)))
    if todo:
        kept = [run for run in todo if keeps_model(plan, run, keep_models)] or todo[:1]
        needed = sum(plan.estimate_of(run.arm).model_bytes for run in kept) / 2**30
        free = shutil.disk_usage(nearest_existing(folder)).free / 2**30
        note = f"; only {free:.1f} GiB free" if free < needed else ""
        total = approximate_duration(sum(map(plan.expected_seconds, todo)) / design.jobs)
        per_run = ", ".join(
            f"{arm.name} {approximate_duration(plan.expected_seconds(PlannedRun(arm, 0)))}"
            for arm in plan.arms
            if not arm.is_perturbed
        )
        lines.append(("time", f"about {total} in total; per run: {per_run}"))
        lines.append(("disk", f"{needed:.1f} GiB for {counted(len(kept), 'model')}{note}"))
    if plan.reductions:
        lines.append(("budget", *remark_texts(plan.reductions)))
    if plan.added_after_analysis:
        lines.append(
            ("note", "Seeds are added after results were analysed; the report states this.")
        )
    lines += [("note", note) for note in plan.notes]
    lines.append(("folder", str(folder)))
    return "\n".join(labelled(*line) for line in lines)


def _at_a_time(plan: Plan) -> str:
    jobs, gpus = plan.design.jobs, plan.design.gpus_per_run
    if plan.design.engine == RAY:
        return f"at most {jobs} at a time on the nodes of a Ray cluster"
    if jobs == 1:
        return "one at a time"
    own = "its share of the cores"
    if not plan.estimate.device.startswith("CPU"):
        own = f"{counted(gpus, 'GPU')} of its own"
    return f"{jobs} at a time, each on {own}"


def _arm_text(plan: Plan, arm: Arm) -> str:
    """Return an arm with its settings, and whether it is native or emulated."""
    if arm.is_perturbed:
        base = plan.arms[0].name
        return f"{arm.name} ({base} with initial weights changed by one unit in the last place)"
    execution = plan.estimate_of(arm).executions[arm.mode]
    if not plan.design.arm_settings:
        return f"{arm.name} ({execution})"
    (settings,) = [each for each in plan.design.arm_settings if each.name == arm.name]
    flags = shlex.join(settings.flags) or "shared settings"
    return f"{arm.name} ({flags}; {arm.mode}, {execution})"


def _sizes(plan: Plan) -> list[str]:
    """Return the length of a run; if the arms differ in it, one text for each length."""
    names: dict[str, list[str]] = {}
    for arm in plan.arms:
        if arm.is_perturbed:
            continue
        estimate, size = plan.estimate_of(arm), plan.size_of(arm)
        steps = estimate.total_steps(size)
        text = (
            f"{counted(steps, 'step')} {in_epochs(steps, estimate.steps_per_epoch(size))}; "
            f"{counted(size.train_examples, 'training example')}; effective batch "
            f"{estimate.effective_batch_size}"
        )
        names.setdefault(text, []).append(arm.name)
    if len(names) == 1:
        return list(names)
    return [f"{', '.join(arms)}: {text}" for text, arms in names.items()]


def plan_detection_limits(plan: Plan) -> DetectionLimits | None:
    """Return what a comparison can detect at best; None without another arm or a share."""
    arms = sum(not arm.is_perturbed for arm in plan.compared_arms) - 1
    if not arms:  # the baseline was chosen
        return None
    return limits_of_design(plan.design, plan.metric, cases=plan.estimate.cases, arms=arms)


def limits_of_design(
    design: ComparisonDesign, metric: str, *, cases: int | None, arms: int
) -> DetectionLimits | None:
    """Return what a comparison can detect at best; None if its metric is not a share.

    Args:
        cases: Independent test examples; with folds, per fold.
        arms: Number of arms that are compared with the baseline.
    """
    metrics = [kind.metrics for kind in problem_types().values() if metric in kind.metrics]
    if cases is None or not all(each[metric].is_share for each in metrics):
        return None
    return detection_limits(
        cases * max(design.folds, 1),
        seeds=design.seed_counts[-1],
        arms=arms,
        margin=design.margin,
        alpha=alpha_per_analysis(design.seed_counts),
        metric=metric,
    )


def shows_nothing(design: ComparisonDesign, found: DetectionLimits | None) -> bool:
    """Return whether test data cannot decide a comparison.

    Modes are compared to find one that is equivalent, and other settings to find a better one.
    """
    if found is None:
        return False
    if design.arm_settings:
        return found.smallest_difference is None
    return found.cases < found.cases_needed


def _reach_text(plan: Plan, found: DetectionLimits) -> str:
    seeds = counted(plan.design.seed_counts[-1], "seed")
    equivalence = f"equivalence within {points_text(plan.design.margin)}"
    if found.cases < found.cases_needed:
        equivalence = f"no {equivalence} (it takes {found.cases_needed:,} examples)"
    elif not found.is_equivalence_possible:
        equivalence = f"no {equivalence} with so few seeds"
    smallest = found.smallest_difference
    loss = "no loss" if smallest is None else f"a loss of {points_text(smallest)} or more"
    return (
        f"with {counted(found.cases, 'independent example')} and {seeds}, at best: {equivalence}, "
        f"and {loss} in {plan.metric}"
    )


def points_text(share: float) -> str:
    """Return a share in points, rounded up to two significant digits."""
    value = rounded_up(100 * share)
    return f"{value:g} point{'s' if value != 1 else ''}"


def rounded_up(points: float) -> float:
    """Return points rounded up to two significant digits."""
    scale = 10 ** (1 - math.floor(math.log10(points)))
    return math.ceil(round(points * scale, 6)) / scale
