"""Judge a candidate against the best of a ledger, and write the answer down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

from ampft.comparison.analysis.learned_nothing import signs_of_no_learning
from ampft.comparison.statistics.folds import estimate_over_folds
from ampft.errors import InputError, check_type
from ampft.lab.referee.checks import (
    BEST,
    CANDIDATE,
    IdenticalPredictions,
    candidate_seeds,
    check_defined,
    check_enough_seeds,
    check_new_rows,
    check_test,
    check_training,
    check_unchanged,
    is_identical,
    listed_seeds,
)
from ampft.lab.referee.keep_or_drop import (
    CandidateAnswer,
    CandidateCriteria,
    Claim,
    Decision,
    TryErrorBudget,
    decide,
    level_of_try,
)
from ampft.lab.referee.ledger import (
    FINAL,
    OPEN,
    SEALED,
    SEEDS,
    START,
    TRY,
    Entry,
    JudgedCandidate,
    JudgedModel,
    LedgerSettings,
    LedgerState,
    append_entry,
    check_percent,
    is_ledger,
    ledger_lock,
    ledger_state,
    new_entry,
    read_entries,
)
from ampft.lab.referee.sides import (
    Side,
    Sides,
    TrainingRows,
    changed_settings,
    read_sides,
    stored_sources,
    training_rows,
    write_case_table,
)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a call of `judge` wrote, or found that it had written before."""

    ledger: Path  # Folder of the ledger.
    entry: Entry  # The entry.
    sha256: str  # Hash of the last entry of the ledger.
    state: LedgerState  # State of the ledger after the entry.
    # Whether the same candidate was judged before, so that nothing was written.
    is_repeated: bool = False

    @property
    def answer(self) -> str | None:
        """The answer "keep", "drop" or "undecided"; None if no candidate was judged."""
        return None if self.entry.trial is None else self.entry.trial.answer

    @property
    def spent(self) -> float:
        """Share of the error that the tries so far may have used."""
        return self.state.spent


def judge(
    ledger: str | Path,
    *,
    candidate: Sequence[str | Path] | str | Path = (),
    best: Sequence[str | Path] | str | Path = (),
    claim: str = Claim.BETTER,
    margin: float | None = None,
    final: bool = False,
    note: str = "",
    settings: LedgerSettings | None = None,
) -> Judgement:
    """Start a ledger with its first best, or judge a candidate against its current best.

    The error of all keeps of a ledger together is at most `settings.error`; `docs/judge.md` states
    under which assumptions.

    Args:
        ledger: Folder of the ledger.
        candidate: Run folders of one change with several seeds, or tables of predictions, which may
            be named ARM:SEED=FILE. Empty to start a ledger, or to add seeds of the best.
        best: Runs or tables of the current best: its first models in a new ledger, more seeds of it
            later, or where its files are now. With `final`, the side that the candidate must beat.
        claim: "better", or "not_worse" by more than the margin.
        margin: Margin in points; None for the ledger's.
        final: Whether this is the final claim, on rows that the ledger has never used.
        note: Text to keep with the entry.
        settings: Settings of a new ledger; None for the defaults.

    Returns:
        The entry and what follows from it.

    Raises:
        InputError: The ledger was edited, the sides cannot be compared, or an argument is invalid.
            Nothing is written.
    """
    check_type("judge", "ledger", ledger, (str, Path))
    check_type("judge", "margin", margin, (int, float, NoneType))
    check_type("judge", "final", final, bool)
    check_type("judge", "note", note, str)
    check_type("judge", "settings", settings, (LedgerSettings, NoneType))
    folder = Path(ledger)
    sides = {BEST: _sources("best", best), CANDIDATE: _sources("candidate", candidate)}
    if claim not in tuple(Claim):
        raise InputError(f"--claim {claim}: must be one of {', '.join(Claim)}.")
    if margin is not None:
        check_percent("margin", margin, 100)
    if not is_ledger(folder):
        return _start(folder, sides, settings or LedgerSettings(), note, final=final)
    if settings is not None:
        raise InputError(
            f"LEDGER {folder}: the settings of a ledger are chosen when it starts. Remove them, or "
            "start a new ledger."
        )
    if not (sides[CANDIDATE] or sides[BEST]):
        raise InputError("--candidate: no run was given. Pass the runs of the change.")
    with ledger_lock(folder):
        entries, sha256 = read_entries(folder)
        state = ledger_state(entries)
        if state.final is not None:
            raise InputError(
                f"LEDGER {folder}: it ended with the final claim in entry {state.final.number}. "
                "Start a new ledger, on new rows."
            )
        writer = _Writer(folder, entries, sha256, state, note)
        if not (final or sides[CANDIDATE]):
            return writer.add_seeds(sides[BEST])
        points = state.settings.margin if margin is None else margin
        judged = writer.judge_final if final else writer.judge_try
        return judged(sides, Claim(claim), points / 100)


