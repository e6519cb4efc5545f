"""What a ledger writes down: its settings, its test set, and each try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from ampft.arguments.compare import MIN_SEEDS
from ampft.comparison.findings import MetricInfo
from ampft.errors import InputError
from ampft.referee.decision import Answer, Claim
from ampft.text.json_io import JSONValue, Positive, Rule, one_of

SCHEMA = 1
RUNS, TABLES = "runs", "tables"
START, TRY, SEEDS, FINAL = "start", "try", "seeds", "final"
SEALED, OPEN = "sealed", "open"
LEAST_PERCENT, MOST_TRIES = 1e-6, 1_000_000


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
    """What is chosen when a ledger starts, and holds for all its tries.

    Attributes:
        metric: Name of the metric; None for the primary metric of the task.
        margin: Margin in points, or hundredths of the metric's unit: the loss that does not matter
            for the claim "not_worse", and the step in which a gain is shown.
        error: Probability in percent that any keep of the sequence is false, at most.
        tries: Number of planned tries; looks at a candidate with more seeds count.
        max_seeds: Number of seeds from which a candidate is not continued; None for the number that
            the first best has.
        answers: "sealed" if answers other than a keep must say nothing about the test rows, so that
            candidates may be tuned to them; "open" to show all numbers.
        label_names: All classes of tables; empty for those that occur.
    """

    metric: str | None = None
    margin: Annotated[float, Rule(lambda value: 0 < value < 100, "above 0 and below 100")] = 1.0
    error: Annotated[float, Rule(lambda value: 0 < value < 50, "above 0 and below 50")] = 5.0
    tries: Positive = 100
    max_seeds: Positive | None = None
    answers: Annotated[str, one_of((SEALED, OPEN))] = SEALED
    label_names: Sequence[str] = ()

    def __post_init__(self) -> None:
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
    """The rows that a ledger judges on.

    Attributes:
        source: "runs" or "tables".
        metric: Metric that is judged.
        split: Split of the runs.
        cases: Number of independent cases: examples, or groups of them.
        examples: Number of examples.
        label_names: Names of the classes.
        sha256: Hash of labels, groups and names, in the order of the examples; for tables in the
            order of the ids.
        fingerprint: The split's fingerprint in the run records; None for tables.
        rows: Hash of each row's input, sorted; empty for tables without texts.
        ids: Hash of each row's id, sorted; empty for runs.
        shared_rows: Number of rows that the training rows of the first best contain; None if they
            could not be read.
    """

    __test__ = False  # not a class of tests

    source: Annotated[str, one_of((RUNS, TABLES))]
    metric: MetricInfo
    split: str
    cases: int
    examples: int
    label_names: Sequence[str]
    sha256: str
    fingerprint: str | None
    rows: Sequence[str]
    ids: Sequence[str] = ()
    shared_rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class Model:
    """One trained model of a side.

    Attributes:
        seed: Seed of its training.
        source: Run folder or table, relative to the ledger.
        predictions_sha256: Hash of its predictions and metrics.
        file_sha256: Hash of the file with its predictions.
    """

    seed: int
    source: str
    predictions_sha256: str
    file_sha256: str


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A candidate and what the referee said.

    Attributes:
        claim: "better" or "not_worse".
        margin: Margin in the metric's unit.
        changes: Values of best and candidate of each setting that differs; empty for tables.
        best_entry: Number of the entry with the best that it was compared with.
        number: Number of the try, from 1; 0 for the final claim.
        level: Probability that this is a false keep, at most.
        log_share: Logarithm of the share of the transcript of earlier answers.
        answer: "keep", "drop" or "undecided".
        shown_points: Whole steps of the margin that the gain exceeds, for a keep.
        estimate: Numbers of the comparison; None in a sealed ledger.
        checked_rows: Whether the candidate's training rows were compared with the test rows.
    """

    claim: Annotated[str, one_of(tuple(Claim))]
    margin: float
    changes: Mapping[str, Sequence[JSONValue]]
    best_entry: int
    number: int
    level: float
    log_share: float
    answer: Annotated[str, one_of(tuple(Answer))]
    shown_points: int
    estimate: LedgerEstimate | None = None
    checked_rows: bool = False


@dataclass(frozen=True, kw_only=True)
class LedgerEstimate:
    """The numbers of a comparison, in the metric's unit; positive is better.

    Attributes:
        gain: Mean over the seeds.
        lower: Limit that decided.
        interval: 95 % interval as if this were the only try.
        seeds_to_decide: Range of the number of seeds that may decide; None if decided or unlikely.
        cases_to_show: Number of cases that would show a gain of this size; None likewise.
    """

    gain: float
    lower: float
    interval: tuple[float, float]
    seeds_to_decide: tuple[int, int] | None = None
    cases_to_show: int | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a ledger.

    Attributes:
        number: Number of the entry, from 1.
        kind: "start", "try", "seeds" (more seeds of the best) or "final".
        when: Time, ISO 8601 in UTC.
        who: User and machine.
        previous: Hash of the entry before it; empty for the first.
        models: Models of the first best, of the candidate, or all of the best with more seeds.
        compared: Models that a final claim was compared with.
        settings: Settings, in the first entry.
        test: Test set, in the first entry and in the final claim.
        trial: Candidate and answer, of a try and of the final claim.
        note: Text of the user.
        schema: Version of this layout.
    """

    number: int
    kind: Annotated[str, one_of((START, TRY, SEEDS, FINAL))]
    when: str
    who: str
    previous: str
    models: Sequence[Model]
    settings: LedgerSettings | None = None
    test: TestSet | None = None
    trial: Trial | None = None
    compared: Sequence[Model] = ()
    note: str = ""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class State:
    """What follows from the entries of a ledger.

    Attributes:
        settings: Its settings.
        test: Its test set.
        best: Models of the current best, by ascending order of their use.
        best_entry: Number of the entry that made it the best.
        seeds: Seeds in the order in which candidates must use them.
        trials: Entries of all tries.
        final: Entry of the final claim; None without one.
    """

    settings: LedgerSettings
    test: TestSet
    best: tuple[Model, ...]
    best_entry: int
    seeds: tuple[int, ...]
    trials: tuple[Entry, ...] = field(default=())
    final: Entry | None = None

    @property
    def shown_points(self) -> list[int]:
        """What the answers to the kept tries have shown."""
        every = [entry.trial for entry in self.trials if entry.trial is not None]
        return [each.shown_points for each in every if each.answer == Answer.KEEP]


def state_of(entries: Sequence[Entry]) -> State:
    """Return what follows from entries.

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
            if entry.trial is not None and entry.trial.answer == Answer.KEEP:
                best, best_entry = tuple(entry.models), entry.number
    return State(
        settings=first.settings,
        test=first.test,
        best=best,
        best_entry=best_entry,
        seeds=tuple(seeds),
        trials=tuple(trials),
        final=final,
    )
