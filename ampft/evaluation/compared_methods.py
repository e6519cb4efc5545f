"""Simple methods beside a fine-tuned model: their figures, and how much better it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ampft.data.splits import dependent_groups
from ampft.evaluation.simple_methods import CONSTANTS, COST, SimpleMethodResult
from ampft.metrics.paired import Interval, paired_interval
from ampft.metrics.sums import LOG_LOSS, CaseSums, Metric, mean_metric, mean_sums
from ampft.metrics.targets import parse_threshold_target
from ampft.tasks.outcome import Outcome, TunableOutcome
from ampft.tasks.task import Task
from ampft.tasks.tuning import case_costs, fit_decisions, tuned_thresholds, with_decisions


def compared_methods(
    task: Task, outcome: Outcome, methods: Mapping[str, Callable[[], Outcome]]
) -> tuple[SimpleMethodResult, ...]:
    """Return the figures of simple methods, compared with an outcome on the same rows.

    A method that fails has a reason instead of a result: it must not fail a run whose model is
    already trained.

    Args:
        outcome: Outcome of the fine-tuned model.
        methods: Functions that return the outcomes of the methods, by name.
    """
    problem, groups = task.problem, dependent_groups(task.data, outcome.split)
    has_loss = LOG_LOSS.name in problem.printed

    cost, tuned_for = _cost_metric(task, outcome), task.settings.tune_thresholds

    def interval_of(metric: Metric, *pair: CaseSums) -> Interval | None:
        if groups is not None:
            pair = tuple(sums.grouped(groups.ids) for sums in pair)
        return paired_interval(metric, *pair)

    def difference(name: str, found: Outcome) -> Interval | None:
        return interval_of(problem.metrics[name], found.sums(name), outcome.sums(name))

    def with_cost(result: SimpleMethodResult, found: Outcome) -> SimpleMethodResult:
        if cost is None or tuned_for is None:
            return result
        pair = (_cost_sums(found, outcome, tuned_for), _cost_sums(outcome, outcome, tuned_for))
        return replace(result, cost=cost.value(pair[0]), cost_difference=interval_of(cost, *pair))

    def figures(name: str, predict: Callable[[], Outcome]) -> SimpleMethodResult:
        started = time.perf_counter()
        try:
            found = predict()
        except Exception as error:  # code of a model's repository can raise any kind
            reason = str(error).rstrip(".") or type(error).__name__
            return SimpleMethodResult(name=name, metrics={}, reason=reason)
        metrics = found.metrics()
        result = SimpleMethodResult(
            name=name,
            metrics={key: metrics.get(key) for key in problem.printed},
            difference=difference(problem.printed[0], found),
            loss_difference=difference(LOG_LOSS.name, found) if has_loss else None,
            seconds=None if name in CONSTANTS else time.perf_counter() - started,
        )
        return with_cost(result, found)

    return tuple(figures(name, predict) for name, predict in methods.items())


def decided_as_model(task: Task, split: str, predict: Callable[[str], Outcome]) -> Outcome:
    """Return the outcome of a method, with thresholds that are tuned as the model's are.

    Args:
        predict: Function that returns the outcome of the method on a split.
    """
    outcome, settings = predict(split), task.settings
    if settings.tune_thresholds is None:
        return outcome
    fitted = predict("validation")
    assert isinstance(outcome, TunableOutcome), "checked with the other arguments"
    assert isinstance(fitted, TunableOutcome), "of the same task"
    only_thresholds = replace(settings, calibrate=False, abstain=None)
    return with_decisions(outcome, fit_decisions(fitted, only_thresholds).decisions)


def _cost_metric(task: Task, outcome: Outcome) -> Metric | None:
    """Return the mean cost of a row, if the thresholds were tuned for costs; otherwise None."""
    if task.settings.tune_thresholds is None:
        return None
    target = parse_threshold_target(task.settings.tune_thresholds)
    if target.name != "cost":
        return None
    assert isinstance(outcome, TunableOutcome), "checked with the other arguments"
    most = max(target.miss, target.false_alarm) * len(tuned_thresholds(outcome))
    return mean_metric("cost", COST, most=most)


def _cost_sums(found: Outcome, fine_tuned: Outcome, tuned_for: str) -> CaseSums:
    """Return the costs of an outcome's rows for the labels whose thresholds the model tuned."""
    assert isinstance(found, TunableOutcome), "of the same task"
    assert isinstance(fine_tuned, TunableOutcome), "of the same task"
    columns = list(tuned_thresholds(fine_tuned))
    return mean_sums(case_costs(found, parse_threshold_target(tuned_for), columns))