def _start(
    folder: Path, sides: dict[str, list[str]], settings: LedgerSettings, note: str, *, final: bool
) -> Judgement:
    """Start a ledger with its first best. A refusal does not even create the folder."""
    if final or sides[CANDIDATE] or not sides[BEST]:
        raise InputError(
            f"LEDGER {folder}: not a ledger. Start one with the current best: ampft judge "
            f"{folder} --best RUN RUN RUN"
        )
    found = read_sides({BEST: sides[BEST]}, settings, folder, explains=True)
    side = found.sides[BEST]
    check_enough_seeds(side, len(side.models))
    if found.table is not None:
        check_defined(found.table, found.metric)
    settings = replace(
        settings,
        metric=found.metric.name,
        max_seeds=settings.max_seeds or len(side.models),
        label_names=tuple(found.test.label_names),
    )
    run = next(iter(side.runs.values()), None)
    shared = None if run is None else training_rows(run, found.test).shared
    test = replace(found.test, shared_rows=shared)
    models = list(side.models.values())
    entry = new_entry(START, [], "", models, settings=settings, test=test, note=note)
    with ledger_lock(folder):
        if is_ledger(folder):
            raise InputError(
                f"LEDGER {folder}: another process has just started it. Judge a --candidate."
            )
        if found.table is not None:
            write_case_table(folder, found.table)
        sha256 = append_entry(folder, entry)
    return Judgement(ledger=folder, entry=entry, sha256=sha256, state=ledger_state([entry]))


