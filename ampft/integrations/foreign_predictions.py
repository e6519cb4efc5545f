"""Compare predictions that any framework wrote as tables, without run records."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt

from ampft.comparison.analysis.loading import missing_seeds
from ampft.comparison.analysis.predictions import (
    ALPHA,
    ArmPredictions,
    check_margin,
    with_prediction_results,
)
from ampft.comparison.analysis.run_predictions import (
    BINS,
    CaseInputs,
    Cases,
    RunPredictions,
    primary_metric,
)
from ampft.comparison.analysis.stamps import seed_stamps
from ampft.comparison.findings import (
    CALIBRATION_ERROR,
    PREDICTIONS,
    UNKNOWN,
    ArmResult,
    Comparison,
    RunOutcome,
    metric_infos,
)
from ampft.comparison.remarks import Remark, remark
from ampft.comparison.settings import MIN_SEEDS
from ampft.data.splits import Groups, group_equal_keys, normalized_text
from ampft.errors import InputError, did_you_mean
from ampft.integrations.foreign_tables import (
    FLAG,
    GROUP,
    TEXT,
    ForeignRun,
    Runs,
    TableError,
    read_tables,
)
from ampft.metrics.calibration import calibration_sums, expected_calibration_error
from ampft.metrics.scores import confusion, confusion_counts, report_scores
from ampft.metrics.sums import mean_sums, single_label_sums
from ampft.tasks.outcome import IntArray
from ampft.tasks.single_label import MAX_COMPARED_CLASSES, METRICS, SUM_TOLERANCE, SingleLabel
from ampft.tasks.table import problem_types
from ampft.text.escaping import inert
from ampft.text.json_io import JSONValue
from ampft.text.numbers import counted

LISTED = 5  # ids or names in a message
SPLIT = "predictions"  # name of the split that tables predict


def compare_tables(
    sources: Sequence[str],
    *,
    metric: str | None = None,
    margin: float = 0.01,
    baseline: str | None = None,
    label_names: Sequence[str] | None = None,
    encoding: str | None = None,
) -> Comparison:
    """Compare tables of predictions by the statistics of `compare_folders`.

    Args:
        sources: Files, each as FILE or ARM:SEED=FILE, or as ARM=FILE if each arm is one model.
        metric: Name of the primary metric; None for accuracy.
        margin: Equivalence margin as a fraction (0.01 is one point).
        baseline: Arm that all others are compared with; None for the first one.
        label_names: All classes; None for those that occur as labels or have probabilities.
        encoding: Character encoding of CSV, TSV and JSON files; None for UTF-8.

    Raises:
        InputError: A table cannot be read or compared, or an argument is out of range.
    """
    return compare_rows(
        read_tables(sources, encoding=encoding),
        metric=metric,
        margin=margin,
        baseline=baseline,
        label_names=label_names,
    )


def compare_rows(
    runs: Runs,
    *,
    metric: str | None = None,
    margin: float = 0.01,
    baseline: str | None = None,
    label_names: Sequence[str] | None = None,
) -> Comparison:
    """Compare the rows of tables, as `compare_tables` does.

    Args:
        runs: Rows by arm and seed.
    """
    check_margin(margin)
    name = primary_metric(metric, problem_types()[SingleLabel.name])
    runs = _baseline_first(runs, baseline)
    seeds = _checked_seeds(runs)
    table = cases_of_tables(runs, label_names)
    by_arm, cases = predictions_of_tables(runs, table, name), table.cases
    predictions = {
        arm: ArmPredictions([by_seed[seed] for seed in seeds]) for arm, by_seed in by_arm.items()
    }
    # What the intervals of a cross-validation mean; nothing for a test split.
    divided = next(iter(predictions.values())).in_mode[0].folds
    folds: tuple[Remark, ...] = ()
    if divided is not None:
        folds = (remark("folds", folds=1 + int(divided.max()), repeats=len(seeds)),)
    everything = [runs[arm][seed] for arm in runs for seed in seeds]
    names = cases.label_names
    draft = Comparison(
        kind=PREDICTIONS,
        varied=(),
        title=f"Predictions of {', '.join(runs)}",
        metric=name,
        metrics=metric_infos(cases.problem),
        margin=margin,
        alpha=ALPHA,
        seed_counts=(len(seeds),),
        seeds=seeds,
        split=cases.split,
        examples=len(table.ids),
        groups=cases.group_count,
        label_names=names,
        arms=tuple(_arm(arm, by_seed) for arm, by_seed in runs.items()),
        stamps=(remark("no_record"), *_copies(runs, seeds), *seed_stamps(len(seeds)), *folds),
        setup={
            "files": ", ".join(dict.fromkeys(Path(run.origin).name for run in everything)),
            "examples": f"{len(table.ids):,}; {counted(len(names), 'class')}",
        },
        environment={},
    )
    return with_prediction_results(draft, predictions, cases)


@dataclass(frozen=True, kw_only=True)
class TableCases:
    """The examples that tables predict."""

    ids: Sequence[str]  # (n,) their ids.
    cases: Cases  # Their labels and groups, in the same order.
    texts: Mapping[str, str]  # Input by id; empty if it is unknown.


def cases_of_tables(runs: Runs, label_names: Sequence[str] | None = None) -> TableCases:
    """Return the examples that all tables predict, by the labels, texts and groups in them.

    Args:
        runs: Rows by arm and seed.
        label_names: All classes; None for those that occur as labels or have probabilities.

    Raises:
        InputError: The tables have other examples, labels, texts or groups.
    """
    everything = [by_seed[seed] for by_seed in runs.values() for seed in sorted(by_seed)]
    first = everything[0]
    ids = list(first.ids)
    for run in everything:
        _check_same_examples(run, first)
    names = _class_names(everything, label_names)
    texts, groups = texts_and_groups(everything)
    cases = Cases(
        path=Path(first.origin),
        kind=SingleLabel.name,
        split=SPLIT,
        truth=_codes(first.labels.values(), names, first.origin, "label"),
        label_names=names,
        class_names=names,
        groups=_groups(texts, groups, ids),
        inputs=CaseInputs(
            lambda rows: {row: texts.get(ids[row], f"id {ids[row]}") for row in rows},
            noun="texts" if texts else "examples",
            has_words=bool(texts),
        ),
    )
    return TableCases(ids=ids, cases=cases, texts=texts)


def predictions_of_tables(
    runs: Runs, table: TableCases, metric: str
) -> dict[str, dict[int, RunPredictions]]:
    """Return the predictions in tables, by arm and seed.

    Only ids, predictions, probabilities and folds are read from them.

    Args:
        runs: Rows by arm and seed.

    Raises:
        InputError: The tables have other ids, classes or folds, or lack probabilities.
    """
    for run in (run for by_seed in runs.values() for run in by_seed.values()):
        if run.ids.keys() != set(table.ids):
            raise TableError(
                "its ids are not the test set's",
                f"{FLAG} {run.origin}: its ids are not the ids of the compared examples.",
            )
        if METRICS[metric].values is not None and not run.has_probabilities:
            raise InputError(
                f"--metric {metric}: it needs probabilities, and {run.origin} has only "
                "predictions. Add a column of probabilities, or use another metric."
            )
    predictions = {
        arm: {
            seed: _run_predictions(run, table.ids, table.cases, metric)
            for seed, run in sorted(by_seed.items())
        }
        for arm, by_seed in runs.items()
    }
    check_folds(predictions)
    return predictions


def _arm(name: str, by_seed: Mapping[int, ForeignRun]) -> ArmResult:
    """Return an arm that is known only by its predictions."""
    return ArmResult(
        name=name,
        mode=name,
        is_placebo=False,
        execution=UNKNOWN,
        executed=None,
        status="complete",
        runs=tuple(
            RunOutcome(
                seed=seed,
                status="finished",
                reason=None,
                folder=Path(run.origin).name,
                warnings=None,
            )
            for seed, run in sorted(by_seed.items())
        ),
    )


def _baseline_first(runs: Runs, baseline: str | None) -> Runs:
    listed = ", ".join(runs)
    if baseline is not None and baseline not in runs:
        raise InputError(
            f"--baseline {baseline}: the tables have the arms {listed}."
            f"{did_you_mean(baseline, list(runs))}"
        )
    if len(runs) < 2:
        raise InputError(
            f"{FLAG}: the only arm is {listed}, so nothing can be compared. Add a table of another "
            "arm."
        )
    first = baseline or next(iter(runs))
    return {first: runs[first], **{arm: rows for arm, rows in runs.items() if arm != first}}


def _checked_seeds(runs: Runs) -> tuple[int, ...]:
    seeds = sorted({seed for arm in runs.values() for seed in arm})
    if missing := missing_seeds(runs, "rows"):
        raise InputError(
            f"{FLAG}: predictions are compared in pairs with the same seed, but some are missing: "
            f"{missing}. Add them, or leave out those seeds."
        )
    if 1 < len(seeds) < MIN_SEEDS:
        raise InputError(
            f"{FLAG}: received {counted(len(seeds), 'seed')} per arm, but error bars over "
            f"trainings need at least {MIN_SEEDS}. Add trainings with other seeds, or give one "
            "table per arm to compare these models only."
        )
    return tuple(seeds)


def _check_same_examples(run: ForeignRun, first: ForeignRun) -> None:
    lacking = [id_ for id_ in first.ids if id_ not in run.ids]
    extra = [id_ for id_ in run.ids if id_ not in first.ids]
    for some, kind in ((lacking, "lacks"), (extra, "also has")):
        if some:
            raise TableError(
                "its ids differ from the other tables",
                f"{FLAG} {run.origin}: compared with {first.origin}, it {kind} "
                f"{counted(len(some), 'id')}: {_listed(some)}. Every arm and seed must predict the "
                "same examples.",
            )
    differing = [id_ for id_, label in first.labels.items() if run.labels[id_] != label]
    if differing:
        id_ = differing[0]
        raise TableError(
            "its labels differ from the other tables",
            f"{FLAG} {run.origin}: the labels of {counted(len(differing), 'id')} are not those in "
            f"{first.origin}, the first of id {id_!r}: {run.labels[id_]!r} and "
            f"{first.labels[id_]!r}. The label is the truth, which must be the same everywhere.",
        )


def _copies(runs: Runs, seeds: Sequence[int]) -> tuple[Remark, ...]:
    """Return a stamp for arms and seeds with the same predictions, as of one copied table."""
    same: dict[str, list[JSONValue]] = {}
    for arm, by_seed in runs.items():
        for seed in seeds:
            run = by_seed[seed]
            values = [(i, run.predictions.get(i), run.probabilities.get(i)) for i in run.ids]
            content = hashlib.sha256(str(sorted(values, key=itemgetter(0))).encode()).hexdigest()
            same.setdefault(content, []).append(arm if len(seeds) == 1 else f"{arm} {seed}")
    copies: list[JSONValue] = [names[:LISTED] for names in same.values() if len(names) > 1]
    if len(seeds) == 1:
        return (remark("same_predictions", arms=copies[:LISTED]),) if copies else ()
    return (remark("copied", tables=copies[:LISTED]),) if copies else ()


def check_folds(predictions: Mapping[str, Mapping[int, RunPredictions]]) -> None:
    """Check that all arms have the same folds at a seed, and all seeds as many of them.

    Raises:
        InputError: They have not.
    """
    found: dict[int, bytes] = {}
    counts: set[int] = set()
    for seed, run in (item for by_seed in predictions.values() for item in by_seed.items()):
        folds = b"" if run.folds is None else run.folds.tobytes()
        counts.add(0 if run.folds is None else 1 + int(run.folds.max()))
        if found.setdefault(seed, folds) != folds or {0} < counts:
            raise TableError(
                "its folds differ from the best one's",
                f"{FLAG}: the arms have different folds, or some tables lack the column fold. "
                "Divide the rows in the same way for all arms of a seed.",
            )
    if len(counts) > 1:
        listed = " and ".join(map(str, sorted(counts)))
        raise TableError(
            "its tables have different numbers of folds",
            f"{FLAG}: the tables have {listed} folds. Divide the rows into as many folds at every "
            "seed.",
        )


def _check_columns_fit(
    run: ForeignRun,
    predicted: IntArray,
    probabilities: npt.NDArray[np.float64],
    names: Sequence[str],
) -> None:
    """Check that each column of probabilities belongs to the class it is named after.

    A prediction need not be the most probable class, because thresholds may have been chosen. But
    no thresholds lead from class to class in a circle: from a to b and from b to a, or over more.
    """
    likely = probabilities.argmax(axis=1).astype(np.int64)
    totals = np.bincount(predicted, minlength=len(names))
    pairs = confusion_counts(predicted, likely).tolist()
    usual = {one: other for one, other, count in pairs if one != other and 2 * count > totals[one]}
    while ends := [one for one, other in usual.items() if other not in usual]:
        for one in ends:
            del usual[one]
    count = int((predicted != likely).sum())
    if not usual and count < len(predicted):
        return
    one, other = next(iter(usual.items())) if usual else pairs[0][:2]
    raise TableError(
        "its predictions contradict its probabilities",
        f"{FLAG} {run.origin}: the column prediction and the probabilities contradict each other "
        f"in {counted(count, 'example')}: where {names[one]!r} is predicted, {names[other]!r} "
        "usually has the largest probability. Check the names or the order of the probabilities.",
    )


def _class_names(
    everything: Sequence[ForeignRun], requested: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the classes in the order of their numbers, or of their names."""
    if requested is not None:
        names = list(requested)
    else:
        found = set(everything[0].labels.values())
        for run in everything:
            one = next(iter(run.probabilities.values()), ())
            found |= set(one) if isinstance(one, Mapping) else {str(i) for i in range(len(one))}
        numeric = all(name.isdecimal() for name in found)
        names = sorted(found, key=lambda name: (int(name), name)) if numeric else sorted(found)
    listed = inert(", ".join(map(repr, names[:LISTED])))
    if len(set(names)) != len(names):
        raise InputError(f"--label_names: received {listed}, where a class occurs twice.")
    if len(names) < 2:
        examples = counted(len(everything[0].labels), "example")
        raise TableError(
            "its labels have one class",
            f"{FLAG}: the first table has {examples} and only the class {listed}. Compare more "
            "examples, or list all classes with --label_names.",
        )
    return tuple(names)


