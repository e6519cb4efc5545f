"""Labels of the training split that are probably wrong, found by confident learning.

Each row, or word, is judged by simple methods that were fitted on other rows: logistic regression
on features of the model before fine-tuning, and for texts on TF-IDF, whose probabilities are
averaged. `cleanlab` finds the labels that contradict them. Source: Northcutt, Jiang and Chuang
(2021), "Confident Learning: Estimating Uncertainty in Dataset Labels". What it finds is measured in
`docs/mistakes.md`.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from torch import nn

from ampft.checks.baseline import bag_of_words_model, frozen_features, joined_texts, regression
from ampft.data.corrections import CORRECTED
from ampft.data.row_labels import UnitLabels
from ampft.data.splits import dependent_groups
from ampft.errors import InputError
from ampft.evaluation.simple_methods import BAG_OF_WORDS, FROZEN
from ampft.features.feature import Feature, Write
from ampft.files import write_text
from ampft.tasks.task import Task
from ampft.text.escaping import without_credentials
from ampft.text.numbers import counted
from ampft.text.page import (
    Block,
    Card,
    Cards,
    Name,
    Page,
    Paragraph,
    Quote,
    Section,
    Table,
    html_page,
    terminal_table,
)
from ampft.text.terminal import labelled

LABEL_ERRORS_NAME, PAGE_NAME = "label_errors.csv", "label_errors.html"
FLAG = "--inspect_data"
FOLDS = 5
FILTER = "low_self_confidence"  # of `find_label_issues`
SHOWN, SHOWN_IN_PAGE = 20, 300
LONGEST_TEXT = 60
MAX_FITTED = 20_000  # rows, or words, that a regression is fitted on
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabelError:
    """A training example, or word, whose label is probably wrong."""

    row: int  # Row of the training split.
    label: str  # Its label.
    suggested: str  # The label that the method believes in.
    label_probability: float  # Out-of-fold probability of its label.
    suggested_probability: float  # Out-of-fold probability of the suggested label.
    text: str  # The text, the texts of a pair on two lines, or the file.
    origin: dict[str, Any]  # Line or row of the file, and id, by name.
    word: str | None = None  # The word that has the label; None if the row has it.
    place: int | None = None  # Number of the word in its row, from 1.


@dataclass(frozen=True)
class LabelErrors:
    """What an inspection found, the most suspicious first."""

    errors: Sequence[LabelError]
    method: str  # Simple methods that judged.
    judged: int  # Number of rows, or words.
    unit: str = "training label"


class Units(NamedTuple):
    """What has labels: rows, or words."""

    targets: npt.NDArray[Any]  # (n,) classes, or (n, K) whether a row has a label.
    row_of: IntArray  # (n,) row of each.
    groups: IntArray | None  # (n,) what stays in one fold together; None if all are independent.
    classes: int


def find_label_errors(task: Task, device: torch.device | None = None, seed: int = 0) -> LabelErrors:
    """Return the training labels that are probably wrong, the most suspicious first.

    With several labels per row, each label is a question with two answers.

    Args:
        device: Device of the forward passes; None for the CPU.
        seed: Seed of parameters that are drawn at random.

    Raises:
        InputError: No simple method can judge the rows.
    """
    units = _units(task)
    method, probabilities = _judged(task, units, device or torch.device("cpu"), seed)
    names, targets = task.label_names, units.targets
    questions = [(names, targets, probabilities)]
    if targets.ndim == 2:
        questions = [
            ((f"without {name}", f"with {name}"), has.astype(np.int64), np.column_stack([1 - p, p]))
            for name, has, p in zip(names, targets.T, probabilities.T, strict=True)
        ]
    texts, words = _texts(task), _words(task)
    found = [
        (shares[unit, labels[unit]], unit, answers, labels[unit], shares[unit])
        for answers, labels, shares in questions
        for unit in suspicious(labels, shares)
    ]
    errors = []
    for own, unit, answers, label, shares in sorted(found, key=lambda each: each[:2]):
        row = int(units.row_of[unit])
        other = int(np.where(np.arange(len(shares)) == label, -1.0, shares).argmax())
        word, place = (None, None) if words is None else words(unit)
        errors.append(
            LabelError(
                row=row,
                label=answers[label],
                suggested=answers[other],
                label_probability=float(own),
                suggested_probability=float(shares[other]),
                text=texts(row),
                origin={
                    name: values[0]
                    for name, values in task.origins("train", slice(row, row + 1)).items()
                },
                word=word,
                place=place,
            )
        )
    unit = "training label" if words is None else "label of a word"
    return LabelErrors(errors, method, len(targets), unit)


def suspicious(labels: IntArray, probabilities: FloatArray) -> IntArray:
    """Return the rows whose labels are probably wrong, by cleanlab's `find_label_issues`.

    Args:
        labels: (n,) classes.
        probabilities: (n, K) out-of-fold probabilities.
    """
    from cleanlab.filter import find_label_issues

    known = np.unique(labels)
    if len(known) < 2:
        return np.zeros(0, dtype=np.int64)
    shares = probabilities[:, known]
    shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    is_issue = find_label_issues(np.searchsorted(known, labels), shares, filter_by=FILTER, n_jobs=1)
    return np.flatnonzero(is_issue)


def _units(task: Task) -> Units:
    labels, groups = task.labels["train"], dependent_groups(task.data, "train")
    if isinstance(labels, UnitLabels):
        row_of = np.repeat(np.arange(len(labels)), labels.counts)
        ids = np.arange(len(labels)) if groups is None else groups.ids
        return Units(labels.codes, row_of, ids[row_of], len(task.label_names))
    targets = np.asarray(labels)
    of_rows = None if groups is None else groups.ids
    return Units(targets, np.arange(len(targets)), of_rows, len(task.label_names))


def _judged(task: Task, units: Units, device: torch.device, seed: int) -> tuple[str, FloatArray]:
    """Return the simple methods, and the mean of their (n, K) out-of-fold probabilities."""
    folds = list(_folds(units))
    found, reasons = {}, []
    for name, method in _methods(task, units, device, seed).items():
        try:
            fit = method()
            probabilities = np.zeros((len(units.targets), units.classes))
            for train, held_out in folds:
                probabilities[held_out] = fit(train, held_out)
            found[name] = probabilities
        except InputError as error:
            reasons.append(str(error))
    if not found:
        raise InputError("\n".join(reasons))
    return " and ".join(found), np.mean(list(found.values()), axis=0)


Fit = Callable[[IntArray, IntArray], npt.NDArray[np.float32]]


def _methods(
    task: Task, units: Units, device: torch.device, seed: int
) -> Mapping[str, Callable[[], Fit]]:
    """Return functions by name that prepare a method that fits some units and predicts others."""

    def frozen() -> Fit:
        features = frozen_features(task, device, seed, FLAG)
        assert len(features) == len(units.targets), "every row, or word in a window, has features"

        def fit(train: IntArray, held_out: IntArray) -> npt.NDArray[np.float32]:
            predict = regression(features[train], units.targets[train], units.classes, None)
            return predict(features[held_out])

        return fit

    def words() -> Fit:
        texts = joined_texts(task.data, "train")

        def fit(train: IntArray, held_out: IntArray) -> npt.NDArray[np.float32]:
            rows, targets = [texts[row] for row in train], units.targets[train]
            return bag_of_words_model(rows, targets, units.classes, FLAG)(
                [texts[row] for row in held_out]
            )

        return fit

    kind = task.row.kind
    return {FROZEN: frozen, **({BAG_OF_WORDS: words} if kind.has_texts else {})}


def _folds(units: Units) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the units that are fitted and those that are held out."""
    strata = units.targets
    if strata.ndim == 2:  # the first label, if there are several
        strata = np.where(strata.any(axis=1), strata.argmax(axis=1), -1)
    _refuse_few_units(units, strata)
    folds: Any = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    if units.groups is not None:
        folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0)
    draw = np.random.default_rng(0)
    with warnings.catch_warnings():
        # Rare classes are in few folds, and are then not found where they are missing.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        for train, held_out in folds.split(strata, strata, units.groups):
            yield draw.permutation(train)[:MAX_FITTED], held_out


