"""The ledger: its settings, its test set and each try, in a folder to which entries are only added.

An entry is a file `entry-000001.json`, which has the hash of the one before it. It is written under
a temporary name, synced and renamed, so that a killed process leaves whole entries only. Writers
take turns by a lock on the folder. Removed or changed entries break the chain of hashes; entries
removed at the end do not, which is why every answer shows the hash of the last entry.
"""

from __future__ import annotations

import getpass
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from os.path import lexists
from pathlib import Path
from types import NoneType
from typing import Annotated, Any

from filelock import FileLock, Timeout

from ampft.comparison.findings import MetricInfo
from ampft.comparison.settings import MIN_SEEDS
from ampft.errors import InputError, check_type
from ampft.files import (
    CHANGED,
    GONE,
    SAME,
    hashed_values,
    read_hashed,
    refuse_link,
    write_errors_explained,
    write_text,
)
from ampft.lab.referee.keep_or_drop import CandidateAnswer, Claim, GainEstimate, share_of_try
from ampft.ownership import is_plain_file
from ampft.text.escaping import without_credentials
from ampft.text.json_io import JSONValue, Positive, ValueRule, from_json, json_text, one_of
from ampft.text.numbers import Units

SCHEMA = 2
RUNS, TABLES = "runs", "tables"
START, TRY, SEEDS, FINAL = "start", "try", "seeds", "final"
SEALED, OPEN = "sealed", "open"
LEAST_PERCENT, MOST_TRIES = 1e-6, 1_000_000
FIRST_NAME = "entry-000001.json"
LOCK_NAME = ".lock"
CASES_NAME = "cases.json"  # labels and groups of the rows, in a ledger of tables
SECONDS_TO_WAIT = 600.0  # for another writer, which may compare large tables


def check_percent(name: str, value: float, below: float) -> None:
    """Check a flag in points or percent, which must not vanish in computations.

    Raises:
        InputError: It is below `LEAST_PERCENT`, not below the limit, or not a number.
    """
    if not LEAST_PERCENT <= value < below:
        raise InputError(
            f"--{name} {value:g}: must be at least {LEAST_PERCENT:f} and below {below:g}."
        )


@dataclass(frozen=True, kw_only=True)
class LedgerSettings:
    """What is chosen when a ledger starts, and holds for all its tries."""

    metric: str | None = None  # Name of the metric; None for the primary metric of the task.
    # Margin in points, or hundredths of the metric's unit: the loss that does not matter for the
    # claim "not_worse", and the step in which a gain is shown.
    margin: Annotated[float, ValueRule(lambda value: 0 < value < 100, "above 0 and below 100")] = (
        1.0
    )
    # Probability in percent that any keep of the sequence is false, at most.
    error: Annotated[float, ValueRule(lambda value: 0 < value < 50, "above 0 and below 50")] = 5.0
    tries: Positive = 100  # Number of planned tries; looks at a candidate with more seeds count.
    # Number of seeds from which a candidate is not continued; None for the number that the first
    # best has.
    max_seeds: Positive | None = None
    # "sealed" if answers other than a keep must say nothing about the test rows, so that candidates
    # may be tuned to them; "open" to show all numbers.
    answers: Annotated[str, one_of((SEALED, OPEN))] = SEALED
    label_names: Sequence[str] = ()  # All classes of tables; empty for those that occur.

    def __post_init__(self) -> None:
        for name, kinds in (
            ("metric", (str, NoneType)),
            ("margin", (int, float)),
            ("error", (int, float)),
            ("tries", int),
            ("max_seeds", (int, NoneType)),
            ("label_names", (list, tuple)),
        ):
            check_type("LedgerSettings", name, getattr(self, name), kinds)
        check_percent("margin", self.margin, 100)
        check_percent("error", self.error, 50)
        if not 1 <= self.tries <= MOST_TRIES:
            raise InputError(f"--tries {self.tries}: must be from 1 to {MOST_TRIES:,}.")
        if self.max_seeds is not None and self.max_seeds < MIN_SEEDS:
            raise InputError(
                f"--max_seeds {self.max_seeds}: must be at least {MIN_SEEDS}, because a change is "
                "judged over that many seeds."
            )
        if self.answers not in (SEALED, OPEN):
            raise InputError(f"--answers {self.answers}: must be {SEALED} or {OPEN}.")


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """The rows that a ledger judges on."""

    __test__ = False  # not a class of tests

    source: Annotated[str, one_of((RUNS, TABLES))]  # "runs" or "tables".
    metric: MetricInfo  # Metric that is judged.
    split: str  # Split of the runs.
    cases: int  # Number of independent cases: examples, or groups of them.
    examples: int  # Number of examples.
    label_names: Sequence[str]  # Names of the classes.
    # Hash of labels, groups and names, in the order of the examples; for tables that of the
    # ledger's case table.
    sha256: str
    fingerprint: str | None  # The split's fingerprint in the run records; None for tables.
    rows: Sequence[str]  # Hash of each row's input, sorted; empty for tables without texts.
    ids: Sequence[str] = ()  # Hash of each row's id, sorted; empty for runs.
    # Number of rows that the training rows of the first best contain; None if they could not be
    # read.
    shared_rows: int | None = None

    def units(self, margin: float) -> Units:
        """Return how the metric's values are printed, with a margin in its unit."""
        metric = self.metric
        return Units(metric.title, margin, metric.is_share, 1.0 if metric.is_share else None)


