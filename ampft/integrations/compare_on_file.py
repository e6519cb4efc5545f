"""Compare finished models on the rows of a file, such as this week's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
) -> Comparison:
    """Let each model predict the rows of a file with labels, and compare the predictions.

    A model gives a class that it does not know the probability 0.

    Args:
        file: File with the columns that the models were trained on.
        folders: Output folders of runs, one per model.
        metric: Name of the primary metric; None for accuracy.
        margin: Equivalence margin as a fraction (0.01 is one point).
        baseline: Name of the model that all others are compared with; None for the first one.

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
    runs = {name: _predicted(file, each) for name, each in classifiers.items()}
    classes = {label for run in runs.values() for label in run.labels.values()}
    classes.update(*(each.record.label_names for each in classifiers.values()))
    for run in runs.values():
        for row, values in run.probabilities.items():
            assert isinstance(values, dict)
            run.probabilities[row] = dict.fromkeys(classes, 0.0) | values
    comparison = compare_rows(
        {name: {ONLY_TABLE: run} for name, run in runs.items()},
        metric=metric,
        margin=margin,
        baseline=baseline,
    )
    path = Path(file)
    sha256 = describe_file(path).sha256
    seen = [
        remark("seen_rows", arm=name, file=path.name)
        for name, each in classifiers.items()
        if sha256 in {f.sha256 for f in each.record.data.training_files(each.record.arguments)}
    ]
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
        stamps=(*seen, *unknown, *(each for each in comparison.stamps if each.kind != "no_record")),
        setup={**comparison.setup, "files": path.name},
    )


def _predicted(file: str, saved: SavedClassifier) -> ForeignRun:
    """Return the labels of the rows, and what a model predicts for them.

    Raises:
        InputError: The file has no labels, or a row has none.
    """
    task = task_row(saved.record)
    if task.several_labels or task.number_labels or task.kind.units is not None:
        raise InputError(
            f"{FLAG} {file}: it compares models with one label per row, and {saved.folder} is a "
            f"model of --task {saved.record.task}. Train both with --test_file {file}, and compare "
            f"them without {FLAG}."
        )
    request = PredictRequest(files=(file,), flag=FLAG)
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
    inputs, labels, groups, without = [], [], [], []
    for number, cells in rows.table.read(columns):
        place = rows.place(number)
        label = rows.labels.parse(cells[first:last], place)
        values = rows.convert(cells[:first], place)
        if label is None or values is None:
            without.append(number)
            continue
        inputs.append(values)
        labels.append(label)
        groups.append(as_text(cells[-1], place, group) if group else None)
    if without or not inputs:
        raise InputError(
            f"{rows.table.place(*without) if without else file}: no label, or nothing to predict. "
            f"{FLAG} compares rows whose right label is known. Remove the others."
        )
    predictor = saved.load(request)
    with predictor.numerics:
        found = predictor(list(zip(*inputs, strict=True)))
    ids = [str(number) for number in range(len(inputs))]
    truth = [label for (label,) in rows.labels.as_trained(labels)]
    shares = found.decoded["probabilities"].astype(float).tolist()
    texts = [" | ".join(map(str, each)) for each in inputs] if task.kind.has_words else []
    return ForeignRun(
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
    )
