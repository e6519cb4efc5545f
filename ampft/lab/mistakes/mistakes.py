"""The most confident errors of a run and its most confused pairs: errors.html."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from ampft.errors import InputError
from ampft.kinds.views import CasePrediction
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.manifest import check_files
from ampft.runs.predictions import CaseViewer, is_input, read_predictions, read_rows
from ampft.runs.record import RunRecord, not_finished, read_record
from ampft.runs.run_text import problem_of, task_row
from ampft.tasks.outcome import OutcomeMistakes, main_metrics_text
from ampft.text.numbers import counted, percent
from ampft.text.page import (
    Block,
    Card,
    Cards,
    Cell,
    Details,
    Name,
    Page,
    Paragraph,
    Quote,
    Section,
    ShownCase,
    Table,
    html_page,
    isolated,
    terminal,
)

ORIGINS = ("id", "file", "file_line", "file_row", "position")
PAIR_EXAMPLES = 3
PRINTED = 8  # errors in a terminal
PAIRS_WITH_FILES = 6  # pairs whose examples are shown if these are pictures or sounds


@dataclass(frozen=True)
class Mistake:
    """A case whose prediction is wrong."""

    case: int  # Row of the split.
    label: str  # Its label; empty if `prediction` says how good the prediction is.
    prediction: str  # Its prediction.
    # Probability of the wrong prediction, 0 to 1; of masks, the share of wrong pixels.
    confidence: float
    details: str  # The labels or words that are wrong, if a case has several; otherwise empty.
    inputs: dict[str, str]  # Input columns of the case by name: texts, or a reference.
    origin: str  # Where the case comes from: its id, or line or row of the file.
    shown: ShownCase  # The case as the page shows it.

    @property
    def statement(self) -> str:
        """The label and the prediction in words."""
        return f"{self.label} predicted as {self.prediction}" if self.label else self.prediction


@dataclass(frozen=True)
class ConfusedPair:
    """A class that is taken for another."""

    label: str  # The class.
    prediction: str  # The class that is predicted.
    count: int  # Number of cases or units for which this happened.
    support: int  # Number of cases or units of the class.
    reverse: int  # Number of cases or units for which the opposite happened.
    examples: tuple[Mistake, ...]  # The most confident of these mistakes, if they are cases.


@dataclass(frozen=True)
class Mistakes:
    """The mistakes of a run on its final split."""

    record: RunRecord  # Record of the run.
    split: str  # Name of the split.
    cases: int  # Number of cases.
    wrong: int  # Number of cases whose prediction is wrong.
    summary: str  # Metrics of the split.
    confident: tuple[Mistake, ...]  # The most confident errors, the most confident first.
    pairs: tuple[ConfusedPair, ...]  # The most confused pairs, the most frequent first.
    outcome: OutcomeMistakes  # What `pairs` count, and what `confident` is ordered by.


def find_mistakes(folder: Path, limit: int) -> Mistakes:
    """Return the mistakes of a finished run.

    Args:
        limit: Number of confident errors, and of pairs.

    Raises:
        InputError: The folder does not hold a finished run, or its predictions were changed.
    """
    record = read_record(folder)
    if record.status != "finished":
        raise InputError(f"RUN {folder}: {not_finished(record)}.")
    check_files(folder, record.files, [PREDICTIONS_NAME])
    path = folder / PREDICTIONS_NAME
    outcome, problem = read_predictions(path), problem_of(record)
    mistakes = outcome.mistakes()
    wrong = np.flatnonzero(~outcome.correct)
    order = wrong[np.argsort(-mistakes.scores[wrong], kind="stable")]
    counts = mistakes.counts
    cells = sorted(counts, key=lambda cell: (-counts[cell], cell))[:limit]
    with_examples = cells[:PAIRS_WITH_FILES] if task_row(record).kind.has_files else cells
    examples = {cell: _cases_of(mistakes, order, cell)[:PAIR_EXAMPLES] for cell in with_examples}
    views = CaseViewer(record, outcome.split, outcome.label_names)
    truth, choices = outcome.truth, outcome.choices
    shown = sorted({*order[:limit].tolist(), *(c for cases in examples.values() for c in cases)})
    rows = read_rows(path, shown, lambda name: is_input(name) or name in ORIGINS)

    @cache
    def mistake(case: int) -> Mistake:
        row = rows[case]
        inputs = {name: str(value) for name, value in row.items() if is_input(name)}
        origins = (
            f"{name.replace('_', ' ')} {'unknown' if row[name] is None else row[name]}"
            for name in ORIGINS
            if name in row
        )
        prediction = CasePrediction("prediction", choices[case], path)
        return Mistake(
            case=case,
            label=problem.truth_text(truth[case], outcome.label_names)
            if mistakes.has_labels
            else "",
            prediction=problem.choice_text(choices[case], outcome.label_names),
            confidence=float(mistakes.scores[case]),
            details=mistakes.details(case),
            inputs=inputs,
            origin=", ".join(origins) or f"row {case}",
            shown=views.show(case, inputs, truth[case], [prediction]),
        )

    return Mistakes(
        record=record,
        split=outcome.split,
        cases=len(outcome),
        wrong=len(wrong),
        summary=main_metrics_text(problem, outcome.metrics()),
        confident=tuple(mistake(case) for case in order[:limit].tolist()),
        pairs=tuple(
            ConfusedPair(
                label=mistakes.names[label],
                prediction=mistakes.names[prediction],
                count=counts[label, prediction],
                support=mistakes.support[label],
                reverse=counts.get((prediction, label), 0),
                examples=tuple(map(mistake, examples.get((label, prediction), ()))),
            )
            for label, prediction in cells
        ),
        outcome=mistakes,
    )


def _cases_of(
    mistakes: OutcomeMistakes, order: npt.NDArray[np.intp], cell: tuple[int, int]
) -> list[int]:
    """Return the cases in which a label was taken for another, the most often first.

    Args:
        order: Wrong cases, in the order of equally frequent ones.
        cell: Label and prediction, as indices of the classes.
    """
    counts = mistakes.confused(*cell)[order].astype(np.int64)
    return order[np.argsort(-counts, kind="stable")][: (counts > 0).sum()].tolist()


def mistakes_text(mistakes: Mistakes) -> str:
    """Return the mistakes for a terminal: the most confident errors, and the confused pairs."""
    total = counted(mistakes.cases, "prediction")
    are = "is" if mistakes.wrong == 1 else "are"
    wrong = f"{mistakes.wrong:,} of {total} on {mistakes.split} {are} wrong: {mistakes.summary}"
    if not mistakes.outcome.names:  # numbers or losses: none is right or wrong
        wrong = f"{total} on {mistakes.split}: {mistakes.summary}"
    blocks: list[Block] = [Paragraph(wrong)]
    for mistake in mistakes.confident[:PRINTED]:
        text = " | ".join(mistake.inputs.values())
        shown = (
            f"{mistake.statement} ({mistake.origin}): {text[:160]}{'…' if len(text) > 160 else ''}"
        )
        blocks.append(Paragraph(shown, label=f"{mistake.confidence:.3f}"))
    return terminal([*blocks, *([pair_table(mistakes)] if mistakes.pairs else [])])


def page_text(mistakes: Mistakes) -> str:
    """Return the mistakes as one HTML document, in which every string is inert."""
    model, outcome = mistakes.record.model.name, mistakes.outcome
    are = "is" if mistakes.wrong == 1 else "are"
    wrong = f"{mistakes.wrong:,} of {counted(mistakes.cases, 'prediction')} {are} wrong"
    if not outcome.names:
        wrong = counted(mistakes.cases, "prediction")
    confident = Section(
        "confident",
        outcome.heading,
        [
            Paragraph(f"{outcome.ranking} Labels that are wrong themselves are often among these."),
            Cards(tuple(map(_card, mistakes.confident)), role="cases"),
        ],
    )
    pairs: list[Block] = [pair_table(mistakes)]
    for pair in mistakes.pairs:
        if pair.examples:
            summary = (Quote(pair.label), " predicted as ", Quote(pair.prediction))
            examples = Cards(tuple(map(_card, pair.examples)), role="cases")
            pairs.append(Details(summary, [examples]))
    return html_page(
        Page(
            kind="errors",
            title=f"Errors: {model}",
            kicker=("Errors: ", Quote(model), " on ", Quote(mistakes.record.data.name)),
            headline=wrong,
            lead=[Paragraph((Quote(mistakes.split), f": {mistakes.summary}."), "answer")],
            sections=[
                *([confident] if mistakes.confident else []),
                *([Section("pairs", "Most confused pairs", pairs)] if mistakes.pairs else []),
            ],
            has_media=True,
        )
    )


def _card(mistake: Mistake) -> Card:
    strong = Markup("<strong>{}</strong>")
    title: tuple[Cell, ...] = (strong.format(isolated(mistake.prediction)),)
    if mistake.label:
        title = (strong.format(isolated(mistake.label)), " predicted as ", *title)
    facts = filter(None, (mistake.details, mistake.origin))
    blocks: list[Block] = [mistake.shown, *(Paragraph(text, "facts") for text in facts)]
    return Card(title, blocks, kind="bad", tag=f"{mistake.confidence:.3f}")


def pair_table(mistakes: Mistakes) -> Table:
    """Return the confused pairs."""
    rows = [
        (
            Name(pair.label),
            Name(pair.prediction),
            f"{pair.count:,}",
            percent(pair.count / pair.support) if pair.support else "",
            f"{pair.reverse:,}",
        )
        for pair in mistakes.pairs
    ]
    return Table(
        header=("label", "predicted as", "count", "of the label", "the other way round"),
        rows=rows,
        note=f"Counts are {mistakes.outcome.unit}.",
        label="Most confused pairs",
        left=2,
    )
