"""Tables of predictions from any framework: which arm, which seed, and each row's values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ampft.data.columns import rename_columns
from ampft.data.sources.readers import open_table
from ampft.data.sources.source_table import SourceTable, as_text
from ampft.errors import InputError, quoted_list

FLAG = "--predictions"
ARM, SEED, ID, LABEL, PREDICTION = "arm", "seed", "id", "label", "prediction"
PROBABILITIES, PROBABILITY_PREFIX = "probabilities", "probability_"
TEXT, GROUP, FOLD = "text", "group", "fold"
COLUMNS = (ARM, SEED, ID, LABEL, PREDICTION, PROBABILITIES, TEXT, GROUP, FOLD)
OF_CASES = (LABEL, TEXT, GROUP)  # what a table says about the examples, and not about its model
WAYS = (
    "Give the table the columns arm and seed, call the files ARM-seed1.csv, or write "
    "ARM:SEED=FILE, or ARM=FILE for the only table of an arm"
)
ONLY_TABLE = 0  # stands for the seed of ARM=FILE

_ASSIGNED = re.compile(r"(?P<arm>[^=]+?)(?::(?P<seed>[0-9]+))?=(?P<file>.+)", re.DOTALL)
_NAMED = re.compile(r"(?P<arm>.+?)[-_.]?seed[-_]?(?P<seed>[0-9]+)")


class TableError(InputError):
    """A table has a wrong cell, or does not fit the others."""

    def __init__(self, kind: str, message: str) -> None:
        """Create an error.

        Args:
            kind: Clause that says what is wrong without a row, a value or a number.
        """
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[type[TableError], tuple[str, str]]:
        return type(self), (self.kind, str(self.args[0]))  # for pickle


@dataclass
class ForeignRun:
    """The rows of one arm and seed."""

    origin: str  # File of its first row, as the user named it.
    has_probabilities: bool  # Whether its file has probabilities.
    ids: dict[str, None] = field(default_factory=dict)  # Ids, in the order of the rows.
    labels: dict[str, str] = field(default_factory=dict)  # Label by id, if they are read.
    # Predicted label by id; absent where only probabilities are given.
    predictions: dict[str, str] = field(default_factory=dict)
    # Probability of each class by id, as a mapping of class names or a list.
    probabilities: dict[str, Mapping[str, object] | Sequence[object]] = field(default_factory=dict)
    # Input by id, where the table has a column for it.
    texts: dict[str, str] = field(default_factory=dict)
    groups: dict[str, str | None] = field(default_factory=dict)  # Group by id, likewise.
    # Fold of a cross-validation by id, likewise.
    folds: dict[str, str] = field(default_factory=dict)
    # Whether the model would answer the row, by id, of a model with `--abstain`; empty without.
    answered: dict[str, bool] = field(default_factory=dict)
    # Whether its columns are known to be named rightly, since no person wrote them.
    is_of_model: bool = False


Runs = dict[str, dict[int, ForeignRun]]


def read_tables(
    sources: Sequence[str], *, with_cases: bool = True, encoding: str | None = None
) -> Runs:
    """Read tables of predictions.

    Args:
        sources: Files in a format of `READERS`, each as FILE, ARM:SEED=FILE, or ARM=FILE if every
            arm has one table.
        with_cases: Whether labels, texts and groups are read. Otherwise a table may lack them,
            because the examples are known from elsewhere.
        encoding: Character encoding of CSV, TSV and JSON files; None if no flag chooses it: UTF-8.

    Returns:
        The rows by arm and seed, in the order of their first rows. The seed of ARM=FILE is
        `ONLY_TABLE`.

    Raises:
        InputError: A file cannot be read, its arm and seed are unknown, a row is damaged, or an arm
            of ARM=FILE has several tables.
    """
    runs: Runs = {}
    # The parts of ARM:SEED=FILE or ARM=FILE; None for the name of a file
    matches = [None if Path(s).is_file() else _ASSIGNED.fullmatch(s) for s in sources]
    without_seed = [match["arm"].strip() for match in matches if match and match["seed"] is None]
    if without_seed and len(set(without_seed)) < len(sources):
        raise InputError(
            f"{FLAG} {without_seed[0]}=FILE: a table without a seed stands for one model, so each "
            f"of the {len(sources)} tables must be named ARM=FILE with an arm of its own. Add the "
            "seeds as ARM:SEED=FILE to compare trainings."
        )
    for source, match in zip(sources, matches, strict=True):
        path, named = Path(source), None
        if match is not None:
            path = Path(match["file"])
            named = (match["arm"].strip(), int(match["seed"] or ONLY_TABLE))
        table = rename_columns(open_table(path, flag=FLAG, encoding=encoding), COLUMNS)
        _read_table(table, named, runs, with_cases=with_cases)
    return runs


def _read_table(
    table: SourceTable, named: tuple[str, int] | None, runs: Runs, *, with_cases: bool
) -> None:
    classes = {
        name: name.removeprefix(PROBABILITY_PREFIX)
        for name in table.columns
        if name.startswith(PROBABILITY_PREFIX)
    }
    _check_columns(table, classes, (ID, LABEL) if with_cases else (ID,))
    own = {ARM, SEED} & set(table.columns)
    if named is not None and own:
        remedy = "Pass only the file." if SEED in own else f"Remove the column {ARM}."
        raise InputError(
            f"{FLAG} {table.origin}: an arm is named for it, but the table has its own column "
            f"{' and '.join(sorted(own))}. {remedy}"
        )
    if named is None and own != {ARM, SEED}:
        named = _from_name(table, own)
    read = [name for name in COLUMNS if with_cases or name not in OF_CASES]
    columns = [name for name in read if name in table.columns]
    opened: set[tuple[str, int]] = set()
    for number, values in table.read([*columns, *classes]):
        where = f"{FLAG} {table.origin}, {table.unit} {number}"
        row = dict(zip(columns, values, strict=False))
        arm, seed = named or (_cell(row, ARM, where), _seed(row, where))
        run = runs.setdefault(arm, {}).get(seed)
        if run is None:
            has_probabilities = bool(classes) or PROBABILITIES in columns
            run = runs[arm][seed] = ForeignRun(table.origin, has_probabilities)
        elif (arm, seed) not in opened and run.origin != table.origin:
            raise TableError(
                "two files have rows of one seed",
                f"{where}: {run.origin} also has rows of {arm} with seed {seed}. Give the rows of "
                "an arm and seed in one file.",
            )
        opened.add((arm, seed))
        by_class = dict(zip(classes.values(), values[len(columns) :], strict=True))
        _add(run, row, by_class, where)
    if not opened:
        raise InputError(f"{FLAG} {table.origin}: the table has no rows.")


def _check_columns(table: SourceTable, classes: Mapping[str, str], needed: Sequence[str]) -> None:
    missing = [name for name in needed if name not in table.columns]
    if not classes and not {PREDICTION, PROBABILITIES} & set(table.columns):
        missing.append(f"{PREDICTION} or {PROBABILITIES}")
    if missing:
        raise InputError(
            f"{FLAG} {table.origin}: column {', '.join(missing)} is missing from "
            f"{quoted_list(table.columns)}. A table needs the columns {', '.join(needed)}, and "
            f"{PREDICTION}, {PROBABILITIES} or one {PROBABILITY_PREFIX}CLASS per class. Models "
            "that ampft trained need no tables: ampft compare RUN RUN --on FILE."
        )


def _from_name(table: SourceTable, own: set[str]) -> tuple[str, int]:
    match = _NAMED.fullmatch(Path(table.origin).stem)
    if own or match is None:
        known = "neither the columns arm and seed nor a name like ARM-seed1.csv"
        if own:
            known = f"only the column {own.pop()}"
        raise InputError(
            f"{FLAG} {table.origin}: its arm and seed are unknown: the file has {known}. {WAYS}."
        )
    return match["arm"], int(match["seed"])


def _add(
    run: ForeignRun, row: Mapping[str, object], by_class: Mapping[str, object], where: str
) -> None:
    identifier = _cell(row, ID, where)
    if identifier in run.ids:
        raise TableError(
            "an id occurs twice",
            f"{where}: the id {identifier!r} occurs twice for the same arm and seed. Give every "
            "example once.",
        )
    run.ids[identifier] = None
    if LABEL in row:
        run.labels[identifier] = _cell(row, LABEL, where)
    if PREDICTION in row:
        run.predictions[identifier] = _cell(row, PREDICTION, where)
    if run.has_probabilities:
        run.probabilities[identifier] = by_class or _nested(row[PROBABILITIES], where)
    if TEXT in row:
        run.texts[identifier] = as_text(row[TEXT], where, TEXT) or ""
    if GROUP in row:
        run.groups[identifier] = as_text(row[GROUP], where, GROUP)
    if FOLD in row:
        run.folds[identifier] = _cell(row, FOLD, where)


def _cell(row: Mapping[str, object], name: str, where: str) -> str:
    value = row[name]
    # pandas writes integers as 3.0 where a column also has empty cells.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = as_text(value, where, name)
    if text is None:
        raise TableError(
            f"a cell of column {name} is empty",
            f"{where}: column {name} is empty. Fill the cell or remove the row.",
        )
    return text.strip()


def _seed(row: Mapping[str, object], where: str) -> int:
    text = _cell(row, SEED, where)
    if not (text.isascii() and text.isdecimal()):
        raise TableError(
            "a seed is not a whole number",
            f"{where}: seed {text!r} must be a whole number, such as 42.",
        )
    return int(text)


def _nested(value: object, where: str) -> Mapping[str, object] | Sequence[object]:
    """Return a cell with probabilities: a list or an object, or its JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if isinstance(value, Mapping | list | tuple) and value:
        return value
    raise TableError(
        f"a cell of column {PROBABILITIES} is neither an object nor a list",
        f"{where}: column {PROBABILITIES} must hold an object such as "
        '{"yes": 0.9, "no": 0.1}, or a list in the order of the labels 0, 1, ...',
    )
