"""Read the two sides of a comparison, candidate and best, from runs or from tables."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from ampft.comparison.analysis.loading import RecordedRun, differing_settings, find_runs
from ampft.comparison.analysis.run_predictions import (
    Cases,
    RunPredictions,
    primary_metric,
    read_run_predictions,
)
from ampft.comparison.findings import metric_info
from ampft.data.sources.readers import open_table
from ampft.data.splits import group_equal_keys, normalized_text, normalized_value
from ampft.errors import InputError, listed
from ampft.files import (
    CHANGED,
    GONE,
    SAME,
    STATES,
    Recorded,
    atomic_path,
    describe_file,
    write_text_non_atomically,
)
from ampft.integrations.foreign_predictions import (
    SPLIT,
    TableCases,
    cases_of_tables,
    check_folds,
    predictions_of_tables,
)
from ampft.integrations.foreign_tables import FLAG, ONLY_TABLE, ForeignRun, TableError, read_tables
from ampft.lab.referee.ledger import (
    CASES_NAME,
    RUNS,
    TABLES,
    JudgedModel,
    LedgerSettings,
    TestSet,
    ledger_writes,
)
from ampft.metrics.sums import Metric
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.predictions import is_input, read_rows
from ampft.runs.record import RunRecord
from ampft.runs.run_text import problem_of
from ampft.tasks.single_label import SingleLabel
from ampft.tasks.table import problem_types
from ampft.text.json_io import (
    JSONValue,
    from_json,
    json_text,
    json_values,
    read_json_object,
    values_hash,
)


@dataclass(frozen=True, kw_only=True)
class CaseTable:
    """Labels and groups of examples, in the order of their ids."""

    ids: Sequence[str]  # Ids, sorted.
    labels: Sequence[int]  # Index of each label among the classes.
    label_names: Sequence[str]  # Classes.
    groups: Sequence[int] | None  # Index of each example's group; None if all are independent.
    # Random text, so that the hash of the table, which entries show, tells nothing about it.
    salt: str = ""

    @classmethod
    def of(cls, table: TableCases, *, salted: bool) -> CaseTable:
        """Return the table of the examples of some tables of predictions."""
        order = np.argsort(np.array(table.ids), kind="stable")
        cases, groups = table.cases, table.cases.groups
        return cls(
            ids=[table.ids[row] for row in order],
            labels=cases.truth[order].tolist(),
            label_names=cases.label_names,
            groups=None if groups is None else group_equal_keys(groups.ids[order]).ids.tolist(),
            salt=secrets.token_hex(16) if salted else "",
        )

    @property
    def sha256(self) -> str:
        """Hash of the content."""
        return values_hash(cast("dict[str, JSONValue]", json_values(self)))

    @property
    def examples(self) -> TableCases:
        """The examples as a comparison takes them, without texts."""
        names = tuple(self.label_names)
        cases = Cases(
            path=Path(CASES_NAME),
            kind=SingleLabel.name,
            split=SPLIT,
            truth=np.array(self.labels, dtype=np.int64),
            label_names=names,
            class_names=names,
            groups=None if self.groups is None else group_equal_keys(self.groups),
        )
        return TableCases(ids=self.ids, cases=cases, texts={})


def write_case_table(folder: Path, table: CaseTable) -> None:
    """Write the examples of a new ledger."""
    with ledger_writes(folder), atomic_path(folder / CASES_NAME) as temporary:
        write_text_non_atomically(temporary, json_text(table))


def read_case_table(folder: Path, sha256: str) -> CaseTable:
    """Read the examples of a ledger.

    Args:
        sha256: Hash of the table, as the first entry of the ledger states it.

    Raises:
        InputError: The file is missing, damaged or edited.
    """
    path = folder / CASES_NAME
    try:
        table = from_json(CaseTable, read_json_object(path), CASES_NAME)
        if table.sha256 != sha256:
            raise ValueError("its hash differs from the first entry")
    except (OSError, ValueError) as error:
        raise InputError(
            f"LEDGER {folder}: {CASES_NAME}, which holds the labels of the test rows, is missing, "
            f"damaged or edited ({type(error).__name__}). Restore the folder from a copy."
        ) from error
    return table


KEY_LENGTH = 16  # hexadecimal digits of the hash of a row
SILENCE = "No more is said, so that refusals tell nothing about the test rows."


@dataclass(frozen=True, kw_only=True)
class Side:
    """The models of a candidate or of the best."""

    name: str  # What it is called in messages: "--candidate" or "--best".
    models: Mapping[int, JudgedModel]  # Models by seed.
    predictions: Mapping[int, RunPredictions]  # Their predictions, by seed.
    # Their run records by seed; empty for tables.
    runs: Mapping[int, RecordedRun] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both sides with what they share."""

    sides: Mapping[str, Side]  # The sides, by name.
    test: TestSet  # Test set of the first of them.
    metric: Metric  # Metric that is compared.
    table: CaseTable | None = None  # Examples of tables; None for runs.