def _listed(values: Sequence[str]) -> str:
    """Return the first values in quotes."""
    return inert(", ".join(map(repr, values[:LISTED])) + (" ..." if len(values) > LISTED else ""))


def _codes(values: Collection[str], names: Sequence[str], origin: str, column: str) -> IntArray:
    index = {name: code for code, name in enumerate(names)}
    unknown = sorted({value for value in values if value not in index})
    if unknown:
        raise TableError(
            f"column {column} has an unknown class",
            f"{FLAG} {origin}: column {column} has {_listed(unknown)}, but the labels are "
            f"{inert(', '.join(map(repr, names[:20])))}. Fix the spelling, or give all classes "
            "with --label_names, separated by commas.",
        )
    return np.array([index[value] for value in values], dtype=np.int64)


def texts_and_groups(
    everything: Sequence[ForeignRun],
) -> tuple[Mapping[str, str], Mapping[str, str | None]]:
    """Return the texts and the groups of the examples by id, from whichever tables have them.

    Raises:
        InputError: Two tables have different texts or groups for an id.
    """
    texts = [(run.origin, run.texts) for run in everything if run.texts]
    groups = [(run.origin, run.groups) for run in everything if run.groups]
    compared = [
        (name, {i: normalized_text(text) for i, text in found.items()}) for name, found in texts
    ]
    _check_same_column(TEXT, compared)
    _check_same_column(GROUP, groups)
    return texts[0][1] if texts else {}, groups[0][1] if groups else {}