@dataclass(frozen=True)
class _Writer:
    """A ledger whose lock is held, as read."""

    folder: Path
    entries: list[Entry]
    sha256: str
    state: LedgerState
    note: str

    def judge_try(self, sides: dict[str, list[str]], claim: Claim, margin: float) -> Judgement:
        """Judge a candidate against the best."""
        state = self.state
        sides = {BEST: self._best_sources(sides[BEST]), CANDIDATE: sides[CANDIDATE]}
        read = read_sides(sides, state.settings, self.folder, test=state.test)
        check_test(self.folder, state, read.test)
        best, candidate = read.sides[BEST], read.sides[CANDIDATE]
        check_unchanged(best, state.best)
        seeds = candidate_seeds(self.folder, state, candidate)
        training = check_training(state.test, candidate)
        if (earlier := self._earlier(candidate, claim, margin)) is not None:
            return Judgement(
                ledger=self.folder, entry=earlier, sha256=self.sha256, state=state, is_repeated=True
            )
        if is_identical(candidate, best):
            raise IdenticalPredictions(
                f"{CANDIDATE}: it predicts exactly what the best predicts, bit for bit, with all "
                f"{len(candidate.models)} seeds. The change has no effect; nothing was written."
            )
        trial = self._trial(read, seeds, claim, margin, next_level(state), training)
        return self._append(TRY, [candidate.models[seed] for seed in seeds], trial=trial)

    def judge_final(self, sides: dict[str, list[str]], claim: Claim, margin: float) -> Judgement:
        """Judge the final claim, on rows that were never used."""
        if not sides[BEST] or not sides[CANDIDATE]:
            raise InputError(
                "--final: pass the predictions of both sides on new rows: --candidate for the "
                "winner, and --best for what it must beat."
            )
        read = read_sides(sides, self.state.settings, self.folder)
        check_new_rows(self.state.test, read.test)
        best, candidate = read.sides[BEST], read.sides[CANDIDATE]
        seeds = sorted(set(candidate.models) & set(best.models))
        if set(candidate.models) != set(best.models):
            raise InputError(
                f"--final: {CANDIDATE} has the seeds {listed_seeds(candidate.models)}, and "
                f"{BEST} {listed_seeds(best.models)}. Pass both sides with the same seeds."
            )
        check_enough_seeds(candidate, len(seeds))
        if is_identical(candidate, best):
            raise InputError("--final: both sides have equal predictions, bit for bit.")
        nothing = TrainingRows(None, "")
        trial = self._trial(read, seeds, claim, margin, final_level(self.state), nothing)
        models = [candidate.models[seed] for seed in seeds]
        compared = [best.models[seed] for seed in seeds]
        return self._append(FINAL, models, trial=trial, test=read.test, compared=compared)

    def _trial(
        self,
        read: Sides,
        seeds: Sequence[int],
        claim: Claim,
        margin: float,
        allowed: TryErrorBudget,
        training: TrainingRows,
    ) -> JudgedCandidate:
        """Return the decision on a candidate, as the ledger writes it down."""
        settings = self.state.settings
        decision = candidate_decision(read, seeds, allowed, settings, claim, margin)
        is_shown = settings.answers == OPEN or allowed.number == 0
        return JudgedCandidate(
            claim=claim,
            margin=margin,
            changes=changed_settings(read.sides[CANDIDATE], read.sides[BEST]),
            best_entry=self.state.best_entry,
            number=allowed.number,
            level=allowed.level,
            log_share=allowed.log_share,
            answer=decision.answer,
            shown_points=decision.shown_points,
            estimate=decision.estimate if is_shown else None,
            checked_rows=training.is_checked,
            training_files=training.files,
            learned_nothing=learned_nothing(read, seeds, settings, claim),
        )

    def add_seeds(self, sources: list[str]) -> Judgement:
        """Add seeds of the best, so that candidates can be continued with more seeds."""
        given = {BEST: self._best_sources(sources)}
        read = read_sides(given, self.state.settings, self.folder, test=self.state.test)
        check_test(self.folder, self.state, read.test)
        side = read.sides[BEST]
        check_unchanged(side, self.state.best)
        old = [model.seed for model in self.state.best]
        new = [seed for seed in side.models if seed not in old]
        if not new:
            raise InputError(
                f"{BEST}: the best has the seeds {listed_seeds(old)} already. Pass runs with "
                "other seeds, or a --candidate."
            )
        ordered = [seed for seed in self.state.seeds if seed in side.models]
        ordered += [seed for seed in new if seed not in ordered]
        known = self.state.seeds[: len(ordered)]
        if ordered[: len(known)] != list(known):
            raise InputError(
                f"{BEST}: seeds are used in the order of the ledger, "
                f"{listed_seeds(self.state.seeds)}. Add the seeds that come first."
            )
        return self._append(SEEDS, [side.models[seed] for seed in ordered])

    def _best_sources(self, given: list[str]) -> list[str]:
        """Return the given sources of the best, and the stored ones of seeds that they lack."""
        found = []
        for model in self.state.best:
            try:
                found += stored_sources([model], self.folder)
            except InputError:
                if not given:
                    raise
        paths = {Path(each).resolve() for each in given}
        found = [each for each in dict.fromkeys(found) if Path(each).resolve() not in paths]
        return [*given, *found]

    def _earlier(self, candidate: Side, claim: Claim, margin: float) -> Entry | None:
        """Return the entry that answered the same question about the same predictions."""
        hashes = {model.seed: model.predictions_sha256 for model in candidate.models.values()}
        for entry in self.state.trials:
            trial = entry.trial
            assert trial is not None, "it is a try"
            same = {model.seed: model.predictions_sha256 for model in entry.models} == hashes
            # The best itself is judged again, from the same files; others equal to it are refused.
            sources = {model.source for model in candidate.models.values()}
            is_best = entry.number == self.state.best_entry
            is_best = is_best and {model.source for model in entry.models} == sources
            if (
                same
                and (trial.claim, trial.margin) == (claim, margin)
                and (is_best or trial.best_entry == self.state.best_entry)
            ):
                return entry
        return None

    def _append(self, kind: str, models: list[JudgedModel], **parts: Any) -> Judgement:
        entry = new_entry(kind, self.entries, self.sha256, models, note=self.note, **parts)
        sha256 = append_entry(self.folder, entry)
        return Judgement(
            ledger=self.folder,
            entry=entry,
            sha256=sha256,
            state=ledger_state([*self.entries, entry]),
        )