@dataclass(frozen=True, kw_only=True)
class JudgedModel:
    """One trained model of a side."""

    seed: int  # Seed of its training.
    source: str  # Run folder or table, relative to the ledger.
    predictions_sha256: str  # Hash of its predictions.
    file_sha256: str  # Hash of the file with its predictions.


@dataclass(frozen=True, kw_only=True)
class JudgedCandidate:
    """A candidate with the answer of the referee."""

    claim: Annotated[str, one_of(tuple(Claim))]  # "better" or "not_worse".
    margin: float  # Margin in the metric's unit.
    # Values of best and candidate of each setting that differs; empty for tables.
    changes: Mapping[str, Sequence[JSONValue]]
    best_entry: int  # Number of the entry with the best that it was compared with.
    number: int  # Number of the try, from 1; 0 for the final claim.
    level: float  # Probability that this is a false keep, at most.
    log_share: float  # Logarithm of the share of the transcript of earlier answers.
    answer: Annotated[str, one_of(tuple(CandidateAnswer))]  # "keep", "drop" or "undecided".
    shown_points: int  # Whole steps of the margin that the gain exceeds, for a keep.
    estimate: GainEstimate | None = None  # Numbers of the comparison; None in a sealed ledger.
    # Whether it is known that the candidate did not train on more test rows than the first best,
    # and its training files are those of the training.
    checked_rows: bool = False
    # State of these files when it was judged; "" if its record lists none.
    training_files: Annotated[str, one_of(("", SAME, CHANGED, GONE))] = ""
    # Why it is not judged by its numbers: a model that learned nothing; empty for none.
    learned_nothing: str = ""

    @property
    def shows_gain(self) -> bool:
        """Whether its answer shows that it is better by some steps of the margin."""
        return self.answer == CandidateAnswer.KEEP and self.claim == Claim.BETTER


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a ledger."""

    number: int  # Number of the entry, from 1.
    # "start", "try", "seeds" (more seeds of the best) or "final".
    kind: Annotated[str, one_of((START, TRY, SEEDS, FINAL))]
    when: str  # Time, ISO 8601 in UTC.
    who: str  # User and machine.
    previous: str  # Hash of the entry before it; empty for the first.
    # Models of the first best, of the candidate, or all of the best with more seeds.
    models: Sequence[JudgedModel]
    settings: LedgerSettings | None = None  # Settings, in the first entry.
    test: TestSet | None = None  # Test set, in the first entry and in the final claim.
    trial: JudgedCandidate | None = None  # Candidate and answer, of a try and of the final claim.
    compared: Sequence[JudgedModel] = ()  # Models that a final claim was compared with.
    note: str = ""  # Text of the user.
    schema: int = SCHEMA  # Version of this layout.


@dataclass(frozen=True, kw_only=True)
class LedgerState:
    """The current state of a ledger: its best models, tries and settings."""

    settings: LedgerSettings  # Its settings.
    test: TestSet  # Its test set.
    best: tuple[JudgedModel, ...]  # Models of the current best, by ascending order of their use.
    best_entry: int  # Number of the entry that made it the best.
    seeds: tuple[int, ...]  # Seeds in the order in which candidates must use them.
    trials: tuple[Entry, ...] = ()  # Entries of all tries.
    final: Entry | None = None  # Entry of the final claim; None without one.

    @property
    def shown_points(self) -> list[int]:
        """What the answers to the kept tries have shown."""
        every = [entry.trial for entry in self.trials if entry.trial is not None]
        return [each.shown_points for each in every if each.answer == CandidateAnswer.KEEP]

    @property
    def spent(self) -> float:
        """Share of the error that the tries so far may have used."""
        return sum(share_of_try(k + 1, self.settings.tries) for k in range(len(self.trials)))


def ledger_state(entries: Sequence[Entry]) -> LedgerState:
    """Return the state of a ledger after its entries.

    Args:
        entries: Entries from the first, which starts the ledger.
    """
    first = entries[0]
    assert first.settings is not None, "the first entry starts the ledger"
    assert first.test is not None, "the first entry starts the ledger"
    best, best_entry = tuple(first.models), first.number
    seeds = [model.seed for model in first.models]
    trials, final = [], None
    for entry in entries[1:]:
        if entry.kind == SEEDS:
            best = tuple(entry.models)
            seeds += [model.seed for model in best if model.seed not in seeds]
        elif entry.kind == FINAL:
            final = entry
        else:
            trials.append(entry)
            if entry.trial is not None and entry.trial.answer == CandidateAnswer.KEEP:
                best, best_entry = tuple(entry.models), entry.number
    return LedgerState(
        settings=first.settings,
        test=first.test,
        best=best,
        best_entry=best_entry,
        seeds=tuple(seeds),
        trials=tuple(trials),
        final=final,
    )


# The folder


def is_ledger(folder: Path) -> bool:
    """Return whether a folder holds a ledger."""
    return (folder / FIRST_NAME).is_file()


def entry_path(folder: Path, number: int) -> Path:
    """Return the path of an entry."""
    return folder / f"entry-{number:06}.json"


@contextmanager
def ledger_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a ledger, whose folder is created.

    Raises:
        InputError: Another process holds it for too long, or the folder holds something else.
    """
    refuse_link(folder, "LEDGER")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"LEDGER {folder}: this is a file. Pass a folder.")
    if folder.is_dir() and not is_ledger(folder):
        names = [path.name for path in folder.iterdir() if path.name != CASES_NAME]
        others = [name for name in names if not name.startswith(".")]
        if others:
            raise InputError(
                f"LEDGER {folder}: the folder holds {sorted(others)[0]} and no {FIRST_NAME}, so it "
                "is not a ledger. Pass a ledger, or a new folder."
            )
    lock = FileLock(folder / LOCK_NAME)
    if lexists(lock.lock_file) and not is_plain_file(Path(lock.lock_file)):
        raise InputError(
            f"LEDGER {folder}: {LOCK_NAME} is not a file, but judge locks a file of this name. "
            "Move it, or pass another folder."
        )
    with ledger_writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=SECONDS_TO_WAIT)
        except Timeout:
            raise InputError(
                f"LEDGER {folder}: another process has been writing to it for "
                f"{SECONDS_TO_WAIT:.0f} s. Wait for it, or end it."
            ) from None
    try:
        yield
    finally:
        lock.release()


