"""Likely errors in the labels of the training split, found by confident learning.

Source: Northcutt, Jiang and Chuang (2021), "Confident Learning: Estimating Uncertainty in Dataset
Labels". The probabilities come from the bag-of-words baseline; each text is predicted by a model
that was fitted without it. The rule is the same as in cleanlab's
`find_label_issues(filter_by="confident_learning")`, and takes a few lines.
"""

from __future__ import annotations

import csv
import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from torch import nn

from ampft.checks.baseline import bag_of_words_model, joined_texts
from ampft.data.splits import dependent_groups
from ampft.errors import InputError
from ampft.features.feature import Feature, Write
from ampft.files import write_text
from ampft.tasks.task import Task
from ampft.text.numbers import counted
from ampft.text.page import Quote, Table, terminal_table
from ampft.text.terminal import labelled

LABEL_ERRORS_NAME = "label_errors.csv"
FOLDS = 5
SHOWN = 20
LONGEST_TEXT = 60
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LabelError:
    """A training example whose label is probably wrong."""

    row: int  # Row of the training split.
    label: str  # Its label.
    suggested: str  # The label that the model believes in.
    label_probability: float  # Out-of-fold probability of its label.
    suggested_probability: float  # Out-of-fold probability of the suggested label.
    text: str  # The text, or the texts of a pair on two lines.
    origin: dict[str, Any]  # Line or row of the file, and id, by name.


def find_label_errors(task: Task) -> list[LabelError]:
    """Return the training examples whose labels are probably wrong, the most suspicious first.

    An example is suspicious if another class has at least the mean out-of-fold probability that
    examples of that class have for it, and a higher one than any other such class. With several
    labels per text, each label is a question with two answers.

    Raises:
        InputError: The texts contain no words.
    """
    targets = np.asarray(task.labels["train"])
    texts = joined_texts(task.data, "train")
    probabilities = _out_of_fold(task, texts, targets)
    names = task.label_names
    questions = [(names, targets, probabilities)]
    if targets.ndim == 2:
        questions = [
            ((f"without {name}", f"with {name}"), has_label, np.column_stack([1 - p, p]))
            for name, has_label, p in zip(
                names, targets.T.astype(np.int64), probabilities.T, strict=True
            )
        ]
    found = [
        LabelError(
            row=row,
            label=answers[labels[row]],
            suggested=answers[other],
            label_probability=float(shares[row, labels[row]]),
            suggested_probability=float(shares[row, other]),
            text=texts[row],
            origin={
                name: values[0]
                for name, values in task.origins("train", slice(row, row + 1)).items()
            },
        )
        for answers, labels, shares in questions
        for row, other in _confidently_other(labels, shares)
    ]
    return sorted(
        found, key=lambda each: (each.label_probability - each.suggested_probability, each.row)
    )


def _out_of_fold(task: Task, texts: list[str], targets: npt.NDArray[Any]) -> FloatArray:
    """Return (n, K) probabilities, each predicted by a model that has not seen the example."""
    groups = dependent_groups(task.data, "train")
    strata = targets
    if targets.ndim == 2:  # the first label, if there are several
        strata = np.where(targets.any(axis=1), targets.argmax(axis=1), -1)
    folds: Any = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    if groups is not None:
        folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0)
    probabilities = np.zeros((len(texts), len(task.label_names)))
    with warnings.catch_warnings():
        # Rare classes are in few folds, and are then not found where they are missing.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        try:
            parts = list(folds.split(strata, strata, None if groups is None else groups.ids))
        except ValueError as error:
            raise InputError(
                f"--inspect_data: the training split cannot be cut into {FOLDS} parts ({error}). "
                "Remove the flag."
            ) from None
    for train, held_out in parts:
        predict = bag_of_words_model(
            [texts[row] for row in train], targets[train], len(task.label_names), "--inspect_data"
        )
        probabilities[held_out] = predict([texts[row] for row in held_out])
    return probabilities


def _confidently_other(
    labels: npt.NDArray[np.integer], probabilities: FloatArray
) -> list[tuple[int, int]]:
    """Return (row, class) of the rows that confidently belong to another class than their label."""
    classes = probabilities.shape[1]
    thresholds = np.array([
        probabilities[labels == k, k].mean() if (labels == k).any() else np.inf
        for k in range(classes)
    ])  # fmt: skip
    reaching = np.where(probabilities >= thresholds, probabilities, -1.0)
    best = reaching.argmax(axis=1)
    suspicious = (reaching.max(axis=1) >= 0) & (best != labels)
    own = probabilities[np.arange(len(labels)), labels]
    suspicious &= own < probabilities[np.arange(len(labels)), best]
    return [(int(row), int(best[row])) for row in np.flatnonzero(suspicious)]


def label_errors_table(found: list[LabelError]) -> Table:
    """Return the most suspicious labels."""
    rows = [
        (
            ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in each.origin.items())
            or f"row {each.row}",
            Quote(each.label),
            Quote(each.suggested),
            f"{each.label_probability:.2f}",
            f"{each.suggested_probability:.2f}",
            Quote(each.text[:LONGEST_TEXT] + "…" * (len(each.text) > LONGEST_TEXT)),
        )
        for each in found[:SHOWN]
    ]
    header = ("where", "label", "perhaps", "p(label)", "p(perhaps)", "text")
    return Table(header=header, rows=rows, left=3)


def inspection_text(found: list[LabelError]) -> str:
    """Return the text to print before the training."""
    if not found:
        return labelled("labels", "none of the training labels is suspicious")
    title = labelled(
        "labels",
        f"{counted(len(found), 'training label')} may be wrong, according to a bag-of-words "
        f"model that was not fitted on them; {LABEL_ERRORS_NAME} will list all of them",
    )
    return f"{title}\n\n{terminal_table(label_errors_table(found))}\n"


def label_errors_csv(found: list[LabelError]) -> str:
    """Return all suspicious labels as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    origins = list(found[0].origin) if found else []
    header = ("row", "label", "suggested", "label_probability", "suggested_probability", "text")
    writer.writerow([*origins, *header])
    for each in found:
        probabilities = (each.label_probability, each.suggested_probability)
        writer.writerow([
            *each.origin.values(), each.row, each.label, each.suggested,
            *(f"{value:.6f}" for value in probabilities), each.text,
        ])  # fmt: skip
    return buffer.getvalue()


class LabelErrorInspection(Feature):
    """The probably wrong labels of a run with `--inspect_data`: printed, and saved as a table."""

    name = "inspected_data"

    def __init__(self, task: Task, write: Write) -> None:
        """Find and print them.

        Args:
            task: Task of the run, whose data consist of texts.
            write: Function that prints a line.
        """
        self._found = find_label_errors(task)
        write(inspection_text(self._found))

    def save(self, folder: Path, model: nn.Module) -> None:
        """Write all suspicious labels."""
        write_text(folder / LABEL_ERRORS_NAME, label_errors_csv(self._found))