def _check_same_column(name: str, columns: Sequence[tuple[str, Mapping[str, str | None]]]) -> None:
    for origin, values in columns[1:]:
        expected = columns[0][1]
        differing = [id_ for id_ in values if values[id_] != expected[id_]]
        if differing:
            raise TableError(
                f"its column {name} differs from the other tables",
                f"{FLAG} {origin}: column {name} differs from {columns[0][0]} for "
                f"{counted(len(differing), 'id')}, the first {differing[0]!r}. Every table must "
                f"describe the same examples: correct it, or remove the column {name}.",
            )


def groups_by_row(groups: Sequence[str], ids: Sequence[str]) -> list[str] | None:
    """Return for each example the smallest id of its group; None if no two share a group.

    The same groups then have the same names in several tables, however these number them.

    Args:
        groups: Group of each example.
        ids: Id of each example.
    """
    smallest: dict[str, str] = {}
    for group, id_ in zip(groups, ids, strict=True):
        smallest[group] = min(id_, smallest.get(group, id_))
    return [smallest[group] for group in groups] if len(smallest) < len(ids) else None


def _groups(
    texts: Mapping[str, str], groups: Mapping[str, str | None], ids: Sequence[str]
) -> Groups | None:
    """Return the groups by a column `group` and by equal texts; None if all are independent."""
    if not groups and not texts:
        return None
    equal = (normalized_text(texts[id_]) or None for id_ in ids) if texts else ()
    if groups:
        return group_equal_keys((groups[id_] for id_ in ids), equal, column=GROUP)
    found = group_equal_keys(equal)
    return found if len(found) < len(ids) else None


