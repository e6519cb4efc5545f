"""Simple methods beside a fine-tuned model: their figures, and how much better it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ampft.data.splits import dependent_groups
from ampft.evaluation.simple_methods import CONSTANTS, SimpleMethodResult
from ampft.metrics.paired import Interval, paired_interval
from ampft.metrics.sums import LOG_LOSS
from ampft.tasks.outcome import Outcome
from ampft.tasks.task import Task


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

    def difference(name: str, found: Outcome) -> Interval | None:
        pair = found.sums(name), outcome.sums(name)
        if groups is not None:
            pair = pair[0].grouped(groups.ids), pair[1].grouped(groups.ids)
        return paired_interval(problem.metrics[name], *pair)

    def figures(name: str, predict: Callable[[], Outcome]) -> SimpleMethodResult:
        started = time.perf_counter()
        try:
            found = predict()
        except Exception as error:  # code of a model's repository can raise any kind
            reason = str(error).rstrip(".") or type(error).__name__
            return SimpleMethodResult(name=name, metrics={}, reason=reason)
        metrics = found.metrics()
        return SimpleMethodResult(
            name=name,
            metrics={key: metrics.get(key) for key in problem.printed},
            difference=difference(problem.printed[0], found),
            loss_difference=difference(LOG_LOSS.name, found) if has_loss else None,
            seconds=None if name in CONSTANTS else time.perf_counter() - started,
        )

    return tuple(figures(name, predict) for name, predict in methods.items())