def read_sides(
    sources: Mapping[str, Sequence[str]],
    settings: LedgerSettings,
    ledger: Path,
    *,
    test: TestSet | None = None,
    explains: bool = False,
) -> Sides:
    """Read one or two sides that predict the same rows.

    Args:
        sources: Run folders, or tables, of each side by its name; without `test`, the first side
            defines the rows.
        settings: Settings of the ledger, which name the metric and the classes of tables.
        ledger: Folder that stored paths are relative to.
        test: Test set of the ledger, whose labels and groups count; None for other rows.
        explains: Whether a refusal may name rows and values, because all rows are the caller's.

    Raises:
        InputError: A side cannot be read, has a seed twice, mixes settings, predicts other rows, or
            has the same predictions with two seeds.
    """
    are_folders = {Path(source).is_dir() for each in sources.values() for source in each}
    if are_folders == {True, False}:
        raise InputError(
            "judge: received folders of runs and tables. Both sides must be runs, or both tables."
        )
    kind = RUNS if are_folders == {True} else TABLES
    if test is not None and kind != test.source:
        raise InputError(f"LEDGER {ledger}: it judges {test.source}, and received {kind}.")
    if kind == RUNS:
        read = _read_runs(sources, settings.metric, ledger, explains=explains)
    else:
        try:
            read = _read_tables(sources, settings, ledger, test, explains=explains)
        except InputError as error:  # the reader calls every table --predictions
            raise InputError(str(error).replace(FLAG, "/".join(sources))) from None
    for side in read.sides.values():
        _check_different(side)
    return read


def _check_different(side: Side) -> None:
    """Check that the models of a side are several trainings, not copies of one."""
    seeds: dict[str, int] = {}
    for seed, model in side.models.items():
        first = seeds.setdefault(model.predictions_sha256, seed)
        if first != seed:
            raise InputError(
                f"{side.name}: the predictions with the seeds {first} and {seed} are equal, bit "
                "for bit. A change is judged over several trainings; pass each of them once."
            )


def changed_settings(candidate: Side, best: Side) -> dict[str, list[JSONValue]]:
    """Return the values of best and candidate of each setting that differs; empty for tables."""
    if not candidate.runs or not best.runs:
        return {}
    pair = [next(iter(side.runs.values())) for side in (best, candidate)]
    found = json_values(differing_settings(pair))
    assert isinstance(found, dict)
    return {name: values for name, values in found.items() if isinstance(values, list)}


def _read_runs(
    sources: Mapping[str, Sequence[str]], metric: str | None, ledger: Path, *, explains: bool
) -> Sides:
    cases: Cases | None = None
    sides: dict[str, Side] = {}
    first: RecordedRun | None = None
    for name, folders in sources.items():
        runs = _runs_of_side(name, find_runs([Path(folder) for folder in folders]))
        first = first or next(iter(runs.values()))
        metric = primary_metric(metric, problem_of(first.record))
        predictions, models = {}, {}
        for seed, run in runs.items():
            path = run.folder / PREDICTIONS_NAME
            try:
                found, cases = read_run_predictions(path, cases, metric, run.record.metrics)
            except InputError:
                if explains:
                    raise
                raise InputError(
                    f"{name} {run.folder}: its {PREDICTIONS_NAME} cannot be read, or does not "
                    f"predict the test set of the ledger. {SILENCE}"
                ) from None
            predictions[seed] = found
            digest = hash_of_predictions(found)
            models[seed] = _model(seed, str(run.folder), path, digest, ledger)
        sides[name] = Side(name=name, models=models, predictions=predictions, runs=runs)
    assert cases is not None, "a side has runs"
    assert first is not None, "a side has runs"
    assert metric is not None, "a side has runs"
    inputs = read_rows(first.folder / PREDICTIONS_NAME, range(len(cases.truth)), is_input)
    groups = [] if cases.groups is None else group_equal_keys(cases.groups.ids).ids.tolist()
    parts = [cases.kind, cases.split, list(cases.label_names), [], groups]
    examples = hashlib.sha256(json.dumps(parts).encode())
    examples.update(np.ascontiguousarray(cases.truth).tobytes())
    test = _test_set(
        cases,
        metric,
        source=RUNS,
        sha256=examples.hexdigest(),
        fingerprint=first.record.data.fingerprints.get(cases.split),
        rows=_keys(_joined(values.values()) for values in inputs.values()),
    )
    return Sides(sides=sides, test=test, metric=cases.problem.metrics[metric])