def _sources(name: str, given: Sequence[str | Path] | str | Path) -> list[str]:
    """Return the sources of a side, of which one may be passed without a list.

    Raises:
        InputError: They are not paths.
    """
    check_type("judge", name, given, (list, tuple, str, Path))
    every = [given] if isinstance(given, str | Path) else given
    for each in every:
        check_type("judge", f"each of {name}", each, (str, Path))
    return [str(each) for each in every]


def next_level(state: LedgerState) -> TryErrorBudget:
    """Return the error that the next try of a ledger may use."""
    return level_of_try(
        len(state.trials) + 1,
        state.shown_points,
        error=state.settings.error / 100,
        planned=state.settings.tries,
        sealed=state.settings.answers == SEALED,
    )


def final_level(state: LedgerState) -> TryErrorBudget:
    """Return the error that the final claim may use: all of it, because its rows are new."""
    return TryErrorBudget(number=0, level=state.settings.error / 100, log_share=0.0)


def learned_nothing(
    read: Sides, seeds: Sequence[int], settings: LedgerSettings, claim: Claim
) -> str:
    """Return which model learned nothing so that no keep is possible; empty for none.

    A candidate that learned nothing is never kept, and to be not worse than a best that learned
    nothing shows nothing. Tables have no record, and a sealed ledger does not read labels for it.
    """
    names = [CANDIDATE] if claim is Claim.BETTER else [CANDIDATE, BEST]
    for name in names:
        side = read.sides[name]
        for seed in seeds:
            if seed in side.runs:
                warnings = side.runs[seed].record.training_warnings
            else:
                reads_labels = settings.answers != SEALED
                found = side.predictions[seed]
                warnings = signs_of_no_learning(found, reads_labels=reads_labels)
            if warnings:
                return f"{name}, seed {seed}: {warnings[0]}"
    return ""


def candidate_decision(
    read: Sides,
    seeds: Sequence[int],
    allowed: TryErrorBudget,
    settings: LedgerSettings,
    claim: Claim,
    margin: float,
) -> Decision:
    """Return the decision on the candidate.

    Args:
        read: Both sides.
        seeds: Seeds of both sides that count.
        allowed: Error that the try, or the final claim, may use.
        settings: Settings of the ledger.
        claim: What the candidate must show.
        margin: Margin in the metric's unit.
    """
    assert settings.max_seeds is not None, "it is set when a ledger starts"
    candidate, best = (
        [read.sides[name].predictions[seed] for seed in seeds] for name in (CANDIDATE, BEST)
    )
    estimate = estimate_over_folds(
        [run.sums for run in candidate],
        [run.sums for run in best],
        [run.folds for run in best],
        read.metric,
    )
    question = CandidateCriteria(
        claim=claim,
        margin=margin,
        max_seeds=settings.max_seeds,
        sealed=settings.answers == SEALED,
        higher_is_better=read.metric.higher_is_better,
        has_learned=not learned_nothing(read, seeds, settings, claim),
    )
    decision = decide(estimate, allowed, question)
    if allowed.number == 0 and decision.answer is CandidateAnswer.UNDECIDED:
        return replace(decision, answer=CandidateAnswer.DROP)  # nothing follows a final claim
    return decision