def _run_predictions(
    run: ForeignRun, ids: Sequence[str], cases: Cases, metric: str
) -> RunPredictions:
    truth, names, groups = cases.truth, cases.label_names, cases.groups
    exact = _probabilities(run, ids, names) if run.has_probabilities else None
    probabilities = None if exact is None else exact.astype(np.float32)
    if run.predictions:
        values = [run.predictions[id_] for id_ in ids]
        predicted = _codes(values, names, run.origin, "prediction")
        if exact is not None and not run.is_of_model:
            _check_columns_fit(run, predicted, exact, names)
    else:
        assert exact is not None
        predicted = exact.argmax(axis=1).astype(np.int64)  # float32 would make ties
    correct = predicted == truth
    class_sums = single_label_sums(truth, predicted, len(names))
    given = SimpleNamespace(labels=truth, probabilities=probabilities)
    sums = {
        name: class_sums if row.values is None else mean_sums(row.values(given))
        for name, row in METRICS.items()
        if row.values is None or probabilities is not None
    }
    metrics = {name: METRICS[name].value(each) for name, each in sums.items()}
    confidence, digest = None, hashlib.sha256(predicted.tobytes())
    if probabilities is not None:
        digest.update(probabilities.tobytes())
        confidence = probabilities[np.arange(len(ids)), predicted]
        metrics[CALIBRATION_ERROR] = expected_calibration_error(confidence, correct)
    answered = None
    if run.answered:
        answered = np.array([run.answered[id_] for id_ in ids], dtype=bool)
    primary = sums[metric]
    many = len(names) > MAX_COMPARED_CLASSES
    return RunPredictions(
        choices=predicted.astype(np.int32),
        correct=correct,
        confidence=confidence,
        metrics=metrics,
        sums=primary if groups is None else primary.grouped(groups.ids),
        scores=report_scores(truth, predicted, len(names))[0],
        confusion=None if many else confusion(truth, predicted, len(names)),
        bins=None if confidence is None else calibration_sums(confidence, correct, bins=BINS),
        class_sums=class_sums if groups is None else class_sums.grouped(groups.ids),
        folds=_folds(run, ids, groups),
        answered=answered,
        sha256=digest.hexdigest(),
    )