def ledger_writes(folder: Path) -> AbstractContextManager[None]:
    """Explain errors of writing to a ledger; see `write_errors_explained`."""
    remedy = "Make the folder writable or free disk space there, then repeat the command."
    return write_errors_explained(f"LEDGER {folder}: the folder", remedy)


def read_entries(folder: Path) -> tuple[list[Entry], str]:
    """Read and verify all entries.

    Returns:
        The entries, and the hash of the last one.

    Raises:
        InputError: There is none, or one is missing, damaged, edited or not part of the chain.
    """
    if not is_ledger(folder):
        raise InputError(
            f"LEDGER {folder}: not a ledger. Start one with the current best: "
            f"ampft judge {folder} --best RUN RUN RUN"
        )
    numbers = sorted(
        int(stem) for path in folder.glob("entry-*.json") if (stem := path.stem[6:]).isdecimal()
    )
    entries: list[Entry] = []
    previous = ""
    for position, number in enumerate(numbers, 1):
        path = entry_path(folder, position)
        if number != position:
            raise InputError(
                f"LEDGER {folder}: {path.name} is missing, although there is an entry {number}. "
                "Restore the folder from a copy."
            )
        entry, sha256 = _read_entry(path)
        if entry.previous != previous or entry.number != position:
            raise InputError(
                f"LEDGER {folder}: {path.name} does not continue the entry before it, so entries "
                "were edited, or come from another ledger. Restore the folder from a copy."
            )
        _check_parts(path, entry)
        entries.append(entry)
        previous = sha256
    return entries, previous