def _runs_of_side(name: str, runs: Sequence[RecordedRun]) -> dict[int, RecordedRun]:
    """Return the runs of a side by seed, after checking that they are one procedure."""
    by_seed: dict[int, RecordedRun] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        if run.seed in by_seed:
            raise InputError(
                f"{name}: {by_seed[run.seed].folder} and {run.folder} both have seed {run.seed}. "
                "List one run per seed."
            )
        if not run.is_finished:
            raise InputError(
                f"{name} {run.folder}: the run has not finished ({run.record.status}). Finish it, "
                "or judge a change that trains."
            )
        if run.record.metrics.get("selected"):
            raise InputError(
                f"{name} {run.folder}: its best epoch was chosen on the rows of its report "
                f"({run.record.metrics.get('split')}). Judge on separate rows: train with "
                "--test_file."
            )
        by_seed[run.seed] = run
    if differing := differing_settings(list(by_seed.values())):
        raise InputError(
            f"{name}: its runs differ in {listed(list(differing))}. All runs of a side must differ "
            "only in their seed."
        )
    return by_seed


def _read_tables(
    sources: Mapping[str, Sequence[str]],
    settings: LedgerSettings,
    ledger: Path,
    test: TestSet | None,
    *,
    explains: bool,
) -> Sides:
    """Read tables; labels, texts and groups only from the first side, and only without `test`."""
    problem = problem_types()[SingleLabel.name]
    metric = primary_metric(settings.metric, problem)
    first = next(iter(sources))
    tables: dict[str, dict[int, ForeignRun]] = {}
    predictions: dict[str, dict[int, RunPredictions]] = {}
    name = ""
    texts: Mapping[str, str] = {}
    try:
        for name, each in sources.items():
            tables[name] = _table_of_side(name, each, with_cases=test is None and name == first)
        if test is not None:
            table = read_case_table(ledger, test.sha256)
        else:
            name = first
            found = cases_of_tables({first: tables[first]}, settings.label_names or None)
            table, texts = CaseTable.of(found, salted=explains), found.texts
        examples = table.examples
        for name, by_seed in tables.items():
            predictions |= predictions_of_tables({name: by_seed}, examples, metric)
        check_folds(predictions)
    except TableError as error:
        if explains:
            raise
        raise InputError(f"{name}: {error.kind}. {SILENCE}") from None
    sides = {}
    for name, by_seed in tables.items():
        places = {
            each if Path(each).is_file() else each.partition("=")[2]: each for each in sources[name]
        }
        models = {}
        for seed, run in by_seed.items():
            source = places.get(run.origin, run.origin)
            digest = hash_of_predictions(predictions[name][seed])
            models[seed] = _model(seed, source, Path(run.origin), digest, ledger)
        sides[name] = Side(name=name, models=models, predictions=predictions[name])
    test = test or _test_set(
        examples.cases,
        metric,
        source=TABLES,
        sha256=table.sha256,
        ids=_keys(table.ids),
        rows=_keys(texts.values()),
    )
    return Sides(sides=sides, test=test, metric=problem.metrics[metric], table=table)


def _table_of_side(name: str, sources: Sequence[str], *, with_cases: bool) -> dict[int, ForeignRun]:
    """Return the rows of one side by ascending seed."""
    arms = read_tables(sources, with_cases=with_cases)
    if len(arms) > 1:
        raise InputError(
            f"{name}: its tables have the arms {listed(list(arms))}. List the tables of one arm, "
            "such as new-seed1.csv new-seed2.csv new-seed3.csv."
        )
    by_seed = next(iter(arms.values()))
    if set(by_seed) == {ONLY_TABLE} and any("=" in source for source in sources):
        raise InputError(
            f"{name}: the seed of {sources[0]} is unknown. Add it, as ARM:SEED=FILE, or call the "
            "file ARM-seed1.csv."
        )
    return dict(sorted(by_seed.items()))


def relative_source(source: str, ledger: Path) -> str:
    """Return a source with its path relative to the ledger."""
    arm, separator, path = ("", "", source)
    if not Path(source).exists():
        arm, separator, path = source.partition("=")
    return arm + separator + Path(os.path.relpath(path, ledger)).as_posix()


