"""Choose one of several arms by validation, with seeds that do not enter its comparison.

Examples or training runs that choose an arm overstate its gain: of equal arms, the luckiest one is
chosen. The compared runs therefore have other seeds than the runs that choose, and are evaluated on
test instead of validation. Given the choice, their comparison with the baseline is as valid as if
both arms had been chosen in advance: unbiased, with the usual intervals and no correction for the
number of arms (benchmarks/selection.py).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

from ampft.comparison.analysis.loading import RUNS_NAME
from ampft.comparison.execution.plan import Plan
from ampft.comparison.remarks import Remark, remark
from ampft.errors import InputError
from ampft.runs.record import RunRecord, read_record
from ampft.runs.show import problem_of


def with_selection(plan: Plan, folder: Path) -> Plan:
    """Return the plan with the arm that has the best mean validation metric; ties by order.

    Args:
        plan: Plan whose selection runs have ended.
        folder: Folder of the comparison.

    Raises:
        InputError: No arm finished with every seed, or no validation has the metric.
    """
    scores: dict[str, float] = {}
    higher_is_better = True
    for arm in plan.arms:
        runs = [run for run in plan.selection_runs if run.arm == arm]
        records = [_finished(folder / RUNS_NAME / run.name) for run in runs]
        finished = [record for record in records if record is not None]
        if not finished or len(finished) < len(runs):
            continue  # the placebo, or an arm that is unstable
        scores[arm.name] = statistics.fmean(validation_score(r, plan.metric) for r in finished)
        higher_is_better = problem_of(finished[0]).metrics[plan.metric].higher_is_better
    if not scores:
        raise InputError(
            f"--select validation: no arm finished with every seed in {folder}. Repeat the command "
            "to train the missing runs, or change the arms."
        )
    sign = 1 if higher_is_better else -1
    selected = max(scores, key=lambda name: sign * scores[name])
    return replace(plan, selected=selected, selection_scores=scores)


def validation_score(record: RunRecord, metric: str) -> float:
    """Return the validation metric of the weights that a run reports on.

    Raises:
        InputError: No validation has the metric.
    """
    best = record.best
    validations = [v for v in record.validations if best is None or v.epoch == best.epoch]
    if best is not None and best.step is not None:
        validations = [v for v in validations if v.step == best.step] or validations
    value = validations[-1].metrics.get(metric) if validations else None
    if value is None or not math.isfinite(value):
        raise InputError(
            f"--select validation: a run has no validation {metric}. Use another --metric, or "
            "remove --no-load_best_model_at_end."
        )
    return value


def selection_remark(plan: Plan) -> Remark | None:
    """Return how the arm was chosen; None if all arms are compared."""
    if plan.selected is None:
        return None
    first, count = plan.design.first_seed, plan.design.select_seeds
    return remark(
        "chosen",
        arm=plan.selected,
        metric=plan.metric,
        seeds=list(range(first, first + count)),
        scores=dict(plan.selection_scores),
    )


def _finished(folder: Path) -> RunRecord | None:
    try:
        record = read_record(folder)
    except InputError:
        return None
    return record if record.status == "finished" else None