def _folds(run: ForeignRun, ids: Sequence[str], groups: Groups | None) -> IntArray | None:
    """Return the fold of each case, or None; a case is a group where there are groups.

    Raises:
        InputError: There is one fold, or a group is in several.
    """
    if not run.folds:
        return None
    folds: IntArray = group_equal_keys(run.folds[id_] for id_ in ids).ids.astype(np.int64)
    if folds.max() == 0:
        raise TableError(
            "column fold has one value",
            f"{FLAG} {run.origin}: column fold has one value. A cross-validation has at least two "
            "folds; remove the column for a test split.",
        )
    if groups is None:
        return folds
    of_groups = np.zeros(len(groups), dtype=np.int64)
    of_groups[groups.ids] = folds
    if (of_groups[groups.ids] != folds).any():
        raise TableError(
            "its folds divide examples that belong together",
            f"{FLAG} {run.origin}: examples of one group, or with the same text, are in several "
            "folds, so that models were tested on what they were trained on. Keep them in one "
            "fold, as StratifiedGroupKFold does.",
        )
    return of_groups


def _probabilities(
    run: ForeignRun, ids: Sequence[str], names: tuple[str, ...]
) -> npt.NDArray[np.float64]:
    rows = np.empty((len(ids), len(names)))
    for index, id_ in enumerate(ids):
        values = run.probabilities[id_]
        if not isinstance(values, Mapping):
            if names != tuple(map(str, range(len(names)))):
                raise TableError(
                    "its probabilities are lists, whose order is unknown",
                    f"{FLAG} {run.origin}: the probabilities of id {id_!r} are a list, whose order "
                    "is known only if the labels are 0, 1, ... Write an object such as "
                    f'{{"{names[0]}": 0.9, ...}}, or a column probability_{names[0]} per class.',
                )
            values = dict(zip(names, values, strict=False)) if len(values) == len(names) else {}
        if set(values) != set(names):
            listed = ", ".join(sorted(map(str, values))[:LISTED]) or "another number of classes"
            raise TableError(
                "its probabilities are of other classes",
                f"{FLAG} {run.origin}: the probabilities of id {id_!r} have {inert(listed)}, but "
                f"the labels are {inert(', '.join(names[:20]))}. Give one probability per class.",
            )
        rows[index] = list(_numbers(values, names, f"{FLAG} {run.origin}, id {id_!r}"))
    sums = rows.sum(axis=1)
    wrong = ~(np.abs(sums - 1) <= SUM_TOLERANCE) | (rows < 0).any(axis=1) | (rows > 1).any(axis=1)
    if wrong.any():
        at = int(wrong.argmax())
        raise TableError(
            "its probabilities are not between 0 and 1 with sum 1",
            f"{FLAG} {run.origin}: the probabilities of {counted(int(wrong.sum()), 'example')} are "
            f"not between 0 and 1 with sum 1, the first of id {ids[at]!r} with sum "
            f"{sums[at]:.4g}. Write probabilities, not logits, with at least four decimals.",
        )
    return rows


def _numbers(values: Mapping[str, object], names: Sequence[str], where: str) -> Iterator[float]:
    for name in names:
        try:
            yield float(values[name])  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise TableError(
                "a probability is not a number",
                f"{where}: the probability of {name!r} is {values[name]!r}, not a number.",
            ) from None