def stored_file(model: JudgedModel, ledger: Path) -> tuple[str, Recorded]:
    """Return the source of a judged model with its path from here, and its predictions."""
    arm, separator, path = ("", "", model.source)
    if not (ledger / path).exists() and "=" in path:
        arm, separator, path = path.partition("=")
    place = Path(os.path.normpath(ledger / path))
    file = place / PREDICTIONS_NAME if place.is_dir() else place
    return f"{arm}{separator}{place}", Recorded(file, model.file_sha256)


def stored_sources(models: Sequence[JudgedModel], ledger: Path) -> list[str]:
    """Return the sources of some models with their paths from here, each once.

    Raises:
        InputError: A file with predictions is gone, or was changed since the ledger read it.
    """
    found = dict.fromkeys(stored_file(model, ledger) for model in models)
    for _, recorded in found:
        if (state := recorded.state) != SAME:
            raise InputError(
                f"LEDGER {ledger}: {recorded.path} {STATES[state]}. It holds predictions that the "
                "ledger has judged: restore it, or pass its new path with --best."
            )
    return list(dict.fromkeys(source for source, _ in found))


def _model(
    seed: int, source: str, path: Path, predictions_sha256: str, ledger: Path
) -> JudgedModel:
    return JudgedModel(
        seed=seed,
        source=relative_source(source, ledger),
        predictions_sha256=predictions_sha256,
        file_sha256=describe_file(path).sha256,
    )


def hash_of_predictions(predictions: RunPredictions) -> str:
    """Return a hash that is equal for models whose predictions are equal.

    That of a table says nothing about labels. A run has its labels in its own folder, and metrics
    stand for its probabilities.
    """
    if predictions.sha256 is not None:
        return predictions.sha256
    digest = hashlib.sha256(np.ascontiguousarray(predictions.choices).tobytes())
    if predictions.confidence is not None:
        digest.update(np.ascontiguousarray(predictions.confidence).tobytes())
    digest.update(json.dumps(sorted(predictions.metrics.items())).encode())
    return digest.hexdigest()


def _test_set(
    cases: Cases,
    metric: str,
    *,
    source: str,
    sha256: str,
    rows: Sequence[str],
    ids: Sequence[str] = (),
    fingerprint: str | None = None,
) -> TestSet:
    """Return the test set of some cases, with the hash of their labels, groups and names."""
    return TestSet(
        source=source,
        metric=metric_info(cases.problem.metrics[metric]),
        split=cases.split,
        cases=cases.group_count or len(cases.truth),
        examples=len(cases.truth),
        label_names=cases.label_names,
        sha256=sha256,
        fingerprint=fingerprint,
        rows=rows,
        ids=ids,
    )


# Rows, to find those that were used before


def _keys(inputs: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct hashes of inputs, sorted. Equal `normalized_text` is one row."""
    hashes = {hashlib.sha256(normalized_text(text).encode()).hexdigest() for text in inputs}
    return tuple(sorted(key[:KEY_LENGTH] for key in hashes))


def _joined(values: Iterable[Any]) -> str:
    return "\x1f".join(str(normalized_value(value)) for value in values)


@dataclass(frozen=True)
class TrainingRows:
    """What is known of the rows of the test set that a run trained on."""

    shared: int | None  # Their number; None if nothing tells.
    # State of the training files, `SAME`, `CHANGED` or `GONE`; "" if the record lists none.
    files: str

    @property
    def is_checked(self) -> bool:
        """Whether the number is known, and the training files are those of the training."""
        return self.shared is not None and self.files in ("", SAME)


def training_state(record: RunRecord) -> str:
    """Return the state of the training files of a run: `CHANGED`, `GONE`, `SAME` or "" without."""
    states = {recorded.state for recorded in record.data.training_files(record.arguments)}
    return next((each for each in (CHANGED, GONE, SAME) if each in states), "")


def training_rows(run: RecordedRun, test: TestSet) -> TrainingRows:
    """Return which rows of the test set a run trained on.

    The run has counted them in its training, whatever lies at the path of its training file today.
    The files tell only for a record of an earlier version, and only if they are unchanged.
    """
    data, state = run.record.data, training_state(run.record)
    if data.shared_with_train is not None:
        return TrainingRows(data.shared_with_train.get(test.split), state)
    columns, rows = list(data.input_columns), set(test.rows)
    if state != SAME or not columns:
        return TrainingRows(None, state)
    shared: set[str] = set()
    encoding = str(run.record.arguments.get("encoding") or "utf-8")
    try:
        for recorded in data.training_files(run.record.arguments):
            table = open_table(recorded.file(), flag="--train_file", encoding=encoding)
            for _, values in table.read(columns):
                shared.update(rows.intersection(_keys([_joined(values)])))
    except InputError:  # not a table with these columns
        return TrainingRows(None, state)
    return TrainingRows(len(shared), state)
