"""What simple methods reach on the final split of a run: figures, their table and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, kw_only=True)
class SimpleMethodResult:
    """A method without fine-tuning, on the final split."""

    name: str
    metrics: Mapping[str, float | None]  # Empty if there is no result.
    # 95 % interval of its primary metric minus the fine-tuned model's, on the same cases; None if
    # there is no result.
    difference: Interval | None = None
    # The same of its log loss; None also if the task has no probabilities.
    loss_difference: Interval | None = None
    seconds: float | None = None  # Time that it took; None if it takes none.
    reason: str | None = None  # Why there is no result.


def methods_table(
    problem: type[Problem] | Problem,
    fine_tuned: Mapping[str, float | None],
    seconds: float | None,
    methods: Sequence[SimpleMethodResult],
) -> Table:
    """Return the table of the fine-tuned model and the simple methods."""
    names = problem.printed[:2]
    is_share = problem.metrics[names[0]].is_share
    unit, scale = ("points", 100) if is_share else (problem.metrics[names[0]].title, 1)

    def row(
        name: str, metrics: Mapping[str, float | None], gain: Interval | None, time: float | None
    ) -> tuple[str, ...]:
        values = [or_dash(metrics.get(key), "{:.4f}".format) for key in names]
        return name, *values, or_dash(gain, lambda g: g.text(scale)), or_dash(time, "{:.1f}".format)

    missing = [f"No result of {each.name}: {each.reason}." for each in methods if each.reason]
    return Table(
        header=(
            "method",
            *(problem.metrics[name].title for name in names),
            "difference",
            "seconds",
        ),
        rows=[
            row(FINE_TUNED, fine_tuned, None, seconds),
            *(row(m.name, m.metrics, m.difference, m.seconds) for m in methods if m.metrics),
        ],
        title=f"Simple methods on the same rows; differences in {unit}, with 95 % intervals",
        note=" ".join(missing),
    )


def answer(
    problem: type[Problem] | Problem,
    methods: Sequence[SimpleMethodResult],
    *,
    can_begin_nearer: bool = False,
    truncated: float = 0.0,
) -> str | None:
    """Return in one sentence whether the best simple method is worse; None without any.

    Args:
        can_begin_nearer: Whether the head can begin at all of the frozen encoder's regression, and
            did not.
        truncated: Share of the training texts that were truncated for the model, not for TF-IDF.
    """
    metric = problem.metrics[problem.printed[0]]
    sign = 1 if metric.higher_is_better else -1
    known = [each for each in methods if each.difference is not None and each.name not in CONSTANTS]
    if not known:
        return None
    best = max(known, key=lambda each: sign * (each.metrics.get(metric.name) or 0))
    constant = next((each for each in methods if each.name in CONSTANTS and each.difference), None)
    if constant is not None and not _beats(best, constant, metric.name, sign):
        return _useless(problem, constant)
    assert best.difference is not None
    gain = best.difference
    figures = f"{best.difference.text(100 if metric.is_share else 1)} in {metric.title}"
    low, high = sorted((sign * gain.low, sign * gain.high))
    if low > 0:
        return f"{best.name} is better ({figures}): {_instead(best, can_begin_nearer, truncated)}"
    if high < 0:
        return f"fine-tuning is worth it: {best.name} is worse ({figures})"
    return (
        f"{gain.cases:,} independent rows do not show whether {best.name} is worse ({figures}); "
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


def _beats(best: SimpleMethodResult, constant: SimpleMethodResult, name: str, sign: int) -> bool:
    """Return whether the fine-tuned model or the best simple method is better than a constant."""
    values = [each.metrics.get(name) or 0 for each in (best, constant)]
    assert constant.difference is not None
    return sign * (values[0] - values[1]) > 0 or sign * constant.difference.value < 0


def _useless(problem: type[Problem] | Problem, constant: SimpleMethodResult) -> str:
    """Return that nothing is better than a constant, and what to look at instead."""
    first, second = (problem.metrics[name].title for name in problem.printed[:2])
    value = or_dash(constant.metrics.get(problem.printed[0]), "{:.4f}".format)
    text = f"nothing here beats the {constant.name} ({value} in {first})"
    if constant.name != FREQUENCIES:
        return text
    return (
        f"{text}. Where a class has most of the rows, {first} says little about the others: "
        f"compare {second}, and recall and F1 of each class"
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
