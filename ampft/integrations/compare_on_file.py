"""Compare finished models on the rows of a file, such as this week's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from ampft.comparison.findings import Comparison
from ampft.comparison.remarks import remark
from ampft.data.sources.source_table import as_text
from ampft.errors import InputError
from ampft.files import describe_file
from ampft.integrations.foreign_predictions import compare_rows
from ampft.integrations.foreign_tables import ONLY_TABLE, ForeignRun
from ampft.kinds.prediction import PredictRequest
from ampft.runs.predict import SavedClassifier, checked_rows, load_run_classifier
from ampft.runs.run_text import task_row
from ampft.text.json_io import JSONValue
from ampft.text.terminal import quiet_libraries

FLAG = "--on"


def compare_on(
    file: str,
    folders: Sequence[Path],
    *,
    metric: str | None = None,
    margin: float = 0.01,
    baseline: str | None = None,
    encoding: str | None = None,
    drop_missing_labels: bool = False,
) -> Comparison:
    """Let each model predict the rows of a file with labels, and compare the predictions.

    A model gives a class that it does not know the probability 0.

    Args:
        file: File with the columns that the models were trained on.
        folders: Output folders of runs, one per model.
        metric: Name of the primary metric; None for accuracy.
        margin: Equivalence margin as a fraction (0.01 is one point).
        baseline: Name of the model that all others are compared with; None for the first one.
        encoding: Character encoding of a CSV, TSV or JSON file; None for UTF-8.
        drop_missing_labels: Whether rows without a label or an input are left out.

    Raises:
        InputError: A model or the file cannot be read, or the task has no single label per row.
    """
    if len(folders) < 2:
        raise InputError(f"{FLAG} {file}: received only RUN {folders[0]}. Pass another RUN, too.")
    quiet_libraries()
    times = Counter(folder.name for folder in folders)
    names = [folder.name if times[folder.name] == 1 else str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise InputError(f"RUN {folders[0]}: received twice. Pass the folders of several models.")
    classifiers = dict(zip(names, map(load_run_classifier, folders), strict=True))
    request = PredictRequest(files=(file,), flag=FLAG, encoding=encoding)
    runs, dropped = dict[str, ForeignRun](), set[str]()
    for name, each in classifiers.items():
        runs[name], without = _predicted(request, each, drop_missing_labels)
        dropped.update(without)
    runs = {name: _without(run, dropped) for name, run in runs.items()}
    _check_labels(file, runs)
    # Models may read other columns of a row; it is the row that is compared.
    texts = next((run.texts for run in runs.values() if run.texts), {})
    groups = next((run.groups for run in runs.values() if run.groups), {})
    runs = {name: replace(run, texts=texts, groups=groups) for name, run in runs.items()}
    of_models = chain.from_iterable(each.record.label_names for each in classifiers.values())
    found = {label for run in runs.values() for label in run.labels.values()}
    classes = list(dict.fromkeys([*of_models, *sorted(found)]))
    for run in runs.values():
        for row, values in run.probabilities.items():
            assert isinstance(values, dict)
            run.probabilities[row] = dict.fromkeys(classes, 0.0) | values
    comparison = compare_rows(
        {name: {ONLY_TABLE: run} for name, run in runs.items()},
        metric=metric,
        margin=margin,
        baseline=baseline,
        label_names=classes,
    )
    path = Path(file)
    sha256 = describe_file(path).sha256
    seen = [
        remark("seen_rows", arm=name, file=path.name)
        for name, each in classifiers.items()
        if sha256 in {f.sha256 for f in each.record.data.training_files(each.record.arguments)}
    ]
    left_out = [remark("left_out", file=path.name, rows=len(dropped))] if dropped else []
    truth = Counter(next(iter(runs.values())).labels.values())
    unknown = []
    for name, each in classifiers.items():
        new: list[JSONValue] = [*sorted(truth.keys() - {*each.record.label_names})]
        if new:
            rows = sum(truth[str(label)] for label in new)
            unknown.append(remark("unknown_classes", arm=name, classes=new, examples=rows))
    return replace(
        comparison,
        title=f"{' and '.join(arm.name for arm in comparison.arms)} on {path.name}",
        split=path.name,
        stamps=(
            *left_out,
            *seen,
            *unknown,
            *(each for each in comparison.stamps if each.kind != "no_record"),
        ),
        setup={**comparison.setup, "files": path.name},
    )


def _predicted(
    request: PredictRequest, saved: SavedClassifier, drops: bool
) -> tuple[ForeignRun, list[str]]:
    """Return the labels of the rows with what a model predicts for them, and the rows left out.

    A row has its number in the file as its id.

    Raises:
        InputError: The file has no labels, or a row has none and none are dropped.
    """
    (file,) = request.files
    task = task_row(saved.record)
    if task.several_labels or task.number_labels or task.kind.units is not None:
        raise InputError(
            f"{FLAG} {file}: it compares models with one label per row, and {saved.folder} is a "
            f"model of --task {saved.record.task}. Train both with --test_file {file}, and compare "
            f"them without {FLAG}."
        )
    rows = checked_rows(request, saved)
    if rows.labels is None:
        raise InputError(
            f"{FLAG} {file}: the label column of {saved.folder} is missing from "
            f"{', '.join(map(repr, rows.table.columns))}. Add the right labels of the rows."
        )
    group = saved.record.arguments.get("group_column")
    group = group if group in rows.table.columns else None
    columns = [*rows.sources, *rows.labels.columns, *([group] if group else [])]
    first, last = len(rows.sources), len(rows.sources) + len(rows.labels.columns)
    ids, inputs, labels, groups, without = [], [], [], [], []
    for number, cells in rows.table.read(columns):
        place = rows.place(number)
        label = rows.labels.parse(cells[first:last], place)
        values = rows.convert(cells[:first], place)
        if label is None or values is None:
            without.append(number)
            continue
        ids.append(str(number))
        inputs.append(values)
        labels.append(label)
        groups.append(as_text(cells[-1], place, group) if group else None)
    if not inputs:
        raise InputError(
            f"{FLAG} {file}: no row has a label and something to predict. Add the right labels of "
            "the rows."
        )
    if without and not drops:
        raise InputError(
            f"{rows.table.place(*without)}: no label, or nothing to predict. {FLAG} compares rows "
            "whose right label is known. Remove the others, or add --drop_missing_labels."
        )
    predictor = saved.load(request)
    with predictor.numerics:
        found = predictor(list(zip(*inputs, strict=True)))
    truth = [label for (label,) in rows.labels.as_trained(labels)]
    shares = found.decoded["probabilities"].astype(float).tolist()
    texts = [" | ".join(map(str, each)) for each in inputs] if task.kind.has_words else []
    run = ForeignRun(
        origin=str(saved.folder),
        has_probabilities=True,
        ids=dict.fromkeys(ids),
        labels=dict(zip(ids, truth, strict=True)),
        predictions=dict(zip(ids, found.labels, strict=True)),
        probabilities={
            row: dict(zip(found.label_names, each, strict=True))
            for row, each in zip(ids, shares, strict=True)
        },
        texts=dict(zip(ids, texts, strict=True)) if texts else {},
        groups=dict(zip(ids, groups, strict=True)) if group else {},
        answered={} if found.answered is None else dict(zip(ids, found.answered, strict=True)),
        is_of_model=True,
    )
    return run, list(map(str, without))


def _check_labels(file: str, runs: Mapping[str, ForeignRun]) -> None:
    """Check that all models read the same labels.

    Raises:
        InputError: The label columns of two models differ.
    """
    (first, of_first), *others = runs.items()
    for name, run in others:
        for row, label in run.labels.items():
            if label != of_first.labels[row]:
                raise InputError(
                    f"{FLAG} {file}, line {row}: the label is {of_first.labels[row]!r} in the "
                    f"label column of {first}, and {label!r} in that of {name}. Correct it, or "
                    "remove one of the columns."
                )


def _without(run: ForeignRun, ids: Set[str]) -> ForeignRun:
    """Return a run without some rows, of which another model cannot predict one.

    Raises:
        InputError: No row is left.
    """
    if not ids & run.ids.keys():
        return run
    if not run.ids.keys() - ids:
        raise InputError(f"{FLAG}: no row has the inputs of all models. Pass a file with them.")
    of_rows = ("ids", "labels", "predictions", "probabilities", "texts", "groups", "answered")
    rest: dict[str, Any] = {
        name: {row: value for row, value in getattr(run, name).items() if row not in ids}
        for name in of_rows
    }
    return replace(run, **rest)