def _refuse_few_units(units: Units, strata: IntArray) -> None:
    """Raise InputError if too few units, or groups of them, can be judged by the others."""
    groups = len(strata) if units.groups is None else len(np.unique(units.groups))
    most = int(np.unique(strata, return_counts=True)[1].max())
    if min(groups, most) >= FOLDS:
        return
    problem = f"no class has more than {counted(most, 'row')}"
    if groups < FOLDS:
        problem = f"it has {counted(groups, 'independent row')}"
    raise InputError(
        f"{FLAG}: the training split is cut into {FOLDS} parts, and the others judge each one, "
        f"but {problem}. Add rows until a class has {FOLDS}, or remove the flag."
    )


def _texts(task: Task) -> Callable[[int], str]:
    """Return the function that returns a row as text."""

    def text(row: int) -> str:
        columns = task.inputs.references("train", slice(row, row + 1))
        return "\n".join(str(values[0]) for values in columns.values())

    return text


def _words(task: Task) -> Callable[[int], tuple[str, int]] | None:
    """Return the function that returns a word and its number in its sentence; None for rows."""
    labels = task.labels["train"]
    if not isinstance(labels, UnitLabels):
        return None
    starts = np.cumsum(labels.counts) - labels.counts
    part = task.data.splits["train"]
    (column,) = task.data.input_columns

    def word(unit: int) -> tuple[str, int]:
        row = int(np.searchsorted(starts, unit, "right")) - 1
        place = int(unit - starts[row])
        return str(part[row][column][place]), place + 1

    return word


