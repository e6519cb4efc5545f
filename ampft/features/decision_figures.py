"""What fitted decisions change on the final split, with intervals, beside the untouched model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ampft.decision import Abstention, Decisions
from ampft.errors import quoted_list
from ampft.metrics.abstention import ValidationHalves, exact_interval
from ampft.metrics.bootstrap import Statistic, difference_interval, interval, resampled_sums
from ampft.metrics.calibration import BINS
from ampft.metrics.targets import parse_threshold_target
from ampft.tasks.loss_settings import ValidationFitSettings
from ampft.tasks.outcome import TunableOutcome
from ampft.tasks.tuning import (
    calibration_error,
    case_costs,
    is_multi_label,
    label_columns,
    proper_scores,
    tuned_thresholds,
    with_decisions,
)
from ampft.text.escaping import inert
from ampft.text.numbers import counted, or_dash, percent, signed_number
from ampft.text.page import Cell, Name, Table, ValueWithDetail, terminal_table

MAX_SHOWN_LABELS = 30
# Validation rows of a label, below which the note says that they choose badly. A tenth of 20 rows
# of a class did, and a tenth of 80 did not: `docs/rare_classes.md`.
FEW_ROWS = 5
USE = (
    "decision.json of the model holds these numbers, and ampft predict uses them. A pipeline of "
    "transformers does not read them: its probabilities and labels are the untouched model's."
)
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Ends = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class FigurePart:
    """A figure of the final split, with 95 % intervals over its rows.

    `untouched` is without the fitted decisions, `fitted` is with them; `difference_interval` is of
    fitted minus untouched, on the same rows. It is None if no row changes, which proves nothing
    about others.
    """

    title: str
    untouched: float
    untouched_interval: Ends
    fitted: float
    fitted_interval: Ends
    difference_interval: Ends | None


@dataclass(frozen=True, kw_only=True)
class LabelPart:
    """The threshold of a label, and precision and recall with it, with 95 % intervals.

    `right` of `predicted` predictions are right, and `labelled` examples have the label. Of the
    untouched model, the same.
    """

    label: str
    threshold: float
    right: int
    predicted: int
    labelled: int
    precision_interval: Ends
    recall_interval: Ends
    untouched_right: int
    untouched_predicted: int
    # Number of the validation rows behind the threshold that have the label. With 0, nothing could
    # be chosen. None in records of earlier versions.
    validation_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class AbstentionPart:
    """The error that abstention promises, and the one that the final split shows.

    Of `rows` rows, `answered` are answered and `wrong` of them are wrong; without abstention,
    `wrong_of_all` would be. `interval` is of the error among the answered rows.
    """

    error: float
    confidence: float
    least_confidence: float | None
    proving_rows: int
    rows: int
    answered: int
    wrong: int
    wrong_of_all: int
    interval: Ends
    # Rows that were set apart; `proving_rows` counts the independent ones. None in records of
    # earlier versions.
    set_apart: int | None = None


@dataclass(frozen=True, kw_only=True)
class FittedPart:
    """What was fitted on validation, and what it changes on the final split."""

    split: str  # Name of the final split.
    examples: int  # Number of its examples.
    fitted_rows: int  # Number of validation rows that temperature and thresholds were fitted on.
    temperature: float | None = None  # Temperature; None for none.
    # Target of the thresholds, as the user wrote it; None without thresholds.
    target: str | None = None
    # Log loss, Brier score, calibration error, F1, cost, by name.
    figures: Mapping[str, FigurePart] = field(default_factory=dict)
    labels: Sequence[LabelPart] = ()  # The thresholds; empty without.
    abstention: AbstentionPart | None = None  # The promise; None without.

    def tables(self) -> tuple[Table, ...]:
        """Return the figures beside the untouched model, and the thresholds, as tables."""
        tables = []
        if self.figures:
            rows = [_figure_row(figure) for figure in self.figures.values()]
            header = ("", "untouched", "fitted", "difference")
            note = ""
            if self.temperature is not None:
                note = f"Logits are divided by the temperature {self.temperature:.4f}."
            title = (
                f"decisions, {self.split}, {counted(self.examples, 'example')}, fitted on "
                f"{counted(self.fitted_rows, 'validation example')}; 95 % intervals in parentheses"
            )
            tables.append(Table(header=header, rows=rows, title=title, note=note))
        if self.labels:
            tables.append(self._thresholds_table())
        return tuple(tables)

    def _thresholds_table(self) -> Table:
        assert self.target is not None
        shown = self.labels[:MAX_SHOWN_LABELS]
        omitted = len(self.labels) - len(shown)
        more = f" {omitted} more labels are in run.json." if omitted else ""
        rule = parse_threshold_target(self.target).rule
        header = (
            *("label", "validation rows", "threshold", "precision", "recall"),
            *("untouched precision", "recall"),
        )
        notes = ("The choice was made on validation; new rows need not meet the target.", more)
        return Table(
            title=f"thresholds, {self.split}, chosen for {rule}",
            header=header,
            rows=[_label_row(label) for label in shown],
            note="".join(notes) + _few_rows_text(self.labels),
        )

    def sentences(self) -> tuple[str, ...]:
        """Return the promise and what became of it; empty without abstention."""
        part = self.abstention
        if part is None:
            return ()
        promise = (
            f"Abstention: at most {percent(part.error, 1)} of the answered rows are wrong. This is "
            f"proven with {percent(part.confidence)} confidence on "
            f"{counted(part.proving_rows, 'independent validation example')} that nothing else has "
            f"used, for rows drawn as they were.{_left_out_text(part)}"
        )
        if part.least_confidence is None:
            return (
                f"Abstention: these {counted(part.proving_rows, 'validation example')} prove no "
                f"error of at most {percent(part.error, 1)} at any confidence, so no row is "
                f"answered.{_left_out_text(part)}",
            )
        which = "all are answered, whatever their confidence"
        if part.least_confidence > 0:
            share = percent(part.answered / part.rows, 1)
            which = (
                f"{part.answered:,} are answered ({share}), which have a confidence of at least "
                f"{part.least_confidence:.4f}"
            )
        answered = (
            f"Of {part.rows:,} rows of {inert(self.split)}, {which}; {part.wrong:,} are wrong"
        )
        if part.answered:
            answered += f": {percent(part.wrong / part.answered, 2)} ({_percents(part.interval)})"
        of_all = f"Answering all, {percent(part.wrong_of_all / part.rows, 2)} would be wrong."
        return promise, f"{answered}. {of_all}" if part.least_confidence > 0 else f"{answered}."

    def text(self) -> str:
        parts = [
            part
            for table in self.tables()
            for part in (table.title, terminal_table(table), table.note)
            if part
        ]
        return "\n\n".join([*parts, *self.sentences(), USE])


def abstention_sentence(outcome: TunableOutcome, promised_for: str | None) -> str | None:
    """Return how many labelled rows are answered, and how many of these are wrong.

    Args:
        outcome: Predictions of rows with labels.
        promised_for: What the promise was proven for; None for the model that predicted.
    """
    abstention = outcome.decisions.abstention
    answered = outcome.decisions.answered(outcome.confidence)
    if answered is None or abstention is None:
        return None
    count = int(answered.sum())
    text = f"{count:,} of {len(outcome):,} labelled rows are answered"
    if not count:
        return f"{text}."
    wrong = int((answered & ~outcome.correct).sum())
    return (
        f"{text}, and {wrong:,} of them are wrong: {percent(wrong / count, 2)} "
        f"({_percents(exact_interval(wrong, count))} if rows are independent; promised at most "
        f"{percent(abstention.error, 1)}{f' for {promised_for}' if promised_for else ''})."
    )


def fitted_part(
    untouched: TunableOutcome,
    fitted: TunableOutcome,
    settings: ValidationFitSettings,
    *,
    fitted_on: ValidationHalves | int,
    groups: IntArray | None,
    labelled: IntArray,
) -> FittedPart:
    """Return what fitted decisions change.

    Args:
        untouched: Predictions of the final split, without them.
        fitted_on: Halves of the validation split, or its number of rows if it was not halved.
        groups: (n,) group of each example of the final split; None if all are independent.
        labelled: (K,) rows with each label among those that chose the thresholds.
    """
    decisions = fitted.decisions
    halves = fitted_on if isinstance(fitted_on, ValidationHalves) else None
    abstention = None
    if halves is not None and decisions.abstention is not None:
        abstention = _abstention_part(fitted, decisions.abstention, halves, groups)
    return FittedPart(
        split=fitted.split,
        examples=len(fitted),
        fitted_rows=len(fitted_on.fit) if isinstance(fitted_on, ValidationHalves) else fitted_on,
        temperature=decisions.temperature,
        target=settings.tune_thresholds,
        figures=_figures(untouched, fitted, settings, groups),
        labels=_label_parts(untouched, fitted, groups, labelled),
        abstention=abstention,
    )


def _abstention_part(
    outcome: TunableOutcome,
    abstention: Abstention,
    halves: ValidationHalves,
    groups: IntArray | None,
) -> AbstentionPart:
    answered = outcome.decisions.answered(outcome.confidence)
    assert answered is not None, "it has an abstention"
    is_wrong = answered & ~outcome.correct
    return AbstentionPart(
        error=abstention.error,
        confidence=abstention.confidence,
        least_confidence=abstention.least_confidence,
        proving_rows=len(halves.promise),
        rows=len(outcome),
        answered=int(answered.sum()),
        wrong=int(is_wrong.sum()),
        wrong_of_all=int((~outcome.correct).sum()),
        interval=_share_interval(is_wrong, answered, groups),
        set_apart=halves.set_apart,
    )


def _left_out_text(part: AbstentionPart) -> str:
    """Return how many rows of those set apart prove nothing, and why; empty if all take part."""
    left_out = (part.set_apart or part.proving_rows) - part.proving_rows
    if not left_out:
        return ""
    return (
        f" {left_out:,} of the {part.set_apart:,} that were set apart do not count: rows with "
        "equal inputs, or of one group, count once, and where such groups have unequal sizes, a "
        "smaller one takes part less often."
    )


def _label_parts(
    untouched: TunableOutcome, fitted: TunableOutcome, groups: IntArray | None, labelled: IntArray
) -> tuple[LabelPart, ...]:
    (every, after), (_, earlier) = label_columns(fitted), label_columns(untouched)
    parts = []
    for index, threshold in tuned_thresholds(fitted).items():
        has, now, before = every[:, index], after[:, index], earlier[:, index]
        right = int((has & now).sum())
        parts.append(
            LabelPart(
                label=fitted.label_names[index],
                threshold=threshold,
                right=right,
                predicted=int(now.sum()),
                labelled=int(has.sum()),
                precision_interval=_share_interval(has & now, now, groups),
                recall_interval=_share_interval(has & now, has, groups),
                untouched_right=int((has & before).sum()),
                untouched_predicted=int(before.sum()),
                validation_rows=int(labelled[index]),
            )
        )
    return tuple(parts)


def _share_interval(hits: BoolArray, of: BoolArray, groups: IntArray | None) -> Ends:
    """Return the interval of the share of the rows `of` that are `hits`.

    Rows of a group are resampled together, so that large groups count by their sizes.
    """
    if groups is None or not of.any():
        return exact_interval(int(hits.sum()), int(of.sum()))
    _, ids = np.unique(groups[of], return_inverse=True)
    share = _mean(hits[of].astype(np.float64), most=1.0)
    return interval(share, resampled_sums([share], ids)[0])


def _figures(
    untouched: TunableOutcome,
    fitted: TunableOutcome,
    settings: ValidationFitSettings,
    groups: IntArray | None,
) -> dict[str, FigurePart]:
    """Return the figures that the settings can change; empty if they only abstain."""
    columns = list(tuned_thresholds(fitted))
    tempered = with_decisions(untouched, Decisions(fitted.decisions.temperature))
    of_both = [
        _probability_statistics(outcome, settings, groups)
        | _threshold_statistics(other, settings, columns)
        for outcome, other in ((untouched, untouched), (tempered, fitted))
    ]
    names = list(of_both[0])
    if not names:
        return {}
    titles = dict(_TITLES)
    if columns:  # the report has the error of the decisions that the thresholds make
        titles["expected_calibration_error"] += ", threshold 0.5"
    sums = resampled_sums([both[name] for both in of_both for name in names], groups)
    parts = {}
    for name, old_sums, new_sums in zip(names, sums[: len(names)], sums[len(names) :], strict=True):
        old, new = (both[name] for both in of_both)
        parts[name] = FigurePart(
            title=titles[name],
            untouched=old.observed(),
            untouched_interval=interval(old, old_sums),
            fitted=new.observed(),
            fitted_interval=interval(new, new_sums),
            difference_interval=difference_interval(old, old_sums, new, new_sums),
        )
    return parts


_TITLES = {
    "log_loss": "log loss (nats)",
    "brier": "Brier score",
    "expected_calibration_error": f"expected calibration error ({BINS} bins)",
    "accuracy": "share of right predictions",
    "f1": "F1",
    "macro_f1": "macro F1 of the labels",
    "cost": "cost per example",
}


def _probability_statistics(
    outcome: TunableOutcome, settings: ValidationFitSettings, groups: IntArray | None
) -> dict[str, Statistic]:
    """Return what `--calibrate` changes; thresholds do not count here."""
    if not settings.calibrate:
        return {}
    most = {"log_loss": np.inf, "brier": 1.0 if is_multi_label(outcome) else 2.0}
    scores = proper_scores(outcome)
    found = {name: _mean(values, most=most[name]) for name, values in scores.items()}
    return {**found, "expected_calibration_error": calibration_error(outcome, groups)}


def _threshold_statistics(
    outcome: TunableOutcome, settings: ValidationFitSettings, columns: Sequence[int]
) -> dict[str, Statistic]:
    """Return what `--tune_thresholds` changes, for the labels with the indices `columns`."""
    if settings.tune_thresholds is None:
        return {}
    target = parse_threshold_target(settings.tune_thresholds)
    has, predicted = (every[:, columns] for every in label_columns(outcome))
    counts = np.concatenate([has & predicted, has, predicted], axis=1).astype(np.float64)
    found = {
        "accuracy": _mean(outcome.correct.astype(np.float64), most=1.0),
        "f1" if len(columns) == 1 else "macro_f1": Statistic(counts, _mean_f1, limits=(0.0, 1.0)),
    }
    if target.name == "cost":
        most = max(target.miss, target.false_alarm) * len(columns)
        found["cost"] = _mean(case_costs(outcome, target, columns), most=most)
    return found


def _mean(values: FloatArray, most: float = np.inf) -> Statistic:
    vectors = np.stack([values, np.ones(len(values))], axis=1)
    return Statistic(vectors, _ratio, limits=(0.0, most))


def _ratio(sums: FloatArray) -> FloatArray:
    return sums[..., 0] / sums[..., 1]


def _mean_f1(sums: FloatArray) -> FloatArray:
    right, labelled, predicted = np.split(sums, 3, axis=-1)
    return (2 * right / np.maximum(labelled + predicted, 1)).mean(axis=-1)


def _figure_row(figure: FigurePart) -> tuple[Cell, ...]:
    difference: Cell = "no row changes"
    if figure.difference_interval is not None:
        low, high = figure.difference_interval
        value = signed_number(figure.fitted - figure.untouched, 4)
        difference = ValueWithDetail(
            value, f"({signed_number(low, 4)} to {signed_number(high, 4)})"
        )
    return (
        figure.title,
        ValueWithDetail(f"{figure.untouched:z.4f}", _interval(figure.untouched_interval)),
        ValueWithDetail(f"{figure.fitted:z.4f}", _interval(figure.fitted_interval)),
        difference,
    )


def _label_row(label: LabelPart) -> tuple[Cell, ...]:
    return (
        Name(label.label),
        or_dash(label.validation_rows, "{:,}".format),
        f"{label.threshold:z.4f}",
        _share(label.right, label.predicted, label.precision_interval),
        _share(label.right, label.labelled, label.recall_interval),
        _share(label.untouched_right, label.untouched_predicted),
        _share(label.untouched_right, label.labelled),
    )


def _few_rows_text(labels: Sequence[LabelPart]) -> str:
    """Return which thresholds no or few validation rows chose; empty if none."""
    without = [label for label in labels if label.validation_rows == 0]
    few = [label for label in labels if label.validation_rows in range(1, FEW_ROWS)]
    text = ""
    if without:
        has, them = ("has", "it keeps") if len(without) == 1 else ("have", "they keep")
        text += (
            f" {_names(without)} {has} no validation row, so no threshold was chosen: {them} "
            f"{without[0].threshold:g}."
        )
    if few:
        has, what = ("has", "its threshold") if len(few) == 1 else ("have", "their thresholds")
        text += (
            f" {_names(few)} {has} fewer than {FEW_ROWS} validation rows, so {what} may be far "
            "from the best: add rows of the label, or raise --validation_fraction."
        )
    return text


def _names(labels: Sequence[LabelPart]) -> str:
    return quoted_list(inert(label.label) for label in labels)


def _share(count: int, total: int, ends: Ends | None = None) -> Cell:
    if not total:
        return "none"
    share = f"{count / total:.3f}"
    return share if ends is None else ValueWithDetail(share, f"({ends[0]:.3f} to {ends[1]:.3f})")


def _interval(ends: Ends) -> str:
    return f"({ends[0]:z.4f} to {ends[1]:z.4f})"


def _percents(ends: Ends) -> str:
    low, high = (f"{100 * end:.2f}" for end in ends)
    return f"95 % interval {low} to {high} %"