def append_entry(folder: Path, entry: Entry) -> str:
    """Add an entry, whose lock is held, and return its hash."""
    values = hashed_values(entry)
    path = entry_path(folder, entry.number)
    assert not path.exists(), "the lock is held, and the number is the next one"
    with ledger_writes(folder):
        write_text(path, json_text(values))
    return str(values["sha256"])


def new_entry(
    kind: str,
    entries: list[Entry],
    previous: str,
    models: list[JudgedModel],
    *,
    note: str = "",
    **parts: Any,
) -> Entry:
    """Return the next entry of a ledger, by this user and now.

    Args:
        kind: Kind of the entry.
        entries: Earlier entries.
        previous: Hash of the last of them.
        models: Models of the entry.
        note: Text of the user.
        parts: Further fields of `Entry`.
    """
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no entry in the system's list of users
        user = "unknown"
    return Entry(
        number=len(entries) + 1,
        kind=kind,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        who=f"{user}@{platform.node() or 'unknown'}",
        previous=previous,
        models=tuple(models),
        note=without_credentials(note),
        **parts,
    )


def _read_entry(path: Path) -> tuple[Entry, str]:
    """Return an entry and the hash of its values."""
    try:
        values, sha256 = read_hashed(
            path, SCHEMA, "Use the version of ampft that wrote the ledger."
        )
        return from_json(Entry, values, path.name), sha256
    except (OSError, ValueError) as error:
        raise InputError(
            f"LEDGER {path.parent}: {path.name} is damaged or was edited ({error}). Restore the "
            "folder from a copy."
        ) from error


def _check_parts(path: Path, entry: Entry) -> None:
    has_trial, has_test = entry.trial is not None, isinstance(entry.test, TestSet)
    is_first = entry.number == 1
    fits = (
        (entry.kind == START) == is_first == (entry.settings is not None)
        and has_trial == (entry.kind in (TRY, FINAL))
        and has_test == (entry.kind in (START, FINAL))
        and len(entry.models) > 0
        and bool(entry.compared) == (entry.kind == FINAL)
    )
    if not fits:
        raise InputError(
            f"LEDGER {path.parent}: {path.name} lacks a part of an entry of the kind "
            f"{entry.kind!r}. Restore the folder from a copy."
        )