def label_errors_table(found: LabelErrors) -> Table:
    """Return the most suspicious labels."""
    rows = [
        (
            _where(each),
            Quote(each.label),
            Quote(each.suggested),
            f"{each.label_probability:.2f}",
            f"{each.suggested_probability:.2f}",
            Quote(_shortened(each)),
        )
        for each in found.errors[:SHOWN]
    ]
    header = ("where", "label", "perhaps", "p(label)", "p(perhaps)", "text")
    return Table(header=header, rows=rows, left=len(header))


def _where(each: LabelError) -> str:
    parts = [f"{name.replace('_', ' ')} {value}" for name, value in each.origin.items()]
    parts = parts or [f"row {each.row}"]
    return ", ".join([*parts, *([] if each.place is None else [f"word {each.place}"])])


def _shortened(each: LabelError) -> str:
    text = each.text if each.word is None else f"{each.word}: {each.text}"
    return text[:LONGEST_TEXT] + ("…" if len(text) > LONGEST_TEXT else "")


def inspection_text(found: LabelErrors) -> str:
    """Return the text to print before the training."""
    if not found.errors:
        return labelled("labels", "none of the training labels is suspicious")
    title = labelled(
        "labels",
        f"{counted(len(found.errors), found.unit)} of {found.judged:,} may be wrong, according to "
        f"{found.method} that were not fitted on them; {LABEL_ERRORS_NAME} and {PAGE_NAME} will "
        "list them",
    )
    return f"{title}\n\n{terminal_table(label_errors_table(found))}\n"


def label_errors_csv(found: LabelErrors) -> str:
    """Return all suspicious labels as CSV, with an empty column for corrections."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    errors = found.errors
    origins = list(errors[0].origin) if errors else []
    has_words = any(each.word is not None for each in errors)
    header = ("row", "label", "suggested", CORRECTED, "label_probability", "suggested_probability")
    writer.writerow([*origins, *header, *(("word", "place") if has_words else ()), "text"])
    for each in errors:
        probabilities = (each.label_probability, each.suggested_probability)
        writer.writerow([
            *each.origin.values(), each.row, each.label, each.suggested, "",
            *(f"{value:.6f}" for value in probabilities),
            *((each.word, each.place) if has_words else ()), each.text,
        ])  # fmt: skip
    return buffer.getvalue()


def label_errors_page(found: LabelErrors, name: str) -> str:
    """Return the suspicious labels with their whole texts as an HTML document.

    Args:
        name: Name of the data.
    """
    shown = found.errors[:SHOWN_IN_PAGE]
    lead = (
        f"{found.method}, fitted on other rows, contradict these labels. Some of them are "
        f"right. To correct labels, write the right ones into the column {CORRECTED!r} of "
        f"{LABEL_ERRORS_NAME}, leave it empty where the label is right, and train again with "
        "--label_corrections and the path of that file."
    )
    blocks: list[Block] = [Paragraph(lead), Cards(tuple(map(_card, shown)), role="cases")]
    if len(found.errors) > len(shown):
        blocks.insert(1, Paragraph(f"The first {len(shown)}; {LABEL_ERRORS_NAME} has all."))
    headline = f"{counted(len(found.errors), found.unit)} of {found.judged:,} may be wrong"
    return html_page(
        Page(
            kind="errors",
            title="Labels that may be wrong",
            kicker=("Labels of ", Quote(name)),
            headline=headline,
            sections=[Section("labels", "Most suspicious labels", blocks)],
        )
    )


def _card(each: LabelError) -> Card:
    title = (Name(each.label), ", perhaps ", Name(each.suggested))
    text = each.text if each.word is None else f"{each.word} in: {each.text}"
    shares = f"probabilities {each.label_probability:.2f} and {each.suggested_probability:.2f}"
    blocks = [Paragraph((Quote(text),)), Paragraph(f"{_where(each)}; {shares}", "facts")]
    return Card(title, blocks, kind="bad", tag=f"{each.label_probability:.2f}")


class LabelErrorInspection(Feature):
    """The probably wrong labels of a run with `--inspect_data`: printed, and saved."""

    name = "inspected_data"

    def __init__(self, task: Task, write: Write, device: torch.device, seed: int) -> None:
        """Find and print them.

        Args:
            task: Task of the run.
            write: Function that prints a line.
            device: Device of the forward passes.
            seed: Seed of parameters that are drawn at random.
        """
        self._found = find_label_errors(task, device, seed)
        self._name = without_credentials(task.data.name)
        write(inspection_text(self._found))

    def save(self, folder: Path, model: nn.Module) -> None:
        """Write all suspicious labels, as a table and as a page."""
        write_text(folder / LABEL_ERRORS_NAME, label_errors_csv(self._found))
        write_text(folder / PAGE_NAME, label_errors_page(self._found, self._name))
