"""What simple methods reach on the final split of a run: figures, their table and the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ampft.kinds import MANY_TRUNCATED
from ampft.metrics.paired import Interval
from ampft.tasks.outcome import Problem
from ampft.text.numbers import or_dash, percent
from ampft.text.page import Table

FROZEN, BAG_OF_WORDS = "frozen encoder + regression", "TF-IDF + regression"
BAG_OF_CHARACTERS = "TF-IDF of characters + regression"  # of scripts without spaces
FREQUENCIES, FINE_TUNED = "class frequencies", "fine-tuned model"
MEAN_LABEL = "mean of the labels"
CONSTANTS = (FREQUENCIES, MEAN_LABEL)
COST = "cost per row"


@dataclass(frozen=True, kw_only=True)
class SimpleMethodResult:
    """A method without fine-tuning, on the final split."""

    name: str
    # Empty if there is no result; a metric that is undefined on these rows is None.
    metrics: Mapping[str, float | None]
    # 95 % interval of its primary metric minus the fine-tuned model's, on the same cases; None if
    # there is no result.
    difference: Interval | None = None
    # The same of its log loss; None also if the task has no probabilities.
    loss_difference: Interval | None = None
    # With thresholds that are tuned for costs: the mean cost of a row, and the interval of its
    # difference from the fine-tuned model's.
    cost: float | None = None
    cost_difference: Interval | None = None
    seconds: float | None = None  # Time that it took; None if it takes none.
    reason: str | None = None  # Why there is no result.

    def __post_init__(self) -> None:
        known = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in self.metrics.items()
        }
        object.__setattr__(self, "metrics", known)


@dataclass(frozen=True)
class _Measure:
    """What methods are judged by: costs where thresholds were tuned for them, or a metric."""

    title: str
    scale: int  # Factor on printed differences: 100 for points.
    sign: int  # 1 if higher values are better, otherwise -1.
    value: Callable[[SimpleMethodResult], float | None]
    gain: Callable[[SimpleMethodResult], Interval | None]

    @property
    def unit(self) -> str:
        """Unit of the differences."""
        return "points" if self.scale == 100 else self.title

    def values(self, *methods: SimpleMethodResult) -> list[float]:
        """Return the values of methods, so that higher is better; 0 for unknown ones."""
        return [self.sign * (self.value(method) or 0) for method in methods]


def _measure(problem: type[Problem] | Problem, methods: Sequence[SimpleMethodResult]) -> _Measure:
    if any(each.cost_difference is not None for each in methods):
        return _Measure(COST, 1, -1, lambda each: each.cost, lambda each: each.cost_difference)
    metric = problem.metrics[problem.printed[0]]
    return _Measure(
        metric.title,
        100 if metric.is_share else 1,
        1 if metric.higher_is_better else -1,
        lambda each: each.metrics.get(metric.name),
        lambda each: each.difference,
    )


def methods_table(
    problem: type[Problem] | Problem,
    fine_tuned: Mapping[str, float | None],
    seconds: float | None,
    methods: Sequence[SimpleMethodResult],
) -> Table:
    """Return the table of the fine-tuned model and the simple methods."""
    measure = _measure(problem, methods)
    names = problem.printed[:2]
    titles = [problem.metrics[name].title for name in names]
    cost = _cost_of_fine_tuned(methods)
    if cost is not None:
        titles[1] = COST

    def row(method: SimpleMethodResult) -> tuple[str, ...]:
        values = [method.metrics.get(name) for name in names]
        if cost is not None:
            values[1] = method.cost
        return (
            method.name,
            *(or_dash(value, "{:z.4f}".format) for value in values),
            or_dash(measure.gain(method), lambda gain: gain.text(measure.scale)),
            or_dash(method.seconds, "{:.1f}".format),
        )

    model = SimpleMethodResult(name=FINE_TUNED, metrics=fine_tuned, cost=cost, seconds=seconds)
    missing = [f"No result of {each.name}: {each.reason}." for each in methods if each.reason]
    return Table(
        header=("method", *titles, "difference", "seconds"),
        rows=[row(model), *(row(method) for method in methods if method.metrics)],
        title="Simple methods on the same rows; differences in "
        f"{measure.unit}, with 95 % intervals",
        note=" ".join(missing),
    )


def _cost_of_fine_tuned(methods: Sequence[SimpleMethodResult]) -> float | None:
    """Return the mean cost of a row of the fine-tuned model; None if no costs are compared.

    It follows from the cost of any method and the difference from it.
    """
    for each in methods:
        if each.cost is not None and each.cost_difference is not None:
            return each.cost - each.cost_difference.value
    return None


def answer(
    problem: type[Problem] | Problem,
    methods: Sequence[SimpleMethodResult],
    *,
    can_begin_nearer: bool = False,
    truncated: float = 0.0,
    rows: int | None = None,
) -> str | None:
    """Return in one sentence whether the best simple method is worse; None without any.

    Args:
        can_begin_nearer: Whether the head can begin at all of the frozen encoder's regression, and
            did not.
        truncated: Share of the training texts that were truncated for the model, not for TF-IDF.
        rows: Number of rows that are predicted; None if it is unknown. Fewer cases are groups.
    """
    measure = _measure(problem, methods)
    judged = [each for each in methods if measure.gain(each) is not None]
    known = [each for each in judged if each.name not in CONSTANTS]
    if not known:
        return None
    best = max(known, key=measure.values)
    constant = next((each for each in judged if each.name in CONSTANTS), None)
    if constant is not None and not _beats(best, constant, measure):
        return _useless(problem, constant, measure)
    gain = measure.gain(best)
    assert gain is not None, "chosen by it"
    figures = f"{gain.text(measure.scale)} in {measure.title}"
    low, high = sorted((measure.sign * gain.low, measure.sign * gain.high))
    if low > 0:
        return f"{best.name} is better ({figures}): {_instead(best, can_begin_nearer, truncated)}"
    if high < 0:
        return f"fine-tuning is worth it: {best.name} is worse ({figures})"
    cases = f"{gain.cases:,} independent rows"
    if rows is not None and gain.cases < rows:
        cases = f"{rows:,} rows in {gain.cases:,} independent groups"
    return (
        f"{cases} do not show whether {best.name} is worse ({figures}); "
        "it is cheaper to train and to change"
    )


def _instead(best: SimpleMethodResult, can_begin_nearer: bool, truncated: float) -> str:
    """Return what to do where a simple method is better. Twice the steps changed nothing."""
    if best.name != FROZEN and truncated >= MANY_TRUNCATED:
        return (
            f"it reads whole texts, and the model only the beginning of {percent(truncated)} of "
            "them. Use it, or let the model read more (--long_text windows, or a larger "
            "--max_seq_length)"
        )
    if best.name == FROZEN and can_begin_nearer:
        return "use it, train from all of it (--head_init probe --probe_scale 1), or add rows"
    return "use it, or add rows"


def _beats(best: SimpleMethodResult, constant: SimpleMethodResult, measure: _Measure) -> bool:
    """Return whether the fine-tuned model or the best simple method is better than a constant."""
    of_best, of_constant = measure.values(best, constant)
    gain = measure.gain(constant)
    assert gain is not None
    return of_best > of_constant or measure.sign * gain.value < 0


def _useless(
    problem: type[Problem] | Problem, constant: SimpleMethodResult, measure: _Measure
) -> str:
    """Return that nothing is better than a constant, and what to look at instead."""
    value = or_dash(measure.value(constant), "{:z.4f}".format)
    text = f"nothing here beats the {constant.name} ({value} in {measure.title})"
    if constant.name != FREQUENCIES or measure.title != "accuracy":
        return text
    second = problem.metrics[problem.printed[1]].title
    return (
        f"{text}. Where a class has most of the rows, {measure.title} says little about the "
        f"others: compare {second}, and recall and F1 of each class"
    )


def better_probabilities(methods: Sequence[SimpleMethodResult]) -> str | None:
    """Return which method has a lower log loss, and what to do; None if none is surely lower."""
    gains = [(each.name, each.loss_difference) for each in methods]
    lower = [(name, gain) for name, gain in gains if gain is not None and gain.high < 0]
    if not lower:
        return None
    name, gain = min(lower, key=lambda pair: pair[1].value)
    return (
        f"the probabilities of {name} are better ({gain.text()} in log loss): train with "
        "--calibrate before you use the model's"
    )
