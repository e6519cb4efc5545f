"""Rare classes: what a model finds of them; and classes that it never predicts, and what helps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ampft.errors import quoted_list
from ampft.metrics.ranking import AVERAGE_PRECISION
from ampft.metrics.scores import Scores
from ampft.metrics.sums import class_counts
from ampft.tasks.loss_settings import LossSettings
from ampft.tasks.outcome import Outcome
from ampft.tasks.report import Report
from ampft.text.escaping import inert
from ampft.text.numbers import counted

RARE = 0.25  # A class is rare if it has less than this share of an equal part of the rows.
SHOWN = 3
# Training rows of a class from which it is mostly found, and from which a threshold can be tuned on
# a tenth of them: `docs/rare_classes.md`.
ENOUGH, TUNABLE = 80, 20
# Rows from which a class that is not rare is named if it is never predicted. A model that finds
# half of its rows misses so many with a probability of 3 %.
NAMED_FROM = 5


def rare(counts: npt.NDArray[np.number], total: float) -> npt.NDArray[np.bool_]:
    """Return which of K classes are rare, of those that occur.

    Args:
        counts: (K,) rows of each class.
        total: Number of rows.
    """
    return (counts > 0) & (counts * len(counts) < RARE * total)


def rare_classes_text(report: Report) -> str:
    """Return the scores of the rarest classes of a report in a sentence; empty without any."""
    scores = report.class_scores
    counts = np.array([each.support for each in scores.values()], dtype=float)
    found = np.flatnonzero(rare(counts, report.examples)) if len(counts) else counts
    if not len(found):
        return ""
    names, rows = list(scores), list(scores.values())
    rarest = sorted(found, key=lambda k: rows[k].support)
    listed = "; ".join(_scores_text(names[k], rows[k], report) for k in rarest[:SHOWN])
    more = f"; and {len(rarest) - SHOWN} more" if len(rarest) > SHOWN else ""
    return f"Rare {'class' if len(rarest) == 1 else 'classes'}: {listed}{more}."


def _scores_text(name: str, scores: Scores, report: Report) -> str:
    text = (
        f"{inert(name)!r} ({scores.support:,} of {counted(report.examples, 'example')}), recall "
        f"{scores.recall:.3f}, precision {scores.precision:.3f}, F1 {scores.f1:.3f}"
    )
    value = report.metrics().get(AVERAGE_PRECISION)
    if value is None or len(report.class_scores) != 2:
        return text
    return (
        f"{text}, average precision {value:.3f} ({scores.support / report.examples:.3f} by chance)"
    )


def never_predicted_text(
    outcome: Outcome, train: npt.NDArray[np.number], settings: LossSettings, *, several: bool
) -> str | None:
    """Return which classes are never predicted, and what helps; None if there are none.

    A class that is not rare is named if some other class is predicted and the split has enough of
    its rows. Where several labels are possible and none is predicted at all, all count as rare.

    Args:
        outcome: Predictions of the final split, of rows.
        train: (K + 1,) training rows of each class, and of all.
        settings: The user's choices.
        several: Whether a row can have any number of labels; otherwise it has one.
    """
    counts = class_counts(outcome.unit_sums.totals())
    is_missed = (counts.labelled > 0) & (counts.predicted == 0)
    is_rare = rare(train[:-1], train[-1]) | (several and not counts.predicted.any())
    is_common = ~is_rare & (counts.labelled >= NAMED_FROM)
    if (counts.predicted > 0).sum() < 2 and not several:
        is_common &= False  # another warning says that the model predicts one class only
    by_rows = np.argsort(train[:-1], kind="stable")
    rare_ones, common = (
        [int(k) for k in by_rows if chosen[k]]
        for chosen in (is_missed & is_rare, is_missed & is_common)
    )
    texts = [
        _missed_rare_text(rare_ones, outcome, train, settings, several=several),
        _missed_common_text(common, outcome, train, settings, several=several),
    ]
    return " ".join(filter(None, texts)) or None


def _missed_rare_text(
    missed: list[int],
    outcome: Outcome,
    train: npt.NDArray[np.number],
    settings: LossSettings,
    *,
    several: bool,
) -> str:
    """Return that rare classes are never predicted, and what helps; empty for none."""
    if not missed:
        return ""
    fewest = int(train[missed[0]])
    flags = {
        "--class_weights balanced": settings.class_weights is None,
        "--tune_thresholds": _can_tune(fewest, outcome, settings, several=several),
    }
    helps = [flag for flag, is_free in flags.items() if is_free]
    if fewest < ENOUGH:
        helps.append(f"about {ENOUGH - fewest} more rows of {outcome.label_names[missed[0]]!r}")
    metric = "macro_average_precision" if len(outcome.label_names) > 2 else AVERAGE_PRECISION
    remedy = f"What helps: {', '.join(helps)}. " if helps else ""
    return (
        f"{_names(missed, outcome)} never predicted ({_rows(missed, train)}). {remedy}Accuracy "
        "hardly shows it: look at recall and F1 of the class, and keep an epoch by "
        f"--metric_for_best_model {metric}."
    )


def _missed_common_text(
    missed: list[int],
    outcome: Outcome,
    train: npt.NDArray[np.number],
    settings: LossSettings,
    *,
    several: bool,
) -> str:
    """Return that classes with many rows are never predicted, and what helps; empty for none."""
    if not missed:
        return ""
    rare_or_not = "it is not rare" if len(missed) == 1 else "they are not rare"
    tunes = _can_tune(int(train[missed[0]]), outcome, settings, several=several)
    helps = "Train longer, or pass --tune_thresholds." if tunes else "Train longer."
    return (
        f"{_names(missed, outcome)} never predicted, although {rare_or_not} "
        f"({_rows(missed, train)}). {helps}"
    )


def _can_tune(fewest: int, outcome: Outcome, settings: LossSettings, *, several: bool) -> bool:
    """Return whether thresholds of classes with at least so many rows can be tuned, and are not."""
    has_thresholds = several or len(outcome.label_names) == 2
    return fewest >= TUNABLE and has_thresholds and settings.tune_thresholds is None


def _names(missed: list[int], outcome: Outcome) -> str:
    names = quoted_list([outcome.label_names[k] for k in missed])
    return f"{names} {'is' if len(missed) == 1 else 'are'}"


def _rows(missed: list[int], train: npt.NDArray[np.number]) -> str:
    rows = ", ".join(f"{train[k]:,.0f}" for k in missed[:SHOWN])
    more = ", ..." if len(missed) > SHOWN else ""
    return f"{rows}{more} of {train[-1]:,.0f} training rows"
