"""What a candidate and the best must be before they are judged; each refusal is one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ampft.comparison.settings import MIN_SEEDS
from ampft.errors import InputError, listed
from ampft.lab.referee.ledger import RUNS, JudgedModel, LedgerState, TestSet
from ampft.lab.referee.sides import CaseTable, Side, TrainingRows, training_rows
from ampft.metrics.sums import Metric, single_label_sums

CANDIDATE, BEST = "--candidate", "--best"  # the sides, by the flags that pass them


def check_defined(table: CaseTable, metric: Metric) -> None:
    """Check that a metric is defined whatever is predicted, also without one of the cases.

    Otherwise, a candidate could learn about the labels by predictions for which it is undefined.

    Raises:
        InputError: It is not.
    """
    cases = table.examples.cases
    if metric.values is not None:
        return
    frequent = int(np.bincount(cases.truth).argmax())
    always = np.full(len(cases.truth), frequent)
    sums = single_label_sums(cases.truth, always, len(cases.label_names))
    sums = sums if cases.groups is None else sums.grouped(cases.groups.ids)
    if not np.isfinite([metric.value(sums), *metric.leave_one_out(sums)]).all():
        raise InputError(
            f"--metric {metric.name}: it is undefined for some predictions, because nearly all "
            "test rows have one label. Use another metric."
        )


def check_test(folder: Path, state: LedgerState, test: TestSet) -> None:
    """Check that both sides predict the ledger's test set.

    Raises:
        InputError: They predict other rows, or the rows have other labels.
    """
    own = state.test
    pairs = {
        "split": (own.split, test.split),
        "number of examples": (own.examples, test.examples),
        "classes": (list(own.label_names), list(test.label_names)),
        "inputs": (own.fingerprint, test.fingerprint),
        "labels or ids": (own.sha256, test.sha256),
    }
    for name, (expected, received) in pairs.items():
        if expected != received:
            raise InputError(
                f"LEDGER {folder}: its test set differs from the one predicted here in {name}. "
                "A ledger judges on one test set only; start a new ledger for another one."
            )


def check_unchanged(side: Side, models: Sequence[JudgedModel]) -> None:
    """Check that the models of a side predict as they did when the ledger read them first.

    Raises:
        InputError: A model is missing, or its predictions have changed.
    """
    noun = side.name.removeprefix("--")
    for model in models:
        found = side.models.get(model.seed)
        if found is None:
            raise InputError(
                f"{side.name}: the run of the {noun} with seed {model.seed} is missing. Pass all "
                f"runs of the {noun}."
            )
        if found.predictions_sha256 != model.predictions_sha256:
            raise InputError(
                f"{side.name}: the predictions of {found.source} have changed since the ledger "
                f"read the {noun} with seed {model.seed}. Restore its files."
            )


def candidate_seeds(folder: Path, state: LedgerState, candidate: Side) -> list[int]:
    """Return the seeds of a candidate, which must be the first ones of the ledger, in their order.

    Raises:
        InputError: A seed is missing, or was not used by the best.
    """
    number, order = len(candidate.models), [model.seed for model in state.best]
    expected = order[:number]
    if set(candidate.models) != set(expected):
        missing = [seed for seed in expected if seed not in candidate.models]
        foreign = [seed for seed in candidate.models if seed not in order]
        what = f"lacks seed {listed_seeds(missing)}" if missing else "has too many seeds"
        remedy = "Seeds are used in this order, so that none is chosen for its result."
        if foreign:
            remedy += (
                f" To use {listed_seeds(foreign)}, add the best with them first: "
                f"ampft judge {folder} {BEST} RUN"
            )
        raise InputError(f"{CANDIDATE}: it {what}. The best has {listed_seeds(order)}. {remedy}")
    check_enough_seeds(candidate, number)
    return expected


def check_training(test: TestSet, candidate: Side) -> TrainingRows:
    """Check that a candidate reports on the test set and did not train on rows of it.

    Returns:
        What is known of its training rows; the splits' fingerprints are always compared.

    Raises:
        InputError: It reports on other rows, one of its other splits is the test set, or its
            training rows contain more rows of the test set than the first best's.
    """
    if test.source != RUNS:
        return TrainingRows(None, "")
    for run in candidate.runs.values():
        prints = run.record.data.fingerprints
        if prints.get(test.split) != test.fingerprint:
            raise InputError(
                f"{CANDIDATE} {run.folder}: the inputs of its {test.split} split differ from "
                "the ledger's test set. A ledger judges on one test set only."
            )
        same = [name for name, value in prints.items() if value == test.fingerprint]
        if trained := [name for name in same if name != test.split]:
            raise InputError(
                f"{CANDIDATE} {run.folder}: its {trained[0]} split is the test set of the "
                "ledger. Judge runs that have not seen these rows."
            )
    found = [training_rows(run, test) for run in candidate.runs.values()]
    for each in found:
        if each.shared is not None and each.shared > (test.shared_rows or 0):
            raise InputError(
                f"{CANDIDATE}: its training rows contain more rows of the test set than the first "
                "best's. Remove them and train again."
            )
    return next((each for each in found if not each.is_checked), found[0])


def check_new_rows(test: TestSet, claimed: TestSet) -> None:
    """Check that a final claim is about rows that no try has used.

    Rows are equal if their texts are, or their ids where one of the two has no texts.

    Raises:
        InputError: It has rows of the ledger, or nothing tells.
    """
    pairs = ((test.rows, claimed.rows), (test.ids, claimed.ids))
    own, new = next(filter(all, pairs), ((), ()))
    if not own:
        column = "text" if test.rows else "id"
        raise InputError(
            "--final: rows are compared by their texts or by their ids, but neither of them is in "
            f"both the ledger and the claim. Pass tables with the ledger's column {column}."
        )
    if not set(own).isdisjoint(new):
        raise InputError(
            "--final: some of its rows are rows of the ledger. The final claim needs rows that no "
            "try has used. Rows are compared by their texts, and by their ids if the ledger or the "
            "claim has no texts."
        )


def check_enough_seeds(side: Side, number: int) -> None:
    """Check that a side has enough seeds for an interval over trainings.

    Raises:
        InputError: It has fewer.
    """
    if number < MIN_SEEDS:
        raise InputError(
            f"{side.name}: received {number} seed{'s' if number != 1 else ''}, but a change is "
            f"judged over at least {MIN_SEEDS}; 5 to 10 decide far more often. Train it with more "
            "seeds."
        )


class IdenticalPredictions(InputError):
    """The candidate predicts exactly what the best predicts; nothing was written."""


def is_identical(candidate: Side, best: Side) -> bool:
    """Return whether a candidate predicts as the best does, with every seed of the candidate."""
    return all(
        model.predictions_sha256 == best.models[seed].predictions_sha256
        for seed, model in candidate.models.items()
    )


def listed_seeds(seeds: Iterable[int]) -> str:
    """Return seeds in a message."""
    return listed([str(seed) for seed in seeds])
